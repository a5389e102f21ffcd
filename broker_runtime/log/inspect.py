"""Looking at a partition's files without opening the log: for ``pylog log dump`` and ``pylog log verify``.

Rule: reads only, takes no lock, needs no broker and no ZooKeeper. While a broker appends, the last segment may seem to
end in a torn frame; everything before that is unaffected.

It also compares replicas byte by byte (``pylog log verify --compare``): the committed records that all of them have,
from the latest log start up to the highest high watermark that one of them has in its checkpoint, or up to the first
log end before that. Segments may begin at different offsets (each replica rolls its own), so frames are compared, not
files. One frame of each replica is in memory at a time. Control frames are frames; the indexes of aborted transactions
are compared with what the frames say, and the last stable offsets with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError, PylogError, UnsupportedVersionError
from broker_runtime.contract.frame import (
    HEADER_BYTES,
    Control,
    FrameHeader,
    decode_frame,
    parse_control,
    verify_frame,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import SchemaHistory
from broker_runtime.log.checkpoint import OffsetCheckpoint
from broker_runtime.log.directory import HIGH_WATERMARK_NAME, LOG_START_NAME
from broker_runtime.log.files import FileSystem, RealFiles, read_file
from broker_runtime.log.identity import PARTITION_NAME, PartitionIdentity
from broker_runtime.log.indexes import IndexBuilder, IndexFile, OffsetIndex, TimeIndex, TransactionIndex
from broker_runtime.log.leader_epochs import EPOCHS_NAME, LeaderEpochs
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.producer_state import ProducerState, snapshot_path, transactions_before
from broker_runtime.log.reading import schema_history
from broker_runtime.log.scan import LOG_SUFFIX, frames_anywhere, header_at
from broker_runtime.log.transaction_walk import (
    IndexEntry,
    TransactionWalk,
    difference_of_entries,
    read_snapshot,
    said,
)
from broker_runtime.log.transactions import OpenTransaction

_NOT_OF_THE_FRAMES = "an entry is not what the frames say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes that fail their checks, or records that nobody can read: in ``path`` at ``position`` (0 for a small file),
    where ``offset`` should begin."""

    path: Path
    position: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """What one segment holds: ``frames`` frames whose checksums are right, with ``records`` records of [base_offset,
    next_offset).

    ``last_stable_offset``: behind the segment, if all of it is committed; ``open``: the transactions that it stands in
    front of. Both as far as the frames and snapshots of this directory tell.
    """

    path: Path
    base_offset: int
    next_offset: int
    frames: int
    records: int
    size_bytes: int
    max_timestamp_ms: int  # -1: no record
    damage: tuple[Damage, ...]
    last_stable_offset: int
    open: tuple[OpenTransaction, ...]


def iterate_frames(
    path: Path, *, identity: PartitionIdentity | None = None, files: FileSystem | None = None
) -> Iterator[tuple[int, FrameHeader | None, str | None]]:
    """(position, header, what is wrong) of each frame of a ``.log`` file, in order; good frames have no third.

    Every checksum is verified, that of the stamp only with ``identity`` (partition.json). If the bytes at a position
    are no frame, the header is None, and the walk continues at the next good frame, if there is one. One frame is in
    memory at a time. Raises `OSError`.
    """
    files = files if files is not None else RealFiles()
    descriptor = files.open(path, read_only=True)
    try:
        size = files.size(descriptor)
        position, offset = 0, base_offset_of(path)
        while position < size:
            header, error = _frame_at(files, descriptor, path, position, size, offset, identity)
            yield position, header, error
            if error is None and header is not None:
                position, offset = position + header.frame_bytes, header.next_offset
                continue
            found = next(frames_anywhere(files, descriptor, position + 1, size, identity), None)
            if found is None:
                return
            position, offset = found[0], found[1].base_offset
    finally:
        files.close(descriptor)


def control_at(path: Path, position: int, header: FrameHeader, *, files: FileSystem | None = None) -> Control | None:
    """What the sound frame at ``position`` says, if it is a control frame. Raises `CorruptRecordError`, `OSError`."""
    if not header.is_control:
        return None
    files = files if files is not None else RealFiles()
    descriptor = files.open(path, read_only=True)
    try:
        return parse_control(files.read(descriptor, header.frame_bytes, position))
    finally:
        files.close(descriptor)


def verify_directory(directory: Path, *, files: FileSystem | None = None) -> list[SegmentReport]:
    """One report per segment of a partition's directory, oldest first. Damage in small files is in the first report.

    Verified: every frame, and its values unless they are deleted; dense offsets across segments; indexes against the
    frames, that of aborted transactions for each of them; control frames and snapshots against the frames before;
    epochs, identity. One frame is in memory at a time, decoded.
    Raises `OSError`, and `CorruptRecordError` where the directory holds no segment.
    """
    files = files if files is not None else RealFiles()
    found = PartitionFiles.find(files, directory)
    if not found.base_offsets:
        raise CorruptRecordError(f"{directory} holds no segment (<20 digits>{LOG_SUFFIX})")
    identity, damage = _small_files(files, directory, found)
    contents = _Contents(files, directory, identity)
    open_files = OpenFiles(files, limit=16, read_only=True)
    transactions = _TransactionCheck(files, directory, found)
    try:
        reports: list[SegmentReport] = []
        for base_offset in found.base_offsets:
            if reports and reports[-1].next_offset != base_offset:
                path = reports[-1].path
                reason = (
                    f"the segment ends with offset {reports[-1].next_offset - 1}, the next begins with {base_offset}"
                )
                damage.append(Damage(path=path, position=reports[-1].size_bytes, offset=base_offset, reason=reason))
            reports.append(
                _verify_segment(open_files, directory, base_offset, identity, contents, transactions, damage)
            )
            damage = []
        return reports
    finally:
        open_files.close()


def base_offset_of(path: Path) -> int:
    """The offset in a segment file's name. Raises `CorruptRecordError` if there is none."""
    if path.suffix != LOG_SUFFIX or not path.stem.isdigit():
        raise CorruptRecordError(f"{path} is no segment: their names are 20 digits and {LOG_SUFFIX}")
    return int(path.stem)


def read_identity(directory: Path, *, files: FileSystem | None = None) -> PartitionIdentity | None:
    """The content of partition.json; None if it is missing. Raises `CorruptRecordError`, `OSError`."""
    return PartitionIdentity.read(files if files is not None else RealFiles(), directory)


def _frame_at(
    files: FileSystem,
    descriptor: int,
    path: Path,
    position: int,
    size: int,
    offset: int,
    identity: PartitionIdentity | None,
) -> tuple[FrameHeader | None, str | None]:
    header: FrameHeader | None = None
    try:
        header = header_at(files.read(descriptor, HEADER_BYTES, position), 0, path, position, size, offset)
        frame = files.read(descriptor, header.frame_bytes, position)
        if identity is None:
            verify_frame(frame)
        else:
            verify_frame(frame, topic_id=identity.topic_id.bytes, partition=identity.partition)
    except (CorruptRecordError, UnsupportedVersionError) as error:
        return header, error.message
    return header, None


def _verify_segment(
    open_files: OpenFiles,
    directory: Path,
    base_offset: int,
    identity: PartitionIdentity | None,
    contents: _Contents,
    walk: _TransactionCheck,
    damage: list[Damage],
) -> SegmentReport:
    path = directory / f"{base_offset:020d}{LOG_SUFFIX}"
    offsets = _IndexCheck(OffsetIndex(open_files, directory, base_offset).file)
    times = _IndexCheck(TimeIndex(open_files, directory, base_offset).file)
    transactions = _IndexCheck(TransactionIndex(open_files, directory, base_offset).file)
    builder = IndexBuilder(base_offset, 1 << 31)
    walk.begin_segment(base_offset, is_dense=not damage)
    frames = records = 0
    next_offset, max_timestamp = base_offset, -1
    is_whole = True
    descriptor = open_files.files.open(path, read_only=True)
    try:
        for position, header, error in iterate_frames(path, identity=identity, files=open_files.files):
            if error is not None or header is None:
                damage = [*damage, Damage(path=path, position=position, offset=next_offset, reason=error or "no frame")]
                is_whole = False
                walk.lose()
                continue
            reason = contents.error_of(descriptor, position, header)
            control: Control | None = None
            if header.is_control:
                try:
                    control = parse_control(open_files.files.read(descriptor, header.frame_bytes, position))
                    builder.add(position, header, control)
                except CorruptRecordError as broken:
                    reason, is_whole = broken.message, False
                    walk.lose()
            reason = walk.problem_of(header, control) or reason
            if reason is not None:
                damage = [*damage, Damage(path=path, position=position, offset=header.base_offset, reason=reason)]
            offsets.expect((header.base_offset - base_offset, position), key=0)
            times.expect((max_timestamp, header.base_offset - base_offset), key=1)
            frames, records = frames + 1, records + header.record_count
            next_offset = header.next_offset
            if not header.is_control:
                max_timestamp = max(max_timestamp, header.latest_timestamp_ms)
    finally:
        open_files.files.close(descriptor)
    times.expect((max_timestamp, next_offset - base_offset), key=1)
    if is_whole:
        transactions.require(builder.transaction_entries)
    else:
        transactions.skip()
    damage = [
        *damage,
        *walk.end_segment(next_offset, len(builder.transaction_entries), is_whole=is_whole and frames > 0),
    ]
    for check in (offsets, times, transactions):
        reason = check.error or (None if check.is_done or not is_whole else _NOT_OF_THE_FRAMES)
        if reason is not None:
            damage = [*damage, Damage(path=check.path, position=0, offset=base_offset, reason=reason)]
    return SegmentReport(
        path=path,
        base_offset=base_offset,
        next_offset=next_offset,
        frames=frames,
        records=records,
        size_bytes=open_files.files.file_size(path) or 0,
        max_timestamp_ms=max_timestamp,
        damage=tuple(damage),
        last_stable_offset=walk.last_stable_offset(next_offset),
        open=walk.open,
    )


class _TransactionCheck:
    """Checks control frames against the frames before them, and snapshots against the frames up to them. After damage
    nothing is said before the next snapshot."""

    def __init__(self, files: FileSystem, directory: Path, found: PartitionFiles) -> None:
        self._files = files
        self._directory = directory
        self._snapshot_offsets = set(found.snapshot_offsets)
        self._bases = found.base_offsets
        self._walk: TransactionWalk | None = None
        self._damage: list[Damage] = []

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        return () if self._walk is None else self._walk.open

    def last_stable_offset(self, end: int) -> int:
        return end if self._walk is None else self._walk.last_stable_offset(end)

    def begin_segment(self, base_offset: int, *, is_dense: bool) -> None:
        if self._walk is None or not is_dense:
            self._walk = TransactionWalk.at(self._files, self._directory, base_offset)

    def lose(self) -> None:
        """Something is damaged: what is open behind it is not known."""
        self._walk = None

    def problem_of(self, header: FrameHeader, control: Control | None) -> str | None:
        if self._walk is None:
            return None
        problem = self._walk.add(header, control)
        if header.next_offset in self._snapshot_offsets and self._walk.is_complete:
            self._compare_snapshot(header.next_offset, self._walk.open)
        return problem

    def end_segment(self, next_offset: int, index_entries: int, *, is_whole: bool) -> list[Damage]:
        """What was found wrong with snapshots. ``index_entries``: that the segment's index must have. ``is_whole``: it
        has frames, all of them sound."""
        damage, self._damage = self._damage, []
        if is_whole and next_offset in self._snapshot_offsets.intersection(self._bases):
            known = transactions_before(self._files, self._directory, next_offset)
            if known is not None and known.index_entries != index_entries:
                reason = f"it says that {known.index_entries} transactions were aborted, by the frames {index_entries}"
                damage.append(self._wrong(next_offset, reason))
        return damage

    def _compare_snapshot(self, offset: int, opened: Sequence[OpenTransaction]) -> None:
        state = read_snapshot(self._files, self._directory, offset)
        if state is None or state.transactions.open == {each.producer_id: each for each in opened}:
            return
        found = ", ".join(map(str, sorted(state.transactions.open))) or "none"
        expected = ", ".join(str(each.producer_id) for each in opened) or "none"
        self._damage.append(
            self._wrong(offset, f"it says that transactions are open of producers: {found}; by the frames: {expected}")
        )

    def _wrong(self, offset: int, reason: str) -> Damage:
        return Damage(path=snapshot_path(self._directory, offset), position=0, offset=offset, reason=reason)


class _Contents:
    """Checks whether the values in frames with right checksums can be read. Brokers do not check that: a broken or
    malicious producer can have anything appended that it computed checksums for."""

    def __init__(self, files: FileSystem, directory: Path, identity: PartitionIdentity | None) -> None:
        self._files = files
        self._identity = identity
        self._schemas: SchemaHistory | None = None
        self._log_start = 0
        if identity is not None:
            self._schemas = schema_history(identity)
            starts = OffsetCheckpoint(files, directory.parent / LOG_START_NAME).read() or {}
            self._log_start = starts.get(TopicPartition(identity.topic, identity.partition), 0)

    def error_of(self, descriptor: int, position: int, header: FrameHeader) -> str | None:
        """What is wrong with the values of a frame. None: nothing, or no reader gets them, or their schema is not known
        here. Raises `OSError`."""
        if self._schemas is None or not self._schemas.knows(header.schema_id):
            return None
        if header.is_control or header.next_offset <= self._log_start:
            return None
        try:
            decode_frame(self._files.read(descriptor, header.frame_bytes, position), self._schemas)
        except CorruptRecordError as error:
            return (
                f"records {header.base_offset} to {header.last_offset} cannot be read: {error.message}. The checksums "
                "are right: the bytes are as the producer sent them, and no disk is at fault. Consumers can "
                f"go on behind them, at {header.next_offset}; to be rid of them, delete the records before "
                f"{header.next_offset}"
            )
        return None


class _IndexCheck:
    """Checks whether each entry of an index agrees with the frames. How sparse it should be is not known here."""

    def __init__(self, index: IndexFile) -> None:
        self.path = index.path
        self.error: str | None = None
        self._entries: list[tuple[int, ...]] = []
        self._at = 0
        try:
            self._entries = list(index.entries())
        except CorruptRecordError as error:
            self.error = error.message

    def expect(self, entry: tuple[int, int], *, key: int) -> None:
        """The entry for the next place in the segment, if the index has one with that ``key``, must be this."""
        if self._at < len(self._entries) and self._entries[self._at][key] == entry[key]:
            self._at += self._entries[self._at] == entry

    def require(self, entries: Sequence[tuple[int, ...]]) -> None:
        """The index must have these entries and no others."""
        self._at = len(self._entries)
        if self.error is None:
            self.error = difference_of_entries(self._entries, entries)

    def skip(self) -> None:
        """What the entries should be is not known."""
        self._at = len(self._entries)

    @property
    def is_done(self) -> bool:
        """Whether every entry was as expected."""
        return self._at == len(self._entries)


def _small_files(
    files: FileSystem, directory: Path, found: PartitionFiles
) -> tuple[PartitionIdentity | None, list[Damage]]:
    damage: list[Damage] = []
    identity: PartitionIdentity | None = None

    def report(path: Path, reason: str) -> None:
        damage.append(Damage(path=path, position=0, offset=found.base_offsets[0], reason=reason))

    try:
        identity = PartitionIdentity.read(files, directory)
        if identity is None:
            report(directory / PARTITION_NAME, "the file is missing")
    except CorruptRecordError as error:
        report(directory / PARTITION_NAME, error.message)
    epochs_path = directory / EPOCHS_NAME
    if files.file_size(epochs_path) is not None and LeaderEpochs.load(files, epochs_path) is None:
        report(epochs_path, "its checksum or its order is wrong")
    for offset in found.snapshot_offsets:
        path = snapshot_path(directory, offset)
        try:
            ProducerState.decode(read_file(files, path) or b"")
        except PylogError as error:
            report(path, error.message)
    return identity, damage


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing the replicas in ``directories``: offsets [start, end), and the first difference, if any.

    ``log_ends``: of each replica, in the order of ``directories``. One that ends before ``high_watermark`` (-1: no
    checkpoint has one) lacks committed records; that alone is no difference. ``last_stable_offset``: of the offsets
    below ``end``; None: no replica has what was open at its start.
    """

    partition: str
    directories: tuple[Path, ...]
    start: int
    end: int
    high_watermark: int
    log_ends: tuple[int, ...]
    frames: int
    difference: str | None
    last_stable_offset: int | None


def compare_replicas(directories: Sequence[Path], *, files: FileSystem | None = None) -> Comparison:
    """Compares the replicas of one partition, each in its directory. Raises `OSError`, and `CorruptRecordError` if a
    directory is not a partition's, or has another topic id."""
    assert len(directories) > 1, "a comparison needs two replicas"
    files = files if files is not None else RealFiles()
    replicas = [_Replica(files, directory) for directory in directories]
    first = replicas[0]
    for other in replicas[1:]:
        if other.topic_id != first.topic_id:
            raise CorruptRecordError(
                f"{other.directory} is of the topic id {other.topic_id}, {first.directory} of {first.topic_id}: "
                "they are not replicas of one partition"
            )
    start = max(replica.log_start for replica in replicas)
    ends = tuple(replica.log_end() for replica in replicas)
    high_watermark = max(replica.high_watermark for replica in replicas)
    end = min(*ends, high_watermark) if high_watermark >= 0 else min(ends)
    frames, difference = _compare(replicas, start, end)
    stable = [(offset, replica) for replica in replicas if (offset := replica.last_stable_offset(end)) is not None]
    for offset, other in stable[1:]:
        if difference is None and offset != stable[0][0]:
            difference = (
                f"the last stable offset below {end} is {stable[0][0]} by {stable[0][1].directory}, {offset} by "
                f"{other.directory}"
            )
    return Comparison(
        partition=first.directory.name,
        directories=tuple(directories),
        start=start,
        end=max(start, end),
        high_watermark=high_watermark,
        log_ends=ends,
        frames=frames,
        difference=difference,
        last_stable_offset=stable[0][0] if stable else None,
    )


class _Replica:
    """One replica's files."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self.directory = directory
        self._files = files
        found = PartitionFiles.find(files, directory)
        self._base_offsets, self._snapshot_offsets = found.base_offsets, found.snapshot_offsets
        if not self._base_offsets:
            raise CorruptRecordError(f"{directory} holds no segment (<20 digits>{LOG_SUFFIX})")
        identity = read_identity(directory, files=files)
        self.topic_id = None if identity is None else identity.topic_id
        self.high_watermark = -1
        self.log_start = self._base_offsets[0]
        if identity is not None:
            at = TopicPartition(identity.topic, identity.partition)
            self.high_watermark = self._written_down(HIGH_WATERMARK_NAME, at, -1)
            self.log_start = max(self.log_start, self._written_down(LOG_START_NAME, at, 0))

    def log_end(self) -> int:
        """The offset after the last good frame."""
        end = self._base_offsets[-1]
        for header, _ in self._frames_of(self._base_offsets[-1]):
            end = header.next_offset
        return end

    def last_stable_offset(self, end: int) -> int | None:
        """How far the log is stable if everything below ``end`` is committed, by its newest snapshot and its frames.
        None: what was open at its start is not known."""
        snapshots = [each for each in self._snapshot_offsets if self._base_offsets[0] <= each <= end]
        sound = [each for each in snapshots if read_snapshot(self._files, self.directory, each) is not None]
        start = max(sound, default=self._base_offsets[0])
        walk = TransactionWalk.at(self._files, self.directory, start)
        for header, data in self.frames(start):
            if header.base_offset >= end:
                break
            walk.add(header, parse_control(data) if header.is_control else None)
        return walk.last_stable_offset(end) if walk.is_complete else None

    def problem_of_indexes(self, expected: Sequence[IndexEntry], start: int, end: int) -> str | None:
        """What is wrong with the entries for the transactions that ended in [start, end). ``expected``: by the
        frames."""
        found: list[IndexEntry] = []
        open_files = OpenFiles(self._files, limit=16, read_only=True)
        try:
            for base_offset in self._base_offsets:
                index = TransactionIndex(open_files, self.directory, base_offset).file
                try:
                    found += [entry for entry in index.entries() if start <= entry[2] < end]
                except CorruptRecordError as error:
                    return error.message
        finally:
            open_files.close()
        problem = difference_of_entries(found, expected)
        return None if problem is None else f"the index of aborted transactions of {self.directory} is wrong: {problem}"

    def frames(self, start: int) -> Iterator[tuple[FrameHeader, bytes]]:
        """The frames from the one with ``start`` on, in order, up to the first damage."""
        for number, base_offset in enumerate(self._base_offsets):
            following = self._base_offsets[number + 1 : number + 2]
            if following and following[0] <= start:
                continue
            for header, data in self._frames_of(base_offset):
                if header.next_offset <= start:
                    continue
                if header.base_offset > start:
                    return  # what should come before it is damaged or missing
                yield header, data
                start = header.next_offset

    def _frames_of(self, base_offset: int) -> Iterator[tuple[FrameHeader, bytes]]:
        path = self.directory / f"{base_offset:020d}{LOG_SUFFIX}"
        descriptor = self._files.open(path, read_only=True)
        try:
            for position, header, error in iterate_frames(path, files=self._files):
                if header is None or error is not None:
                    return
                yield header, self._files.read(descriptor, header.frame_bytes, position)
        finally:
            self._files.close(descriptor)

    def _written_down(self, name: str, at: TopicPartition, otherwise: int) -> int:
        offsets = OffsetCheckpoint(self._files, self.directory.parent / name).read()
        return otherwise if offsets is None else offsets.get(at, otherwise)


def _compare(replicas: Sequence[_Replica], start: int, end: int) -> tuple[int, str | None]:
    """How many frames are equal, and the first difference."""
    walks = [replica.frames(start) for replica in replicas]
    frames, offset = 0, start
    aborted: list[IndexEntry] = []
    while offset < end:
        found = [next(walk, None) for walk in walks]
        for replica, each in zip(replicas, found, strict=True):
            if each is None:
                return frames, f"{replica.directory} has no good frame with offset {offset}"
        whole = [each for each in found if each is not None]
        header, data = whole[0]
        for replica, (other, other_data) in zip(replicas[1:], whole[1:], strict=True):
            if other_data != data:
                return frames, (
                    f"{replicas[0].directory} and {replica.directory} differ at offset {offset}: a frame of offsets "
                    f"{header.base_offset} to {header.last_offset} in leader epoch {header.leader_epoch}"
                    f"{_said(header, data)}, and one of "
                    f"{other.base_offset} to {other.last_offset} in {other.leader_epoch}{_said(other, other_data)}"
                )
        if header.is_control:
            builder = IndexBuilder(0, 1 << 31)
            builder.add(0, header, parse_control(data))
            aborted += builder.transaction_entries
        frames, offset = frames + 1, header.next_offset
    problems = (replica.problem_of_indexes(aborted, start, offset) for replica in replicas)
    return frames, next((problem for problem in problems if problem is not None), None)


def _said(header: FrameHeader, data: bytes) -> str:
    return f" ({said(parse_control(data))})" if header.is_control else ""
