"""Threads read a log while others truncate it, delete its records, apply retention and recreate it.

Run by test_log_readers.py: ``python shrinking_reader.py <data directory>``; prints a report as JSON. Each value names
its frame, so a reader sees whether it was served bytes of another.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from broker_runtime.contract.errors import LogStorageError, NotLeaderOrFollowerError, OffsetOutOfRangeError
from broker_runtime.contract.frame import iter_frames, verify_frame
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import LogDirectory, LogSlice, PartitionLog
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import append, frame

CONFIG = topic_settings(segment_bytes=64 << 10, index_interval_bytes=1024, retention_ms=0)
LONGEST_S = 90.0


class Shared:
    """What the threads share: the current log, whether to stop, what was observed."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.stop = threading.Event()
        self.log: PartitionLog = self.make()
        self.report = {"reads": 0, "held_reads": 0, "truncations": 0, "deletions": 0, "retentions": 0, "recreations": 0}
        self.errors: list[str] = []

    def saw_enough(self) -> bool:
        """Whether each event happened often enough to have met the others."""
        reads = self.report["reads"] > 1000 and self.report["held_reads"] > 100
        return reads and all(
            self.report[what] > 5 for what in ("truncations", "deletions", "retentions", "recreations")
        )

    def make(self) -> PartitionLog:
        log = self.directory.log("t", 0, uuid.uuid4(), CONFIG)
        log.set_high_watermark(log.log_end_offset)
        return log


def read(shared: Shared, seed: int) -> None:
    """Reads from random offsets; keeps some slices for a while before it loads them."""
    rng = random.Random(seed)
    held: list[tuple[PartitionLog, LogSlice]] = []
    while not shared.stop.is_set():
        log = shared.log
        try:
            start, end = log.log_start_offset, log.log_end_offset
            if end - start < 10:
                continue
            piece = log.read(rng.randrange(start, end), max_bytes=rng.choice([1, 4096, 1 << 20]), upto=end)
        except (OffsetOutOfRangeError, NotLeaderOrFollowerError):
            continue  # it was shortened or deleted between the two calls
        if piece is None:
            continue
        if rng.random() < 0.3 and len(held) < 20:
            held.append((log, piece))
            continue
        check(shared, log, piece, "reads")
        if held and rng.random() < 0.1:
            check(shared, *held.pop(rng.randrange(len(held))), "held_reads")
    for log, piece in held:
        check(shared, log, piece, "held_reads")


def check(shared: Shared, log: PartitionLog, piece: LogSlice, what: str) -> None:
    """The slice's frames are whole, dense, this log's, and those it announced."""
    with piece:
        data = piece.load()
    expected = piece.start_offset
    for header, part in iter_frames(memoryview(data)):
        verify_frame(part, topic_id=log.topic_id.bytes, partition=0)
        if header.base_offset != expected:
            shared.errors.append(f"{what}: {header.base_offset} where {expected} was due")
        expected = header.next_offset
    if expected != piece.next_offset:
        shared.errors.append(f"{what}: ended at {expected}, not {piece.next_offset}")
    shared.report[what] += 1


def shorten(shared: Shared) -> None:
    """Appends, and applies every operation that removes bytes from the log."""
    rng = random.Random(1)
    while not shared.stop.is_set():
        log = shared.log
        append(log, *(frame(3, seed=rng.randrange(1 << 30), size=rng.randrange(2000)) for _ in range(30)), now_ms=1000)
        start, end = log.log_start_offset, log.log_end_offset
        action = rng.random()
        if action < 0.35:
            log.truncate_to(max(start, end - rng.randrange(120)))
            shared.report["truncations"] += 1
        elif action < 0.6:
            log.delete_records(min(start + rng.randrange(150), end))
            shared.report["deletions"] += 1
        elif action < 0.75:
            shared.report["retentions"] += bool(log.apply_retention(10_000))
        elif action < 0.85:
            shared.directory.delete(TopicPartition("t", 0))
            shared.log = shared.make()
            shared.report["recreations"] += 1


def guarded(shared: Shared, work: object, *arguments: object) -> None:
    try:
        work(*arguments)  # type: ignore[operator]
    except (LogStorageError, ValueError, OSError, AssertionError) as error:
        shared.errors.append(f"{type(error).__name__}: {error}")
        shared.stop.set()


def main(path: Path) -> dict[str, object]:
    with LogDirectory.open(path, cluster_id="readers", broker_id=1, max_open_files=8) as directory:
        shared = Shared(directory)
        works = [(read, shared, seed) for seed in range(3)] + [(shorten, shared)]
        threads = [threading.Thread(target=guarded, args=(shared, *work)) for work in works]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + LONGEST_S
        while not shared.saw_enough() and time.monotonic() < deadline and not shared.stop.wait(0.05):
            pass
        shared.stop.set()
        for thread in threads:
            thread.join(30)
        return {**shared.report, "errors": shared.errors}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
