"""Frames and logs for the log's tests: small, and distinguishable by their content."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from broker_runtime.contract.frame import FrameHeader, encode_frame, iter_frames, verify_frame
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.settings import TopicSettings
from broker_runtime.log import LogDirectory, PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.files import FileSystem
from tests.topic_settings import topic_settings

TOPIC_ID = uuid.UUID("0b8f4c5e-3a52-4b6e-9c58-6b1b6a0f2d11")
ROOT = Path("/data")
SMALL = topic_settings(segment_bytes=8 << 10, index_interval_bytes=1 << 10)


def frame(
    rows: int = 1, *, seed: int = 0, size: int = 20, timestamps: int | Sequence[int] = 1000, **fields: int
) -> bytes:
    """One frame of untyped records whose values name ``seed`` and the row."""
    values = [f"{seed}/{row}".encode().ljust(size, b".") for row in range(rows)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    times = timestamps if isinstance(timestamps, int) else pa.array(timestamps, pa.int64())
    return bytes(encode_frame(batch, TopicSchema.untyped(), timestamps=times, **fields))


def open_directory(files: FileSystem | None = None, path: Path = ROOT, **more: object) -> LogDirectory:
    """A data directory of broker 1; in memory unless ``files`` says otherwise."""
    return LogDirectory.open(path, cluster_id="test", broker_id=1, files=files or FaultyFiles(), **more)


def open_log(directory: LogDirectory, config: TopicSettings = SMALL, partition: int = 0) -> PartitionLog:
    """A log of the topic ``t``."""
    return directory.log("t", partition, TOPIC_ID, config)


def append(log: PartitionLog, *frames: bytes, now_ms: int = 1000, leader_epoch: int = 0, commit: bool = True) -> int:
    """Appends, makes durable and, unless ``commit`` is false, committed, as a single leader does; returns the end."""
    result = log.append_as_leader(frames, leader_epoch=leader_epoch, now_ms=now_ms)
    if commit:
        log.flush(result.next_offset)
        log.set_high_watermark(result.next_offset)
    return result.next_offset


def fill(log: PartitionLog, frames: int, *, start: int = 0, rows: int = 1, commit: bool = True, size: int = 20) -> int:
    """Appends ``frames`` frames of ``rows`` records, with seeds and timestamps that rise from ``start``; returns the
    end.
    """
    end = 0
    for seed in range(start, start + frames):
        sample = frame(rows, seed=seed, timestamps=1000 + seed, size=size)
        end = append(log, sample, now_ms=1000 + seed, commit=commit)
    return end


def read_frames(
    log: PartitionLog, start: int | None = None, *, upto: int | None = None, max_bytes: int = 1 << 20
) -> list[tuple[FrameHeader, bytes]]:
    """All frames from ``start`` (the log's start) to ``upto`` (its end), every checksum verified, offsets dense."""
    offset = log.log_start_offset if start is None else start
    upto = log.log_end_offset if upto is None else upto
    found: list[tuple[FrameHeader, bytes]] = []
    while (piece := log.read(offset, max_bytes=max_bytes, upto=upto)) is not None:
        with piece:
            data = piece.load()
        assert len(data) == piece.size_bytes
        for header, part in iter_frames(memoryview(data)):
            verify_frame(part, topic_id=log.topic_id.bytes, partition=log.partition)
            assert not found or header.base_offset == found[-1][0].next_offset
            found.append((header, bytes(part)))
        assert piece.next_offset == found[-1][0].next_offset
        offset = piece.next_offset
    return found


def segment_path(base_offset: int, suffix: str = ".log", partition: int = 0, root: Path = ROOT) -> Path:
    """The path of a segment's file."""
    return root / f"t-{partition}" / f"{base_offset:020d}{suffix}"


def flip(files: FaultyFiles, path: Path, position: int) -> None:
    """Flips one bit of a file, on the device and for all who have it open."""
    inode = files._names[path]
    for content in {id(each): each for each in (inode.content, inode.durable)}.values():
        content[position] ^= 4


def index_files(files: FileSystem, root: Path = ROOT, partition: int = 0) -> dict[str, bytes]:
    """The content of all offset and time indexes of a log, by name."""
    directory = root / f"t-{partition}"
    found = {}
    for name in files.list(directory):
        if name.endswith((".index", ".timeindex")):
            descriptor = files.open(directory / name, read_only=True)
            found[name] = files.read(descriptor, 1 << 30, 0)
            files.close(descriptor)
    return found
