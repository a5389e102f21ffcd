"""Fills a disk with a log, frees space, opens the log again, and prints the findings as JSON.

Run by test_log_full_disk.py: ``python full_disk_appender.py <directory> enospc|fsize``. ``enospc``: the directory's
file system is small; a ballast file is removed to make room again. ``fsize``: RLIMIT_FSIZE bounds each file instead.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.log.files import RealFiles
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import append, frame, open_directory, open_log, read_frames

CONFIG = topic_settings(segment_bytes=256 << 10)


def fill(log) -> tuple[list[bytes], str]:
    """Appends until it fails; returns what was acknowledged (the producers' bytes) and the error's code."""
    acknowledged: list[bytes] = []
    try:
        while True:
            sample = frame(3, seed=len(acknowledged), size=5000)
            append(log, sample)
            acknowledged.append(sample[40:])
    except LogStorageError as error:
        return acknowledged, error.code


def refused(log) -> int:
    count = 0
    for call in (lambda: append(log, frame()), log.flush, lambda: log.read(0, max_bytes=1, upto=1)):
        try:
            call()
        except LogStorageError:
            count += 1
    return count


def main(path: Path, how: str) -> dict[str, object]:
    ballast = path / "ballast"
    ballast.write_bytes(bytes(700 << 10))
    if how == "fsize":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 << 10, resource.RLIM_INFINITY))
    directory = open_directory(RealFiles(), path / "data")
    log, other = open_log(directory, CONFIG), open_log(directory, CONFIG, partition=1)
    append(other, frame())
    acknowledged, code = fill(log)
    report: dict[str, object] = {"acknowledged": 3 * len(acknowledged), "error_code": code}
    report["offline_calls_refused"] = refused(log)
    report["other_partition_served"] = len(read_frames(other)) == 1
    directory.close(clean=False)
    ballast.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with open_directory(RealFiles(), path / "data") as directory:
        log = open_log(directory, CONFIG)
        found = [data[40:] for _, data in read_frames(log)]
        report["found_after_restart"] = log.log_end_offset
        report["missing_after_restart"] = sum(a != b for a, b in zip(acknowledged, found, strict=False))
        report["missing_after_restart"] += max(len(acknowledged) - len(found), 0)
        end = log.log_end_offset
        report["appended_after_restart"] = append(log, frame()) == end + 1
    return report


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
