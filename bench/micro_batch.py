"""A micro-batch of one row: Spark's own median ``triggerExecution`` over 40 of them, beside a bare Python source's.

Both are limited to one row per trigger over 40 rows (`availableNow`), so each micro-batch plans, runs one task of one
row and writes its checkpoint. The only promise is that the figure is stated; Kafka's connector needs 640–706 ms where a
bare Python source needs 93.
"""

from __future__ import annotations

import statistics

from bench import bare_spark, data
from bench.harness import Figure, paired
from bench.source import micro_batches
from bench.topics import fill
from bench.workspace import Workspace

MICRO_BATCHES = 40


def run(workspace: Workspace) -> list[Figure]:
    rows = 10 if workspace.quick else MICRO_BATCHES
    with workspace.topic(partitions=1, prefix="micro-batch") as topic:
        fill(workspace.cluster, topic, data.values_batch(1), rows=rows, partitions=1)
        pylog = {"subscribe": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
        pylog |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
        bare = {"shape": "kafka", "rows": str(rows), "batchRows": "1", "rowsPerTrigger": "1"}
        return [
            paired(
                "micro-batch of 1 row",
                lambda: median_micro_batch_ms(workspace, "pylog", pylog, rows),
                lambda: median_micro_batch_ms(workspace, bare_spark.SOURCE, bare, rows),
                unit="ms",
                peer_is="a bare Python source, 1 row per trigger",
                rounds=min(3, workspace.rounds),
                note="lower is better",
            )
        ]


def median_micro_batch_ms(workspace: Workspace, source: str, options: dict[str, str], rows: int) -> float:
    """The median of a query's micro-batches, into ``noop``."""
    # The first micro-batch starts the source's workers.
    return statistics.median([took for took, _ in micro_batches(workspace, source, options, rows)][1:])
