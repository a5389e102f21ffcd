"""Whether replicas of a partition are the same, byte by byte: for ``pylog log verify --compare``.

Compared is what is committed and what all of them hold: from the latest log start on, up to the highest high watermark
that one of them has written down, or the first log end before that. Segments may begin at different offsets (each
replica rolls its own), so frames are compared, not files.

Rule: reads only, takes no lock, needs no broker; one frame of each replica is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import FrameHeader
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.checkpoint import OffsetCheckpoint
from broker_runtime.log.directory import HIGH_WATERMARK_NAME, LOG_START_NAME
from broker_runtime.log.files import FileSystem, RealFiles
from broker_runtime.log.inspect import iterate_frames, read_identity
from broker_runtime.log.partition_files import PartitionFiles
from broker_runtime.log.segment import LOG_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of comparing the replicas in ``directories``: offsets [start, end), and what is wrong, if anything.

    ``log_ends``: of each replica, in the order of ``directories``. One that ends before ``high_watermark`` (-1: none
    is written down) lacks committed records; that alone is no difference.
    """

    partition: str
    directories: tuple[Path, ...]
    start: int
    end: int
    high_watermark: int
    log_ends: tuple[int, ...]
    frames: int
    difference: str | None


def compare_replicas(directories: Sequence[Path], *, files: FileSystem | None = None) -> Comparison:
    """Compares the replicas of one partition, each in its directory. Raises `OSError`, and `CorruptRecordError` where a
    directory is no partition's, or of another topic id."""
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
    return Comparison(
        partition=first.directory.name,
        directories=tuple(directories),
        start=start,
        end=max(start, end),
        high_watermark=high_watermark,
        log_ends=ends,
        frames=frames,
        difference=difference,
    )


class _Replica:
    """One replica's files."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self.directory = directory
        self._files = files
        self._base_offsets = PartitionFiles.find(files, directory).base_offsets
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
        """The offset behind the last good frame."""
        end = self._base_offsets[-1]
        for header, _ in self._frames_of(self._base_offsets[-1]):
            end = header.next_offset
        return end

    def frames(self, start: int) -> Iterator[tuple[FrameHeader, bytes]]:
        """The frames that hold ``start`` and what follows, in order, up to the first damage."""
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
    """How many frames are the same, and the first difference."""
    walks = [replica.frames(start) for replica in replicas]
    frames, offset = 0, start
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
                    f"{header.base_offset} to {header.last_offset} in leader epoch {header.leader_epoch}, and one of "
                    f"{other.base_offset} to {other.last_offset} in {other.leader_epoch}"
                )
        frames, offset = frames + 1, header.next_offset
    return frames, None
