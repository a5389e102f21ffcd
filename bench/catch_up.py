"""A follower that is 2 GB behind catches up, compared with a plain ``DoGet`` of the same bytes; and its effect on
producers.

Two brokers, a topic of two partitions that broker 1 leads and broker 2 follows. Broker 2 is stopped, 2 GB are written,
broker 2 starts. Its speed is the growth of its log files from the first byte until they are complete. The peer reads
the same frames from the same broker over ``DoGet`` and drops them. Meanwhile a producer sends as fast as it can to a
topic that only broker 1 has, so both run under the same load; its throughput then is compared with that by itself.

The promised ceiling is that plain ``DoGet``: same bytes, same files in the page cache, one process to another, nothing
written. The follower has to verify, write and fsync besides. The cost of that alone is shown beside it, without a
promise: a second peer writes what it gets to a file and, like the follower, calls fdatasync every 10 MiB and releases
the memory. Memory that a virtual machine has not touched lately can cost ten times as much to fill as other memory, so
both writers find the memory of a file that was removed just then.

Promised: half the speed of ``DoGet``; 70 % of the producer's throughput.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from bench import data
from bench.harness import Figure, Promise, at_least
from bench.topics import BATCH_ROWS, fill, temporary_topic
from bench.workspace import Workspace
from broker_runtime.contract.flight import CONNECTION_OPTIONS, read_ticket
from broker_runtime.contract.streams import ReadRequest

ROWS = 20_000_000
PARTITIONS = 2
LEADER, FOLLOWER = 1, 2
_LIMIT_S = 300.0
_LOOK_S = 0.02
_ALONE_S = 5.0
_SYNC_BYTES = 10 << 20


def run(workspace: Workspace) -> Iterator[Figure]:
    from pyspark_log import Admin

    rows = workspace.scaled(ROWS)
    batch = data.values_batch(BATCH_ROWS)
    pairs: list[tuple[float, float]] = []
    written: list[tuple[float, float]] = []
    sent: list[tuple[float, float]] = []
    with (
        workspace.cluster_of("catch-up", brokers=2) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        temporary_topic(admin, prefix="beside", replica_assignment=((LEADER,),)) as beside,
    ):
        for _ in range(min(workspace.rounds, 3)):
            assignment = ((LEADER, FOLLOWER),) * PARTITIONS
            with temporary_topic(admin, prefix="behind", replica_assignment=assignment) as topic:
                cluster.stop(FOLLOWER)
                fill(cluster, topic, batch, rows=rows, partitions=PARTITIONS)
                size_bytes = _log_bytes(cluster, LEADER, topic)
                with Sending(cluster, beside, batch) as sending:
                    time.sleep(_ALONE_S / 2)
                    alone, _ = sending.during(lambda: time.sleep(_ALONE_S))
                    _, get_s = sending.during(lambda: _get(cluster, topic))
                    _, write_s = sending.during(lambda: _get_and_write(cluster, topic, workspace.directory))
                    while_it_fetches, fetch_s = sending.during(lambda: _catch_up(cluster, topic, workspace.directory))
                pairs.append((size_bytes / 1e6 / fetch_s, size_bytes / 1e6 / get_s))
                written.append((size_bytes / 1e6 / fetch_s, size_bytes / 1e6 / write_s))
                sent.append((while_it_fetches, alone))
                cluster.wait_until_ready()
    what = f"a follower {size_bytes / 1e9:.1f} GB behind catches up"
    yield _figure(what, pairs, "DoGet of the same frames, dropped", at_least(0.5))
    yield _figure(f"{what}, against the disk", written, "DoGet of the same frames, written and fdatasynced")
    yield _figure("a producer meanwhile", sent, "the same by itself", at_least(0.7))


def _figure(name: str, pairs: list[tuple[float, float]], peer_is: str, *promises: Promise) -> Figure:
    ratios = [ours / peer for ours, peer in pairs]
    return Figure(
        name=name,
        unit="MB/s",
        ours=statistics.median(ours for ours, _ in pairs),
        peer=statistics.median(peer for _, peer in pairs),
        peer_is=peer_is,
        judged=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        promises=promises,
        pairs=pairs,
    )


def _get(cluster: Any, topic: str, take: Callable[[Any], None] = lambda buffer: None) -> float:
    """Reads the topic's frames from their leader and passes each batch's to ``take``; returns the seconds that took."""
    started_s = time.monotonic()
    client = flight.connect(f"grpc://{cluster.bootstrap_servers.split(',')[0]}", generic_options=CONNECTION_OPTIONS)
    try:
        for partition in range(PARTITIONS):
            for chunk in client.do_get(read_ticket(ReadRequest(topic=topic, partition=partition, start=0))):
                take(chunk.data.column(0).buffers()[2])
    finally:
        client.close()
    return time.monotonic() - started_s


def _get_and_write(cluster: Any, topic: str, directory: Path) -> float:
    """Like `_get`, into a file."""
    touched = _touch(directory, _log_bytes(cluster, LEADER, topic))
    path = directory / "got"
    with path.open("wb", buffering=0) as file:
        unsynced = 0

        def write(buffer: Any) -> None:
            nonlocal unsynced
            file.write(buffer)
            unsynced += buffer.size
            if unsynced >= _SYNC_BYTES:
                os.fdatasync(file.fileno())
                if hasattr(os, "posix_fadvise"):  # not on macOS
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                unsynced = 0

        touched.unlink()
        seconds = _get(cluster, topic, write)
    path.unlink()
    return seconds


def _catch_up(cluster: Any, topic: str, directory: Path) -> float:
    """Starts the follower; returns the seconds from its first fetched byte until it has all."""
    size_bytes = _log_bytes(cluster, LEADER, topic)
    before_bytes = _log_bytes(cluster, FOLLOWER, topic)
    touched = _touch(directory, size_bytes)
    starting = threading.Thread(target=cluster.start, args=(FOLLOWER,))
    starting.start()
    began_s, deadline_s = 0.0, time.monotonic() + _LIMIT_S
    while (has_bytes := _log_bytes(cluster, FOLLOWER, topic)) < size_bytes:
        if has_bytes > before_bytes and not began_s:
            began_s, began_bytes = time.monotonic(), has_bytes
            touched.unlink()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the follower has {has_bytes} of {size_bytes} bytes after {_LIMIT_S:g} s")
        time.sleep(_LOOK_S)
    seconds = time.monotonic() - began_s
    starting.join(_LIMIT_S)
    # Bytes that were there at the first look count as not fetched.
    return seconds * size_bytes / (size_bytes - began_bytes)


def _touch(directory: Path, size_bytes: int) -> Path:
    """Writes a file of that size, in memory and on disk."""
    path = directory / "touched"
    block = bytes(_SYNC_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size_bytes // len(block))):
            file.write(block)
        os.fsync(file.fileno())
    return path


def _log_bytes(cluster: Any, broker_id: int, topic: str) -> int:
    directories: list[Path] = cluster.log_dirs(broker_id)
    return sum(file.stat().st_size for path in directories for file in path.glob(f"{topic}-*/*.log"))


class Sending:
    """A producer that sends the same batch repeatedly; a context manager."""

    def __init__(self, cluster: Any, topic: str, batch: pa.RecordBatch) -> None:
        self._servers = cluster.bootstrap_servers
        self._topic = topic
        self._batch = batch
        self._acknowledged_bytes = 0
        self._error: Exception | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="sending", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over = True
        self._thread.join(_LIMIT_S)

    def during(self, work: Any) -> tuple[float, float]:
        """Calls ``work``; returns the MB/s acknowledged meanwhile, and the seconds that ``work`` returned."""
        started_s, before = time.monotonic(), self._acknowledged_bytes
        result = work()
        megabytes = (self._acknowledged_bytes - before) / 1e6
        if self._error is not None:
            raise self._error
        return megabytes / (time.monotonic() - started_s), result

    def _run(self) -> None:
        from pyspark_log import Producer

        try:
            with Producer(self._servers, buffer_memory="16MiB") as producer:
                while not self._is_over:
                    future = producer.send_batch(self._topic, self._batch)
                    future.add_done_callback(self._count)
        except Exception as error:  # noqa: BLE001 - raised again in the measuring thread
            self._error = error

    def _count(self, future: Any) -> None:
        if future.exception() is None:
            self._acknowledged_bytes += self._batch.nbytes
