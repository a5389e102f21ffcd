"""`pylog log dump` and `pylog log verify`: a log directory looked at without a broker; both only read.

`pylog log repair` cuts a damaged log whose broker does not run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.exit_status import FAILED
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, json_line, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicPartition
    from broker_runtime.log.inspect import SegmentReport

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
    Column("error", "ERROR", wide_only=True),
]
_SEGMENT_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("segment", "SEGMENT"),
    Column("frames", "FRAMES"),
    Column("records", "RECORDS"),
    Column("bytes", "BYTES"),
    Column("max_timestamp", "MAX-TIMESTAMP", wide_only=True),
    Column("ok", "OK"),
]
_REPLICA_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("directories", "DIRECTORIES", wide_only=True),
    Column("start", "START"),
    Column("end", "END"),
    Column("high_watermark", "HIGH-WATERMARK", wide_only=True),
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
        list[Path], typer.Argument(metavar="FILE|DIR…", help="Segments, partitions, or data directories.")
    ],
) -> None:
    """Show every frame: offset, records, bytes, timestamps, codec, whether its checksums are right."""
    rows = (row for path in paths for segment in _segments(path) for row in _frames(segment))
    if invocation.output is OutputFormat.JSONL:
        for row in rows:
            sys.stdout.write(json_line(row) + "\n")
    else:
        print_rows(list(rows), _FRAME_COLUMNS, invocation.output, name="base_offset")


def verify(
    invocation: Invocation,
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Partitions, or data directories.")],
    compare: Annotated[
        bool,
        typer.Option("--compare", help="The directories are of several brokers: are their replicas the same bytes?"),
    ] = False,
) -> None:
    """Check every byte of a log: frames, checksums, values, dense offsets, indexes, epochs. Exit 1 on damage."""
    from broker_runtime.log.inspect import verify_directory

    if compare:
        _compare(invocation, directories)
        return
    rows: list[dict[str, Any]] = []
    for directory in directories:
        for partition in _partitions(directory):
            rows += [_segment_row(partition, report) for report in verify_directory(partition)]
    print_rows(rows, _SEGMENT_COLUMNS, invocation.output, name="segment")
    damages = [damage for row in rows for damage in row["damage"]]
    for damage in damages:
        sys.stderr.write(
            f"[CORRUPT_MESSAGE] {damage['path']} at byte {damage['position']}, offset {damage['offset']}: "
            f"{damage['reason']}\n"
        )
    if damages:
        raise typer.Exit(FAILED)
    invocation.say(
        f"{counted(sum(row['records'] for row in rows), 'record')} in {counted(len(rows), 'segment')}: no damage"
    )


def repair(
    invocation: Invocation,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR/TOPIC-N", help="A partition in a stopped broker's log.dirs.")
    ],
) -> None:
    """Give up what a damaged log cannot show any more, so that its broker serves the rest.

    Only where no other broker has the partition: else start this one, and it fetches everything again by itself.
    """
    from broker_runtime.log.repair import carry_out, opened_for_repair, plan_repair

    partition = _named_partition(directory)
    with opened_for_repair(directory.resolve().parent) as opened:
        plan = plan_repair(opened, partition)
        if plan is None:
            invocation.say(f"{directory}: nothing to repair")
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
            f"This gives up {counted(plan.lost_records, 'record')} of {partition}, {plan.sound_records:,} of them "
            f"readable, and keeps offsets {plan.start} to {plan.end} (exclusive). If another broker has a replica, "
            "start this one instead: it fetches everything again.",
            str(partition),
        )
        carry_out(opened, partition, plan)
    invocation.say(f"{partition} is cut at offset {plan.end}; start its broker")


def _named_partition(directory: Path) -> TopicPartition:
    from broker_runtime.contract.model import TopicPartition

    topic, dash, number = directory.resolve().name.rpartition("-")
    if not directory.is_dir() or not dash or not number.isdigit():
        raise OptionError(f"{directory}: not the directory of a partition, as in data/flights-0")
    return TopicPartition(topic, int(number))


def _compare(invocation: Invocation, directories: list[Path]) -> None:
    from broker_runtime.log.inspect import compare_replicas

    replicas: dict[str, list[Path]] = {}
    for directory in directories:
        for partition in _partitions(directory):
            replicas.setdefault(partition.name, []).append(partition)
    compared = [compare_replicas(found) for _, found in sorted(replicas.items()) if len(found) > 1]
    if not compared:
        raise OptionError("--compare needs the data directories of two brokers or more that hold the same partition")
    rows = [
        {
            "partition": each.partition,
            "directories": [str(directory) for directory in each.directories],
            "start": each.start,
            "end": each.end,
            "high_watermark": each.high_watermark if each.high_watermark >= 0 else None,
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
    invocation.say(
        f"{counted(len(compared), 'partition')} {'is' if len(compared) == 1 else 'are'} the same on every broker, "
        "byte by byte."
    )


def _partitions(directory: Path) -> list[Path]:
    """``directory`` itself if it is a partition's, else the partitions in it."""
    if not directory.is_dir():
        raise OptionError(f"{directory}: no such directory")
    if _is_partition(directory):
        return [directory]
    found = sorted(path for path in directory.iterdir() if path.is_dir() and _is_partition(path))
    if not found:
        raise OptionError(f"{directory}: neither a partition's directory nor one of partitions: no {_LOG_SUFFIX} files")
    return found


def _is_partition(directory: Path) -> bool:
    return any(_is_segment(path) for path in directory.iterdir())


def _is_segment(path: Path) -> bool:
    return path.suffix == _LOG_SUFFIX and path.stem.isdigit()


def _segments(path: Path) -> list[Path]:
    if path.is_file():
        if not _is_segment(path):
            raise OptionError(f"{path}: no segment; their names are 20 digits and {_LOG_SUFFIX}")
        return [path]
    return [file for partition in _partitions(path) for file in sorted(partition.iterdir()) if _is_segment(file)]


def _frames(segment: Path) -> Iterator[dict[str, Any]]:
    from broker_runtime.contract.errors import CorruptRecordError
    from broker_runtime.log.inspect import iterate_frames, read_identity

    try:
        identity = read_identity(segment.parent)
    except CorruptRecordError as error:
        sys.stderr.write(f"{error}\n")
        identity = None
    for position, header, problem in iterate_frames(segment, identity=identity):
        row: dict[str, Any] = {"file": str(segment), "position": position}
        if header is not None:
            row |= {
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
        yield {"base_offset": None, **row, "crc_ok": problem is None, "error": problem}


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
        "ok": not report.damage,
        "damage": [
            {"path": str(found.path), "position": found.position, "offset": found.offset, "reason": found.reason}
            for found in report.damage
        ],
    }
