"""What a listener publishes of queries, without Spark."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest

from broker_runtime.contract.errors import SetupError
from pyspark_log.spark.query_metrics import QueryMetrics

SOURCE = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def metrics(registry: prometheus_client.CollectorRegistry) -> Iterator[QueryMetrics]:
    made = QueryMetrics(0, registry=registry)
    yield made
    made.close()


def started(run: str = "r1", name: str | None = "flights") -> Any:
    return SimpleNamespace(id="q1", runId=run, name=name)


def progress(name: str | None = "flights", rows: int = 10, end: int = 5) -> Any:
    source = SimpleNamespace(
        description=SOURCE, endOffset={"t": {"0": end}}, latestOffset={"t": {"0": 9}}, numInputRows=rows
    )
    other = SimpleNamespace(description="Rate", endOffset="5", latestOffset=None, numInputRows=0)
    return SimpleNamespace(
        progress=SimpleNamespace(
            id="q1", name=name, batchId=3, batchDuration=250, inputRowsPerSecond=2.5,
            processedRowsPerSecond=float("nan") if rows == 0 else 40.0, sources=[source, other],
        )
    )  # fmt: skip


def ended(run: str = "r1", exception: str | None = None) -> Any:
    return SimpleNamespace(id="q1", runId=run, exception=exception)


def text(metrics: QueryMetrics) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_lag_and_rates_of_a_query_are_published_while_it_runs(metrics: QueryMetrics) -> None:
    """Lag by source, rates by query; the totals stay when it ends."""
    metrics.onQueryStarted(started())
    for end in (5, 7):
        metrics.onQueryProgress(progress(end=end))
    shown = text(metrics)
    assert 'pylog_query_offsets_behind{of="max",query="flights",source="0",topics="t"} 2.0' in shown
    assert 'pylog_query_batch_duration_seconds{query="flights"} 0.25' in shown
    assert 'pylog_query_input_rows_total{query="flights"} 20.0' in shown
    metrics.onQueryTerminated(ended(exception="boom"))
    shown = text(metrics)
    assert "pylog_query_offsets_behind{" not in shown
    assert "pylog_query_batch_id{" not in shown
    assert 'pylog_query_input_rows_total{query="flights"} 20.0' in shown
    assert 'pylog_query_failures_total{query="flights"} 1.0' in shown


def test_query_without_a_name_has_its_id_and_restarts_are_one(metrics: QueryMetrics) -> None:
    """A new run of a query may begin before the end of the old one is heard of."""
    metrics.onQueryStarted(started("r1", None))
    metrics.onQueryProgress(progress(None, rows=0))
    metrics.onQueryStarted(started("r2", None))
    metrics.onQueryTerminated(ended("r1"))
    assert 'pylog_query_batch_id{query="q1"} 3.0' in text(metrics)
    metrics.onQueryTerminated(ended("r2"))
    metrics.onQueryTerminated(ended("never heard of"))
    assert "pylog_query_batch_id{" not in text(metrics)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SetupError, match=r"pyspark-log\[metrics\]"):
        QueryMetrics()
