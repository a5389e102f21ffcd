"""``Producer.send`` of 100-byte records, beside a bare loop that appends to lists and builds Arrow arrays of them.

The loop is the minimum for any Python producer: a call per record would already be more. The ratio is promised to be
stated; the aim is a third of the loop, and 0.7 M records/s. pylog's time ends when every record is acknowledged and
fdatasynced.
"""

from __future__ import annotations

import time

import pyarrow as pa

from bench.harness import Figure, Promise, at_least, paired
from bench.workspace import Workspace

RECORDS = 1_000_000
RECORDS_PER_ARRAY = 10_000
AIM_M_PER_S = 0.7


def run(workspace: Workspace) -> list[Figure]:
    records = workspace.scaled(RECORDS)
    value = bytes(100)

    def bare() -> float:
        started = time.perf_counter()
        values: list[bytes] = []
        timestamps: list[int] = []
        arrays = []
        for number in range(records):
            values.append(value)
            timestamps.append(number)
            if len(values) == RECORDS_PER_ARRAY:
                arrays.append((pa.array(values, pa.binary()), pa.array(timestamps, pa.int64())))
                values.clear()
                timestamps.clear()
        return records / 1e6 / (time.perf_counter() - started)

    figure = paired(
        "send, 100-byte records",
        lambda: send_speed(workspace, records),
        bare,
        unit="M records/s",
        peer_is="a loop that appends to lists and makes Arrow arrays",
        rounds=workspace.rounds,
        promises=(at_least(0.33),),
    )
    absolute = Figure(
        name="send, 100-byte records, absolute",
        unit="M records/s",
        ours=figure.ours,
        judged=figure.ours,
        promises=(Promise(text=f"≥ {AIM_M_PER_S} M/s", at_least=AIM_M_PER_S),),
    )
    return [figure, absolute]


def send_speed(workspace: Workspace, records: int) -> float:
    """Millions of records per second into a producer, until all are acknowledged."""
    from pyspark_log import Producer

    value = bytes(100)
    with (
        workspace.topic(partitions=2, prefix="send") as topic,
        Producer(workspace.cluster.bootstrap_servers) as producer,
    ):
        producer.send(topic, value).result(60)
        started = time.perf_counter()
        for _ in range(records):
            producer.send(topic, value)
        producer.flush(timeout=300)
        return records / 1e6 / (time.perf_counter() - started)
