"""Forks children that append to a log and kills each at a random moment; checks the log after every kill.

Run by test_log_kills.py: ``python killed_appender.py <data directory> <number of kills>``; prints a report as JSON. An
acknowledged append is a line in a pipe that the parent reads: base offset and seed. Raises `AssertionError` for any
acknowledged frame that is missing or different, any hole, any index that a rebuild does not reproduce.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import struct
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import pyarrow as pa

from broker_runtime.contract.frame import encode_frame, iter_frames, verify_frame
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.log import LogDirectory, PartitionLog
from broker_runtime.log.indexes import IndexBuilder
from broker_runtime.log.scan import walk_headers
from tests.topic_settings import topic_settings

TOPIC_ID = uuid.UUID("0b8f4c5e-3a52-4b6e-9c58-6b1b6a0f2d11")
INTERVAL_BYTES = 2048
CONFIG = topic_settings(segment_bytes=48 << 10, index_interval_bytes=INTERVAL_BYTES)
ACKNOWLEDGED = struct.Struct("<qq")  # base offset, seed


def sample(seed: int) -> bytes:
    """The frame of ``seed``, which determines its bytes."""
    rng = random.Random(seed)
    values = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 5))]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    return bytes(encode_frame(batch, TopicSchema.untyped(), timestamps=rng.randrange(1 << 40)))


def append_for_ever(path: Path, first_seed: int, pipe: int) -> None:
    """The child: opens the log, appends, flushes, acknowledges, and now and then does the schedulers' work."""
    with LogDirectory.open(path, cluster_id="kills", broker_id=1) as directory:
        log = directory.log("t", 0, TOPIC_ID, CONFIG)
        log.set_high_watermark(log.log_end_offset)
        for seed in range(first_seed, first_seed + 1_000_000):
            now_ms = time.time_ns() // 1_000_000
            result = log.append_as_leader([sample(seed)], leader_epoch=first_seed, now_ms=now_ms)
            if seed % 3 == 0:
                continue  # acknowledged with the next
            log.flush(result.next_offset)
            log.set_high_watermark(result.next_offset)
            os.write(pipe, ACKNOWLEDGED.pack(result.base_offset, seed))
            if seed % 50 == 7:
                directory.checkpoint()
            if seed % 400 == 101:
                log.delete_records(max(log.high_watermark - 300, log.log_start_offset))


def run_child(path: Path, first_seed: int, seconds: float, *, at_work: bool) -> tuple[dict[int, int], bool]:
    """Kills the child ``seconds`` after its first acknowledgement (``at_work``), or after its start.

    Returns (base offset → seed of what the child acknowledged before it was killed, whether it was at work).
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        append_for_ever(path, first_seed, writer)
        os._exit(1)
    os.close(writer)
    data = b""
    if at_work and select.select([reader], [], [], 10.0)[0]:
        data = os.read(reader, 1 << 16)
    kill_at = time.monotonic() + seconds
    while (left := kill_at - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            data += os.read(reader, 1 << 16)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, f"the child ended by itself: {status}"
    while more := os.read(reader, 1 << 16):
        data += more
    os.close(reader)
    whole = len(data) - len(data) % ACKNOWLEDGED.size
    return dict(ACKNOWLEDGED.iter_unpack(data[:whole])), bool(whole)


def frames_by_offset(log: PartitionLog) -> dict[int, bytes]:
    """All frames, verified and dense: the part of their bytes that the producer wrote."""
    found: dict[int, bytes] = {}
    offset, expected = log.log_start_offset, None
    while (piece := log.read(offset, max_bytes=1 << 20, upto=log.log_end_offset)) is not None:
        with piece:
            for header, part in iter_frames(memoryview(piece.load())):
                verify_frame(part, topic_id=TOPIC_ID.bytes, partition=0)
                assert expected in (None, header.base_offset), f"hole before {header.base_offset}"
                expected = header.next_offset
                found[header.base_offset] = bytes(part[40:])
            offset = piece.next_offset
    return found


def check_indexes(directory: Path, bases: tuple[int, ...]) -> int:
    """Every index on disk equals one built from its frames; returns how many segments were compared."""
    from broker_runtime.log.files import RealFiles
    from broker_runtime.log.open_files import OpenFiles
    from broker_runtime.log.segment import Segment

    files = RealFiles()
    for base in bases:
        segment = Segment(OpenFiles(files), directory, base, index_interval_bytes=INTERVAL_BYTES, is_closed=False)
        builder = IndexBuilder(base, INTERVAL_BYTES)
        with segment.hold() as held:
            size = files.size(held.descriptor)
            for position, header in walk_headers(
                files, held.descriptor, segment.path, position=0, end_position=size, offset=base
            ):
                builder.add(position, header)
        if base != bases[-1]:
            builder.close()
        for index, entries in (
            (segment.offset_index.file, builder.offset_entries),
            (segment.time_index.file, builder.time_entries),
        ):
            assert index.path.read_bytes() == b"".join(map(index.encode, entries)), index.path
    return len(bases)


def main(path: Path, kills: int) -> dict[str, int]:
    # Once in the parent, so that no child pays for Arrow's initialisation.
    with LogDirectory.open(path.with_name("warm"), cluster_id="kills", broker_id=1) as directory:
        log = directory.log("t", 0, TOPIC_ID, CONFIG)
        log.append_as_leader([sample(0)], leader_epoch=0, now_ms=1 << 41)
        frames_by_offset(log)
    rng = random.Random(20240229)
    acknowledged: dict[int, int] = {}
    report = {"kills": 0, "acknowledged": 0, "kills_during_work": 0, "segments": 0, "rebuilt_indexes_compared": 0}
    for number in range(kills):
        if number % 5 == 4:  # a crash in the middle of a recovery, too
            more, worked = run_child(path, number * 1_000_000, rng.random() * 0.05, at_work=False)
        else:
            more, worked = run_child(path, number * 1_000_000, rng.random() * 0.2, at_work=True)
        report["kills"] += 1
        report["kills_during_work"] += worked
        report["acknowledged"] += len(more)
        acknowledged.update(more)
        if number % 4 and number != kills - 1:
            continue  # most kills hit what the last kill left behind, which nobody had checked
        with LogDirectory.open(path, cluster_id="kills", broker_id=1) as directory:
            log = directory.log("t", 0, TOPIC_ID, CONFIG)
            found = frames_by_offset(log)
            acknowledged = {base: seed for base, seed in acknowledged.items() if base >= log.log_start_offset}
            for base, seed in acknowledged.items():
                assert found.get(base) == sample(seed)[40:], f"offset {base}, seed {seed} after kill {number}"
            bases = log.segment_base_offsets
            report["segments"] = max(report["segments"], len(bases))
            report["rebuilt_indexes_compared"] += check_indexes(path / "t-0", bases)
            directory.close(clean=number % 8 == 0)
    return report


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
