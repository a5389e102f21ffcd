"""One record, from ``send`` to its acknowledgement, beside a bare ``DoPut`` round trip with a write and an fdatasync.

Both on an open stream, one at a time, medians of 400. ``linger.ms=0``, so that the path is measured and not the time in
which a producer waits for more records. Promised: at most 2.5 times the bare one.
"""

from __future__ import annotations

import pyarrow as pa

from bench.bare_flight import CELL
from bench.harness import Figure, at_most, median_ms, paired
from bench.workspace import Workspace

RECORDS = 400


def run(workspace: Workspace) -> list[Figure]:
    cell = pa.RecordBatch.from_arrays([pa.array([bytes(448)])], schema=CELL)
    with workspace.flight.round_trips() as round_trips:
        return [
            paired(
                "one record to its acknowledgement, p50",
                lambda: acknowledged_ms(workspace),
                lambda: median_ms(lambda: round_trips.once(cell), RECORDS),
                unit="ms",
                peer_is="DoPut of one small batch on an open stream, written, fdatasynced, answered",
                rounds=workspace.rounds,
                promises=(at_most(2.5),),
                note="lower is better",
            )
        ]


def acknowledged_ms(workspace: Workspace) -> float:
    """The median time from ``send`` to the acknowledgement."""
    from pyspark_log import Producer

    value = bytes(100)
    with (
        workspace.topic(partitions=1, prefix="latency") as topic,
        Producer(workspace.cluster.bootstrap_servers, linger_ms=0) as producer,
    ):
        producer.send(topic, value).result(10)
        return median_ms(lambda: producer.send(topic, value).result(10), RECORDS)
