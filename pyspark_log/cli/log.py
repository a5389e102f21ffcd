"""`pylog log …`: log directories without a broker. `dump` and `verify` only read.

`repair` cuts a damaged log whose broker is stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.exit_status import FAILED
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, json_line, print_rows
from pyspark_log.cli.progress import Progress

if TYPE_CHECKING:
    from broker_runtime.contract.frame import FrameHeader
    from broker_runtime.contract.model import TopicPartition
    from broker_runtime.log.files import RealFiles
    from broker_runtime.log.inspect import SegmentReport
    from broker_runtime.log.transaction_walk import TransactionWalk
    from broker_runtime.log.transactions import OpenTransaction

_LOG_SUFFIX = ".log"
_FRAME_COLUMNS = [
    Column("file", "FILE", wide_only=True),
    Column("position", "POSITION"),
    Column("base_offset", "OFFSET"),
    Column("records", "RECORDS"),
    Column("bytes", "BYTES"),
    Column("base_timestamp", "TIMESTAMP"),
    Column("max_timestamp", "MAX-TIMESTAMP", wide_only=True),
    Column("append_time", "APPENDED", wide_only=True),
    Column("leader_epoch", "EPOCH", wide_only=True),
    Column("codec", "CODEC"),
    Column("schema_id", "SCHEMA", wide_only=True),
    Column("chunks", "CHUNKS", wide_only=True),
    Column("producer_id", "PRODUCER", wide_only=True),
    Column("crc_ok", "CRC-OK"),
    Column("last_stable_offset", "STABLE", wide_only=True),
    Column("control_text", "CONTROL"),
    Column("error", "ERROR", wide_only=True),
]
_SEGMENT_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("segment", "SEGMENT"),
    Column("frames", "FRAMES"),
    Column("records", "RECORDS"),
    Column("bytes", "BYTES"),
    Column("max_timestamp", "MAX-TIMESTAMP", wide_only=True),
    Column("last_stable_offset", "STABLE", wide_only=True),
    Column("ok", "OK"),
]
_REPLICA_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("directories", "DIRECTORIES", wide_only=True),
    Column("start", "START"),
    Column("end", "END"),
    Column("high_watermark", "HIGH-WATERMARK", wide_only=True),
    Column("last_stable_offset", "STABLE", wide_only=True),
    Column("log_ends", "LOG-ENDS"),
    Column("frames", "FRAMES"),
    Column("same", "SAME"),
]

_REPAIR_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("kept_start", "KEPT-FROM"),
    Column("kept_end", "KEPT-TO"),
    Column("lost_from", "LOST-FROM"),
    Column("lost_records", "LOST-RECORDS"),
    Column("sound_records", "OF-THEM-READABLE"),
    Column("reason", "REASON", wide_only=True),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    add_command(group, "dump")(dump)
    add_command(group, "verify")(verify)
    add_command(group, "repair")(repair)


def dump(
    invocation: Invocation,
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR…", help="Segment files, partitions or data directories.")
    ],
) -> None:
    """Show every frame: its offset, records, bytes, timestamps, codec and checksums.

    Control frames show which transaction begins or how it ends, and how far the log is stable then.
    """
    dumped = _Dump()
    rows = (row for path in paths for segment in _segments(path) for row in dumped.frames(segment))
    if invocation.output is OutputFormat.JSONL:
        for row in rows:
            sys.stdout.write(json_line(row) + "\n")
    else:
        print_rows(list(rows), _FRAME_COLUMNS, invocation.output, name="base_offset")
    for line in dumped.open_transactions():
        invocation.say(line)


def verify(
    invocation: Invocation,
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Partitions or data directories.")],
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Compare the replicas of several brokers, byte by byte."),
    ] = False,
) -> None:
    """Verify every byte of a log; exit status 1 if it is damaged.

    Checks frames, checksums, values, offsets, transactions, indexes and leader epochs.
    """
    from broker_runtime.log.inspect import verify_directory

    if compare:
        _compare(invocation, directories)
        return
    partitions = [partition for directory in directories for partition in _partitions(directory)]
    rows: list[dict[str, Any]] = []
    with _progress(invocation, partitions) as progress:
        for partition in partitions:
            progress.say(f"Verifying {partition.name}")
            reports = verify_directory(partition, files=counted_files(progress))
            rows += [_segment_row(partition, report) for report in reports]
    print_rows(rows, _SEGMENT_COLUMNS, invocation.output, name="segment")
    damages = [damage for row in rows for damage in row["damage"]]
    for damage in damages:
        sys.stderr.write(
            f"[CORRUPT_MESSAGE] {damage['path']} at byte {damage['position']}, offset {damage['offset']}: "
            f"{damage['reason']}\n"
        )
    if damages:
        raise typer.Exit(FAILED)
    for last in {row["partition"]: row for row in rows}.values():  # of each partition, the last segment
        for line in open_lines(last["partition"], last["last_stable_offset"], last["next_offset"], last["open"]):
            invocation.say(line)
    invocation.say(
        f"{counted(sum(row['records'] for row in rows), 'record')} in {counted(len(rows), 'segment')}: no damage found."
    )


def repair(
    invocation: Invocation,
    directory: Annotated[Path, typer.Argument(metavar="DIR/TOPIC-N", help="A partition of a stopped broker.")],
) -> None:
    """Cut the unreadable part of a damaged log, so that its broker can serve the rest.

    Only if no other broker has a replica. Otherwise start this broker: it fetches the log again.
    """
    from broker_runtime.log.repair import carry_out, opened_for_repair, plan_repair

    partition = _named_partition(directory)
    progress = _progress(invocation, [directory])
    with opened_for_repair(directory.resolve().parent, files=counted_files(progress)) as opened:
        with progress:
            progress.say(f"Verifying {partition}")
            plan = plan_repair(opened, partition)
        if plan is None:
            invocation.say(f"{directory} needs no repair.")
            return
        row = {
            "partition": str(partition),
            "reason": plan.reason,
            "kept_start": plan.start,
            "kept_end": plan.end,
            "lost_from": plan.end if plan.end < plan.old_end else plan.old_start,
            "lost_records": plan.lost_records,
            "sound_records": plan.sound_records,
        }
        print_rows([row], _REPAIR_COLUMNS, invocation.output, name="partition")
        sys.stderr.write(f"{plan.reason}\n")
        invocation.confirm_name(
            f"This deletes {counted(plan.lost_records, 'record')} of {partition}, {plan.sound_records:,} of them "
            f"readable, and keeps offsets {plan.start} to {plan.end} (exclusive). If another broker has a replica, "
            "start this broker instead: it fetches the log again.",
            str(partition),
        )
        carry_out(opened, partition, plan)
    done = f"Cut {partition} at offset {plan.end}" if plan.rest is None else f"{partition} begins behind the damage"
    invocation.say(f"{done}. Now start its broker.")


def _named_partition(directory: Path) -> TopicPartition:
    from broker_runtime.contract.model import TopicPartition

    topic, dash, number = directory.resolve().name.rpartition("-")
    if not directory.is_dir() or not dash or not number.isdigit():
        raise OptionError(f"{directory}: is not the directory of a partition, for example data/flights-0")
    return TopicPartition(topic, int(number))


def _compare(invocation: Invocation, directories: list[Path]) -> None:
    from broker_runtime.log.inspect import compare_replicas

    replicas: dict[str, list[Path]] = {}
    for directory in directories:
        for partition in _partitions(directory):
            replicas.setdefault(partition.name, []).append(partition)
    several = [found for _, found in sorted(replicas.items()) if len(found) > 1]
    compared = []
    with _progress(invocation, [directory for found in several for directory in found]) as progress:
        for found in several:
            progress.say(f"Comparing {found[0].name}")
            compared.append(compare_replicas(found, files=counted_files(progress)))
    if not compared:
        raise OptionError(
            "--compare needs the data directories of two or more brokers that have replicas of the same partition"
        )
    rows = [
        {
            "partition": each.partition,
            "directories": [str(directory) for directory in each.directories],
            "start": each.start,
            "end": each.end,
            "high_watermark": each.high_watermark if each.high_watermark >= 0 else None,
            "last_stable_offset": each.last_stable_offset,
            "log_ends": list(each.log_ends),
            "frames": each.frames,
            "same": each.difference is None,
            "difference": each.difference,
        }
        for each in compared
    ]
    print_rows(rows, _REPLICA_COLUMNS, invocation.output, name="partition")
    differences = [each.difference for each in compared if each.difference is not None]
    for difference in differences:
        sys.stderr.write(f"[CORRUPT_MESSAGE] {difference}\n")
    if differences:
        raise typer.Exit(FAILED)
    invocation.say(f"The replicas of {counted(len(compared), 'partition')} are identical.")


def _progress(invocation: Invocation, partitions: Sequence[Path]) -> Progress:
    """For work that reads all segments of ``partitions`` once."""
    total = sum(path.stat().st_size for partition in partitions for path in partition.glob(f"*{_LOG_SUFFIX}"))
    return Progress(invocation, "Verifying", total=total, unit="bytes")


def counted_files(progress: Progress) -> RealFiles:
    """The operating system's files; reading a segment advances ``progress``, however often a part of it is read."""
    from broker_runtime.log.files import RealFiles

    class CountedFiles(RealFiles):
        def __init__(self) -> None:
            self._reached: dict[int, int] = {}  # by descriptor, of segments

        def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
            descriptor = super().open(path, create=create, read_only=read_only)
            if path.suffix == _LOG_SUFFIX:
                self._reached[descriptor] = 0
            return descriptor

        def close(self, descriptor: int) -> None:
            self._reached.pop(descriptor, None)
            super().close(descriptor)

        def read(self, descriptor: int, length_bytes: int, position: int) -> bytes:
            data = super().read(descriptor, length_bytes, position)
            before, end = self._reached.get(descriptor), position + len(data)
            if before is not None and end > before:
                progress.advance(end - before)
                self._reached[descriptor] = end
            return data

    return CountedFiles()


def _partitions(directory: Path) -> list[Path]:
    """``directory`` itself if it is that of a partition, else the partitions in it."""
    if not directory.is_dir():
        raise OptionError(f"{directory}: there is no such directory")
    if _is_partition(directory):
        return [directory]
    found = sorted(path for path in directory.iterdir() if path.is_dir() and _is_partition(path))
    if not found:
        logs = _logs_of_brokers(directory)
        if logs:
            raise OptionError(f"{directory}: contains no logs; they are in {', '.join(map(str, logs))}")
        raise OptionError(f"{directory}: contains neither {_LOG_SUFFIX} files nor directories of partitions")
    return found


def _logs_of_brokers(directory: Path) -> list[Path]:
    """The data directories below a directory of `pylog up`, or of one of its brokers."""
    below = [path for path in directory.glob("broker-*/log") if path.parent.name.removeprefix("broker-").isdigit()]
    below.sort(key=lambda path: int(path.parent.name.removeprefix("broker-")))
    return [path for path in (directory / "log", *below) if path.is_dir()]


def _is_partition(directory: Path) -> bool:
    return any(_is_segment(path) for path in directory.iterdir())


def _is_segment(path: Path) -> bool:
    return path.suffix == _LOG_SUFFIX and path.stem.isdigit()


def _segments(path: Path) -> list[Path]:
    if path.is_file():
        if not _is_segment(path):
            raise OptionError(f"{path}: is not a segment; their names are 20 digits and {_LOG_SUFFIX}")
        return [path]
    return [file for partition in _partitions(path) for file in sorted(partition.iterdir()) if _is_segment(file)]


class _Dump:
    """The frames of segments, those of a partition in order, with what its transactions come to."""

    def __init__(self) -> None:
        self._walks: dict[Path, tuple[TransactionWalk, int]] = {}  # by directory, and the offset that comes next

    def open_transactions(self) -> Iterator[str]:
        """What is open at the end of the frames, a line each."""
        for directory, (walk, end) in self._walks.items():
            opened = [_open_row(each) for each in walk.open]
            yield from open_lines(directory.name, walk.last_stable_offset(end), end, opened)

    def frames(self, segment: Path) -> Iterator[dict[str, Any]]:
        """A row for each frame."""
        from broker_runtime.contract.errors import CorruptRecordError
        from broker_runtime.log.files import RealFiles
        from broker_runtime.log.inspect import base_offset_of, control_at, iterate_frames, read_identity
        from broker_runtime.log.transaction_walk import TransactionWalk, said

        directory = segment.resolve().parent
        try:
            identity = read_identity(segment.parent)
        except CorruptRecordError as error:
            sys.stderr.write(f"{error}\n")
            identity = None
        walk, next_offset = self._walks.pop(directory, (None, -1))
        if next_offset != base_offset_of(segment):
            walk, next_offset = None, base_offset_of(segment)
        if walk is None:
            walk = TransactionWalk.at(RealFiles(), directory, next_offset)
        for position, header, problem in iterate_frames(segment, identity=identity):
            row: dict[str, Any] = {"file": str(segment), "position": position}
            if header is not None:
                row |= _header_row(header)
            control = None
            if header is not None and problem is None:
                try:
                    control = control_at(segment, position, header)
                except CorruptRecordError as error:
                    problem = error.message
            if header is None or problem is not None:
                walk = None  # what is open behind it is not known
            elif walk is not None:
                problem = walk.add(header, control)
                next_offset = header.next_offset
                row["last_stable_offset"] = walk.last_stable_offset(next_offset)
            if control is not None:
                row |= {
                    "control": {"type": type(control).__name__, **_fields_of(control)},
                    "control_text": said(control),
                }
            # What contradicts the frames before is an error of the broker that wrote it; its checksums are right.
            is_sound = problem is None or control is not None
            yield {"base_offset": None, "last_stable_offset": None, **row, "crc_ok": is_sound, "error": problem}
        if walk is not None:
            self._walks[directory] = (walk, next_offset)


def open_lines(partition: str, stable: int, end: int, opened: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What an operator should know of a log in which transactions are open. ``end``: of the log."""
    if not opened:
        return
    yield f"{partition}: last stable offset {stable}, log end {end}, {counted(len(opened), 'open transaction')}"
    for each in opened:
        yield (
            f"{partition}: open since offset {each['first_offset']}: transactional id {each['transactional_id']}, "
            f"epoch {each['epoch']}, batch {each['batch_id']}, producer {each['producer_id']}"
        )


def _open_row(opened: OpenTransaction) -> dict[str, Any]:
    return {
        "transactional_id": opened.begin.transactional_id,
        "epoch": opened.begin.epoch,
        "batch_id": opened.begin.batch_id,
        "producer_id": opened.producer_id,
        "first_offset": opened.first_offset,
        "began": opened.began_ms,
    }


def _header_row(header: FrameHeader) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.frame_bytes,
        "uncompressed_bytes": header.uncompressed_bytes,
        "base_timestamp": header.base_timestamp_ms,
        "max_timestamp": header.max_timestamp_ms,
        "append_time": header.append_time_ms,
        "leader_epoch": header.leader_epoch,
        "codec": header.codec,
        "schema_id": header.schema_id,
        "chunks": header.chunk_count,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
    }


def _fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message, with those of messages in it."""
    import msgspec

    return {
        name: [_fields_of(each) for each in value] if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(message).items()
    }


def _segment_row(partition: Path, report: SegmentReport) -> dict[str, Any]:
    return {
        "partition": partition.name,
        "segment": report.path.name,
        "base_offset": report.base_offset,
        "next_offset": report.next_offset,
        "frames": report.frames,
        "records": report.records,
        "bytes": report.size_bytes,
        "max_timestamp": report.max_timestamp_ms,
        "last_stable_offset": report.last_stable_offset,
        "open": [_open_row(each) for each in report.open],
        "ok": not report.damage,
        "damage": [
            {"path": str(found.path), "position": found.position, "offset": found.offset, "reason": found.reason}
            for found in report.damage
        ],
    }
