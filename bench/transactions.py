"""What transactions cost: a small one, aborted ones in a log, and what they changed for those that need none.

One record in a transaction (begin, send, commit), beside a plain send of one record until it is acknowledged, both
with fsync (``flush.mode=ack``) and medians of 200. Promised: at most 3 times that.

A log with 1,000 aborted transactions of one record among 4 M committed ones, beside the same records without them:
``Consumer.poll_batches``, ``pyspark_log.read`` and Spark's source. Promised: 95 %.

With ``--before PATH``, a checkout of an earlier version, also this version beside that one, each with a broker and a
Spark session of its own, in turns: how fast a producer sends records and batches (95 %), and how long one record waits
for its acknowledgement (1 ms more); how fast Spark's sink writes (promised: 95 %), a micro-batch of one row from topic
to topic (25 ms more), and how fast those three readers read a topic without transactions (97 %).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from bench import data
from bench.harness import Figure, at_least, at_most, at_most_more, median_ms, paired
from bench.source import batch_speed
from bench.topics import earliest_consumer, poll_rows
from bench.versions import MEASUREMENTS, Version
from bench.workspace import Workspace

RECORDS = 200
ABORTED = 1_000
ROWS = 4_000_000
_MORE_PAIRS = 4
"""Times as many pairs for readers without Spark: each reads for half a second, and 3 % are less than two of them differ
by."""
_BEFORE = {
    "send": ("send, 100-byte records", "M records/s", at_least(0.95)),
    "send_batch": ("send_batch, 100-byte values", "MB/s", at_least(0.95)),
    "acknowledged": ("one record to its acknowledgement, p50", "ms", at_most_more(1, "ms")),
    "sink": ("sink, 100-byte rows", "M rows/s", at_least(0.95)),
    "typed_sink": ("sink, 5 typed columns", "M rows/s", at_least(0.95)),
    "micro_batch": ("micro-batch of 1 row, topic to topic", "ms", at_most_more(25, "ms")),
    "poll": ("poll_batches", "M rows/s", at_least(0.97)),
    "read": ("read", "M rows/s", at_least(0.97)),
    "source": ("Spark source, batch", "M rows/s", at_least(0.97)),
}


def run(workspace: Workspace) -> Iterator[Figure]:
    yield _one_record(workspace)
    yield from _aborted(workspace)
    if workspace.before is not None:
        yield from _against(workspace, workspace.before)


def _one_record(workspace: Workspace) -> Figure:
    from pyspark_log import Producer

    value, servers = bytes(100), workspace.cluster.bootstrap_servers
    with (
        workspace.topic(partitions=1, prefix="transaction") as topic,
        Producer(servers, linger_ms=0) as plain,
        Producer(servers, linger_ms=0, transactional_id=f"bench-{topic}") as transactional,
    ):

        def transaction() -> None:
            transactional.begin_transaction()
            transactional.send(topic, value)
            transactional.commit_transaction()

        return paired(
            "a transaction of one record, p50",
            lambda: median_ms(transaction, RECORDS),
            lambda: median_ms(lambda: plain.send(topic, value).result(10), RECORDS),
            unit="ms",
            peer_is="a plain send of one record until it is acknowledged, fsynced",
            rounds=workspace.rounds,
            promises=(at_most(3),),
            note="lower is better",
        )


def _aborted(workspace: Workspace) -> Iterator[Figure]:
    rows, aborted = workspace.scaled(ROWS), workspace.scaled(ABORTED)
    with (
        workspace.topic(partitions=1, prefix="aborted") as with_aborted,
        workspace.topic(partitions=1, prefix="plain") as plain,
    ):
        batch = data.values_batch(rows // aborted)
        _fill(workspace, with_aborted, batch, aborted, aborts=True)
        _fill(workspace, plain, batch, aborted, aborts=False)
        readers = {"poll_batches": poll_speed, "read": read_speed, "Spark source, batch": spark_speed}
        for name, speed in readers.items():

            def once(topic: str, speed: Callable[[Workspace, str, int], float] = speed) -> float:
                return speed(workspace, topic, rows)

            yield paired(
                f"{name}, {aborted:,} aborted transactions in the log",
                lambda once=once: once(with_aborted),
                lambda once=once: once(plain),
                unit="M rows/s",
                peer_is="the same records without them",
                rounds=workspace.rounds,
                promises=(at_least(0.95),),
                note=f"{rows:,} records in {aborted:,} frames; each transaction adds three",
            )


def _fill(workspace: Workspace, topic: str, batch: pa.RecordBatch, times: int, *, aborts: bool) -> None:
    """Sends ``batch`` so often; ``aborts``: after each an aborted transaction of one record. Returns when nothing is
    open any more."""
    from pyspark_log import Producer

    servers, row = workspace.cluster.bootstrap_servers, batch.slice(0, 1)
    with ExitStack() as stack:
        plain = stack.enter_context(Producer(servers, linger_ms=0))
        transactional = stack.enter_context(Producer(servers, transactional_id=f"bench-{topic}")) if aborts else None
        for _ in range(times):
            plain.send_batch(topic, batch, partition=0).result(60)
            if transactional is not None:
                transactional.begin_transaction()
                transactional.send_batch(topic, row, partition=0).result(60)
                transactional.abort_transaction()
    deadline = time.monotonic() + 60
    while workspace.admin.list_open_transactions()[0]:
        assert time.monotonic() < deadline, "transactions are open for a minute after they were decided"
        time.sleep(0.1)


def _against(workspace: Workspace, checkout: Path) -> Iterator[Figure]:
    with Version(None, workspace) as now, Version(checkout, workspace) as before:
        for what in MEASUREMENTS:
            name, unit, promise = _BEFORE[what]
            is_difference = unit == "ms"
            yield paired(
                f"{name}, against an earlier version",
                lambda what=what: now.measure(what),
                lambda what=what: before.measure(what),
                unit=unit,
                peer_is=f"{checkout.name}, with a broker and a Spark session of its own",
                rounds=workspace.rounds * (_MORE_PAIRS if what in {"poll", "read", "acknowledged"} else 1),
                warmups=2 if "sink" in what else 1,
                promises=(promise,),
                note="lower is better" if is_difference else "",
                is_difference=is_difference,
            )


def poll_speed(workspace: Workspace, topic: str, rows: int) -> float:
    """Millions of rows per second out of a consumer."""
    workspace.warm_logs()
    with earliest_consumer(workspace.cluster, topic) as consumer:
        started = time.perf_counter()
        seen = poll_rows(consumer, rows)
        took = time.perf_counter() - started
    assert seen == rows, f"{seen:,} rows are in the log, {rows:,} were written"
    return rows / 1e6 / took


def read_speed(workspace: Workspace, topic: str, rows: int) -> float:
    """Millions of rows per second out of `pyspark_log.read`."""
    from pyspark_log import read

    workspace.warm_logs()
    started = time.perf_counter()
    seen = sum(
        batch.num_rows
        for batch in read(topic, columns=["value"], bootstrap_servers=workspace.cluster.bootstrap_servers)
    )
    took = time.perf_counter() - started
    assert seen == rows, f"{seen:,} rows are in the log, {rows:,} were written"
    return rows / 1e6 / took


def spark_speed(workspace: Workspace, topic: str, rows: int) -> float:
    """Millions of rows per second of Spark's batch read into ``noop``."""
    options = {"subscribe": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
    return batch_speed(workspace, "pylog", options | {"startingOffsets": "earliest"}, rows)
