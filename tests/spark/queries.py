"""Streaming queries as the tests run them: rows are collected per micro-batch, everything has a time limit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.waiting import wait_until

LIMIT_S = 180.0


@dataclass
class Collected:
    """What a query's sink received: (micro-batch id, rows) in order, as dicts.

    A micro-batch that Spark repeats, because it was stopped before it recorded the first run, counts once, and must
    bring the same rows.
    """

    batches: list[tuple[int, list[dict]]] = field(default_factory=list)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.toArrow().to_pylist()
        again = dict(self.batches).get(batch_id)
        if again is None:
            self.batches.append((batch_id, rows))
        else:
            assert sorted(map(str, rows)) == sorted(map(str, again)), f"micro-batch {batch_id} came back different"

    @property
    def rows(self) -> list[dict]:
        return [row for _, rows in self.batches for row in rows]

    @property
    def values(self) -> list[str]:
        return [row["value"].decode() for row in self.rows]


def stream_of(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("pylog").options(**given).load()


def batch_of(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    return spark.read.format("pylog").options(**given).load()


@contextmanager
def running(
    frame: DataFrame, checkpoint: str, collected: Collected | None = None, **trigger: object
) -> Iterator[tuple[StreamingQuery, Collected]]:
    """The query while the block runs; it is stopped afterwards."""
    collected = collected or Collected()
    writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(collected.take)
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query, collected
    finally:
        query.stop()


def run_to_end(frame: DataFrame, checkpoint: str, **trigger: object) -> Collected:
    """Runs `availableNow` (or another trigger that ends) and returns the rows; raises the query's error."""
    with running(frame, checkpoint, **(trigger or {"availableNow": True})) as (query, collected):
        assert query.awaitTermination(LIMIT_S), "the query did not end"
    return collected


def wait_for_rows(query: StreamingQuery, collected: Collected, count: int) -> None:
    """Waits until the running query has output at least ``count`` rows."""

    def arrived() -> bool:
        assert query.isActive, f"the query ended: {query.exception()}"
        return len(collected.rows) >= count

    wait_until(arrived, f"{count} rows")


def wait_for_commit(checkpoint: str, batch_id: int) -> None:
    """Waits until Spark has recorded that a micro-batch is done; a query stopped before that repeats it."""
    wait_until((Path(checkpoint) / "commits" / str(batch_id)).exists, f"micro-batch {batch_id} is noted as done")


def failure_of(query: StreamingQuery) -> str:
    """Waits for the error that ends the query; returns its text."""
    wait_until(lambda: not query.isActive, "the query fails")
    error = query.exception()
    assert error is not None, f"the query ended without an error: {query.lastProgress}"
    return str(error)


def offset_in_checkpoint(checkpoint: str, batch_id: int) -> dict:
    """The first source's end offset of a micro-batch, as Spark wrote it."""
    lines = (Path(checkpoint) / "offsets" / str(batch_id)).read_text().splitlines()
    return json.loads(lines[2])


def forget(checkpoint: str, kind: str, batch_id: int) -> None:
    """Removes a micro-batch's entry from the checkpoint's ``offsets`` or ``commits``, as if Spark had died before."""
    folder = Path(checkpoint) / kind
    (folder / str(batch_id)).unlink()
    (folder / f".{batch_id}.crc").unlink(missing_ok=True)


def source_processes() -> list[int]:
    """Pids of the source processes of this test's Spark. Of a forked one it is the process between it and Spark
    (`tests.spark_python`): it may be killed, and not stopped."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"python_streaming_source_runner" in command and _is_ours(int(entry.name)):
                found.append(int(entry.name))
    return found


def _is_ours(pid: int) -> bool:
    """Whether ``pid`` descends from this process."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
        if pid == os.getpid():
            return True
    return False
