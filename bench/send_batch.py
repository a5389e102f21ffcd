"""``Producer.send_batch``, beside a bare Flight ``DoPut`` of the same batches into a file with the same fsyncs.

The bare server (in its own process) writes what arrives and has one thread that fdatasyncs everything written since its
last time, which is a log's group commit without the log. Both sides count until everything is safe. One partition,
batches of 10,000 rows of 100 bytes. Promised: 60 %.
"""

from __future__ import annotations

import time

from bench import data
from bench.harness import Figure, at_least, paired
from bench.topics import BATCH_ROWS, megabytes_per_s
from bench.workspace import Workspace

ROWS = 4_000_000


def run(workspace: Workspace) -> list[Figure]:
    batch = data.values_batch(BATCH_ROWS)
    count = workspace.scaled(ROWS) // BATCH_ROWS
    megabytes = count * batch.nbytes / 1e6

    def bare() -> float:
        workspace.warm_memory()
        started = time.perf_counter()
        workspace.flight.put([batch] * count)
        return megabytes / (time.perf_counter() - started)

    return [
        paired(
            "send_batch, 100-byte values",
            lambda: send_batch_speed(workspace, ROWS),
            bare,
            unit="MB/s",
            peer_is="Flight DoPut of the same batches, written and fdatasynced in groups",
            rounds=workspace.rounds,
            promises=(at_least(0.6),),
        )
    ]


def send_batch_speed(workspace: Workspace, rows: int) -> float:
    """Megabytes per second into a producer, until all are acknowledged. Into a topic of its own each time: the bare
    server begins an empty file each time, too."""
    batch, count = data.values_batch(BATCH_ROWS), workspace.scaled(rows) // BATCH_ROWS
    with workspace.topic(partitions=1, prefix="send-batch") as topic:
        return megabytes_per_s(workspace.cluster, topic, batch, count, prepare=workspace.warm_memory)
