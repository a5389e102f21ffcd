"""The option ``columns``: 4 M rows of 20 eight-byte columns, one column selected, compared with all of them.

Promised: at least 5 times as fast. The peer is pylog itself; the comparison shows that unselected columns stay at the
broker. What Spark alone gains from fewer columns is the second figure: a bare source of the one column beside a bare
source of the twenty.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import bare_spark, data
from bench.harness import Figure, at_least, paired
from bench.source import PARTITIONS, batch_speed
from bench.topics import BATCH_ROWS, fill
from bench.workspace import Workspace

ROWS = 4_000_000


def run(workspace: Workspace) -> Iterator[Figure]:
    rows = workspace.scaled(ROWS)
    with workspace.topic(partitions=PARTITIONS, schema=data.WIDE, prefix="columns") as topic:
        fill(workspace.cluster, topic, data.wide_batch(BATCH_ROWS), rows=rows, partitions=PARTITIONS)
        every = {"subscribe": topic, "pylog.bootstrap.servers": workspace.cluster.bootstrap_servers}
        one = {**every, "columns": data.WIDE_COLUMN}
        shared = {"unit": "M rows/s", "rounds": workspace.rounds, "warmups": 2}
        yield paired(
            "source, 1 of 20 columns",
            lambda: batch_speed(workspace, "pylog", one, rows),
            lambda: batch_speed(workspace, "pylog", every, rows),
            peer_is="all 20 columns of the same topic",
            promises=(at_least(5),),
            **shared,
        )
    bare = {"rows": str(rows), "batchRows": str(BATCH_ROWS)}
    yield paired(
        "bare source, 1 column and 20",
        lambda: batch_speed(workspace, bare_spark.SOURCE, {**bare, "shape": "one"}, rows),
        lambda: batch_speed(workspace, bare_spark.SOURCE, {**bare, "shape": "wide"}, rows),
        peer_is="a bare source of 20 columns; no pylog in either, to see Spark's own share",
        **shared,
    )
