"""How far a query is behind, from progress as Spark 4.2 reported it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from broker_runtime.contract.errors import InvalidRequestError
from pyspark_log import OffsetsBehind, offsets_behind

_STREAM = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow"
# A union of two pylog sources with maxOffsetsPerTrigger and Spark's rate source, its first micro-batch.
PROGRESS: dict[str, Any] = {
    "id": "bdc23fe9-e490-45f7-8071-4cd89642e8a6", "runId": "cddadf64-756e-421d-9bde-9ded97cfe3a8", "name": None,
    "timestamp": "2026-11-22T03:10:32.448Z", "batchId": 0, "batchDuration": 9869, "numInputRows": 4,
    "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.4,
    "durationMs": {"addBatch": 8598, "commitOffsets": 68, "getBatch": 8, "latestOffset": 32, "queryPlanning": 857,
                   "triggerExecution": 9855, "walCommit": 241},
    "stateOperators": [],
    "sources": [
        {"description": f"{_STREAM}@4192f331", "startOffset": None, "endOffset": {"a": {"0": 2, "1": 1}},
         "latestOffset": {"a": {"0": 5, "1": 9}}, "numInputRows": 3, "inputRowsPerSecond": 0.0,
         "processedRowsPerSecond": 0.3},
        {"description": f"{_STREAM}@5d1fd314", "startOffset": None, "endOffset": {"b": {"0": 4}},
         "latestOffset": {"b": {"0": 4}}, "numInputRows": 1, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.1},
        {"description": "RateStreamV2[rowsPerSecond=1, rampUpTimeSeconds=0, numPartitions=default",
         "startOffset": None, "endOffset": 0, "latestOffset": 0, "numInputRows": 0, "inputRowsPerSecond": 0.0,
         "processedRowsPerSecond": 0.0},
    ],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}  # fmt: skip
A = OffsetsBehind(topics=("a",), partitions=2, min=3, max=8, avg=5.5)
B = OffsetsBehind(topics=("b",), partitions=1, min=0, max=0, avg=0.0)


def of_source(**changes: object) -> list[OffsetsBehind]:
    """The figures of a query with only the first source, whose fields are changed."""
    progress = copy.deepcopy(PROGRESS)
    progress["sources"] = [{**progress["sources"][0], **changes}]
    return offsets_behind(progress)


@pytest.mark.parametrize(
    "given",
    [PROGRESS, json.dumps(PROGRESS), json.dumps(PROGRESS).encode(), StreamingQueryProgress.fromJson(PROGRESS)],
    ids=["mapping", "text", "bytes", "object"],
)
def test_offsets_behind_gives_the_three_figures_of_each_pylog_source(given: Any) -> None:
    """S9: min, max and mean over the partitions are returned for any form of progress; other sources are left out."""
    assert offsets_behind(given) == [A, B]


def test_offsets_behind_has_the_names_and_texts_of_kafkas_metrics() -> None:
    """S9: dashboards for Kafka's source can read them."""
    assert A.as_metrics() == {
        "minOffsetsBehindLatest": "3", "maxOffsetsBehindLatest": "8", "avgOffsetsBehindLatest": "5.5",
    }  # fmt: skip


def test_offsets_behind_counts_a_partition_unknown_to_the_batch_from_its_beginning() -> None:
    """All records of a partition that was added later are still ahead of the query."""
    assert of_source(latestOffset={"a": {"0": 2, "1": 1, "2": 7}})[0].max == 7


def test_offsets_behind_is_never_negative() -> None:
    """A recreated topic ends below the checkpoint."""
    assert of_source(latestOffset={"a": {"0": 1, "1": 1}})[0].min == 0


@pytest.mark.parametrize("nothing", [None, {}, "", "null", "not json", 7, {"a": 7}])
def test_offsets_behind_omits_sources_that_have_not_read_yet(nothing: object) -> None:
    """Before the first micro-batch a source has no offsets; a source with other offsets is not pylog's."""
    assert of_source(latestOffset=nothing) == []
    assert of_source(endOffset=nothing) == ([] if nothing != {} else of_source(endOffset={}))


@pytest.mark.parametrize("given", [None, "", "[]", 7, {}, {"sources": None}])
def test_offsets_behind_refuses_an_invalid_progress(given: object) -> None:
    """A query that has just begun has None as its last progress."""
    with pytest.raises(InvalidRequestError, match=r"lastProgress|JSON"):
        offsets_behind(given)


def test_offsets_behind_needs_no_pyspark() -> None:
    """A dashboard has the JSON, not Spark."""
    code = "import sys; from pyspark_log import offsets_behind; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
