"""``Consumer.poll_batches``, beside a bare Flight ``DoGet`` of as many bytes in cells as large as pylog's answers.

The bare server sends from memory, in Arrow's C++; pylog's broker reads its files, and pylog's client checks every
checksum and validates every batch. One partition, 4 M rows of 100 bytes. Promised: 60 %.
"""

from __future__ import annotations

import time

from bench import data
from bench.harness import Figure, at_least, paired
from bench.topics import BATCH_ROWS, earliest_consumer, fill, poll_rows
from bench.workspace import Workspace

ROWS = 4_000_000
CELL_BYTES = 1 << 20


def run(workspace: Workspace) -> list[Figure]:
    rows = workspace.scaled(ROWS)
    batch = data.values_batch(BATCH_ROWS)
    megabytes = rows * batch.nbytes / BATCH_ROWS / 1e6

    def bare() -> float:
        started = time.perf_counter()
        read = workspace.flight.get(int(megabytes * 1e6) // CELL_BYTES, CELL_BYTES)
        return read / 1e6 / (time.perf_counter() - started)

    with workspace.topic(partitions=1, prefix="poll") as topic:
        fill(workspace.cluster, topic, batch, rows=rows, partitions=1)

        def polled() -> float:
            with earliest_consumer(workspace.cluster, topic) as consumer:
                started = time.perf_counter()
                poll_rows(consumer, rows)
                return megabytes / (time.perf_counter() - started)

        return [
            paired(
                "poll_batches, 100-byte values",
                polled,
                bare,
                unit="MB/s",
                peer_is=f"Flight DoGet from memory, {CELL_BYTES >> 20} MiB per batch",
                rounds=workspace.rounds,
                promises=(at_least(0.6),),
            )
        ]
