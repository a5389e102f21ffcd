"""1 to 50 GB of log in one partition: the broker's start, lookups by time, the last records.

Everything is written through a producer, in frames of 1 MiB. The values are zeros, so beyond the first GB the blocks of
closed segments that contain nothing else are given back to the file system (``fallocate --dig-holes``): the files keep
their length and every byte of their contents, and 50 GB need about 3 GB of disk. Where that is not possible (not Linux,
or a file system without holes), the disk must have room for all of it.

    start after a clean stop   until the broker serves and leads
    start after kill -9        the same; a producer had been acknowledged 100 MB just before
    offset of a time           `Admin.list_offsets` of times all over the log
    last 1,000, middle 1,000   `read` of that many records, with its connections
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.growth.partitions import add_start
from bench.growth.table import Axis, fastest_s
from bench.workspace import Workspace

_BATCH_ROWS = 10_000
_VALUE_BYTES = 100
_GB = 1_000_000_000
_TOPIC = "log"
_LOOKUPS = 50


def log_size(workspace: Workspace, axis: Axis, *, is_full: bool) -> None:
    from pyspark_log import Admin

    axis.notes.append(
        "Written through a producer, in frames of 1 MiB of zeros. The zero blocks of closed segments became holes in "
        "their files; their contents did not change."
    )
    with workspace.cluster_of("log-size") as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic(_TOPIC, partitions=1)
        written = 0
        for size_gb in (0.1, 0.2) if workspace.quick else (1, 2, 5, 10, 20, 50) if is_full else (1, 2, 5):
            began_s = time.monotonic()
            written = _grow_to(cluster, written, int(size_gb * _GB))
            print(f"  {size_gb:g} GB after {time.monotonic() - began_s:.0f} s", flush=True)
            _measure(cluster, admin, axis, size_gb)
            written += 2 * 100 * _BATCH_ROWS * _VALUE_BYTES


def _measure(cluster: Any, admin: Any, axis: Axis, size_gb: float) -> None:
    from pyspark_log import TopicPartition, read

    def add(name: str, seconds: float, floor_ms: float) -> None:
        axis.add(size_gb, name, seconds * 1e3, unit="ms", shape="flat", floor=floor_ms)

    add_start(axis, size_gb, "start after a clean stop", cluster, cluster.stop, 2)

    def killed(broker_id: int) -> None:
        _grow_to(cluster, 0, 100 * _BATCH_ROWS * _VALUE_BYTES)
        cluster.kill(broker_id)

    add_start(axis, size_gb, "start after kill -9", cluster, killed, 2)
    at = TopicPartition(_TOPIC, 0)
    limits = [admin.list_offsets({at: which})[at] for which in ("earliest", "latest", "max_timestamp")]
    end, newest_ms = limits[1].offset, limits[2].timestamp
    oldest = admin.timestamps_at({at: limits[0].offset})[at]
    assert oldest is not None
    oldest_ms = int(oldest.timestamp() * 1e3)
    times_ms = [oldest_ms + (newest_ms - oldest_ms) * number // _LOOKUPS for number in range(_LOOKUPS)]
    took_s = sorted(fastest_s(lambda: admin.list_offsets({at: time_ms}), 3) for time_ms in times_ms)  # noqa: B023
    add("offset of a time, median", took_s[len(took_s) // 2], 2)
    add("offset of a time, slowest", took_s[-1], 20)
    for name, first in (("last 1,000 records", end - 1_000), ("middle 1,000 records", end // 2)):

        def found(first: int = first) -> None:
            reader = read(_TOPIC, start=first, end=first + 1_000, bootstrap_servers=cluster.bootstrap_servers)
            assert sum(batch.num_rows for batch in reader) == 1_000

        axis.measure(size_gb, name, found, times=20, unit="ms", shape="flat", floor=10)


def _grow_to(cluster: Any, written: int, size: int) -> int:
    """Sends zeros until there are ``size`` bytes of values; returns how many there are."""
    from pyspark_log import Producer

    zeros = np.zeros(_BATCH_ROWS * _VALUE_BYTES, dtype=np.uint8)
    ends = np.arange(0, len(zeros) + 1, _VALUE_BYTES, dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), _BATCH_ROWS, [None, pa.py_buffer(ends), pa.py_buffer(zeros)])
    batch = pa.RecordBatch.from_arrays([column], names=["value"])
    while written < size:
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(min(_GB, size - written) // len(zeros)):
                producer.send_batch(_TOPIC, batch, partition=0)
                written += len(zeros)
            producer.flush(timeout=600)
        _dig_holes(cluster)
    return written


def _dig_holes(cluster: Any) -> None:
    """Closed segments give blocks of zeros back, as far as that is possible."""
    if shutil.which("fallocate") is None:
        return
    (directory,) = cluster.log_dirs(1)
    for path in sorted(directory.glob(f"{_TOPIC}-0/*.log"))[:-1]:
        if path.stat().st_blocks * 512 > path.stat().st_size // 4:
            subprocess.run(["fallocate", "--dig-holes", str(path)], check=False, capture_output=True)
