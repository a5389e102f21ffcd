"""`QueryMetrics`: a listener of Spark's streaming queries that publishes lag and rates as Prometheus metrics.

    pylog_query_offsets_behind{query,source,topics,of}  of: min, max, avg over the source's partitions
    pylog_query_input_rows_per_second{query}            pylog_query_processed_rows_per_second{query}
    pylog_query_batch_duration_seconds{query}           pylog_query_batch_id{query}
    pylog_query_input_rows_total{query}                 since the listener was added
    pylog_query_failures_total{query}                   queries that ended with an error

``query`` is the query's name, or its id where it has none. The figures of a query that has ended are removed, except
the totals.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from broker_runtime.contract.errors import SetupError
from pyspark_log.spark.offsets_behind import offsets_behind

_PREFIX = "pylog_query_"


class QueryMetrics(StreamingQueryListener):
    """``spark.streams.addListener(pyspark_log.QueryMetrics(port=9108))``. Thread-safe: Spark has threads of its own."""

    def __init__(self, port: int | None = None, *, address: str = "127.0.0.1", registry: Any = None) -> None:
        """``port``: of the HTTP server that gives the metrics away (0: a free one, `port`); None: no server, for
        programs that have one. ``registry``: prometheus_client's, by default its own.

        Raises `SetupError` without prometheus_client (``pip install 'pyspark-log[metrics]'``), `OSError` if the port is
        taken.
        """
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise SetupError("QueryMetrics needs prometheus_client: pip install 'pyspark-log[metrics]'") from error
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}  # of the queries that run, by run id
        self._behind: dict[str, set[tuple[str, ...]]] = {}  # the labels that each of them has
        registry = prometheus.REGISTRY if registry is None else registry

        def gauge(name: str, text: str, *labels: str) -> Any:
            return prometheus.Gauge(_PREFIX + name, text, ("query", *labels), registry=registry)

        self._offsets_behind = gauge(
            "offsets_behind",
            "Records beyond the last micro-batch, over a source's partitions",
            "source",
            "topics",
            "of",
        )
        self._of_progress = {
            "inputRowsPerSecond": gauge("input_rows_per_second", "Rows that came in"),
            "processedRowsPerSecond": gauge("processed_rows_per_second", "Rows that were processed"),
            "batchId": gauge("batch_id", "The last micro-batch"),
            "batchDuration": gauge("batch_duration_seconds", "How long it took"),
        }
        self._rows = prometheus.Counter(_PREFIX + "input_rows_total", "Rows read", ("query",), registry=registry)
        self._failures = prometheus.Counter(
            _PREFIX + "failures_total", "Queries that ended with an error", ("query",), registry=registry
        )
        self.port = port
        """Where the metrics are; None: nowhere but in the registry."""
        self._server: Any = None
        if port is not None:
            self._server, self._thread = prometheus.start_http_server(port, address, registry)
            self.port = self._server.server_address[1]

    def close(self) -> None:
        """Ends the server. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Spark calls it."""
        with self._lock:
            self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark calls it after each micro-batch, and about every 10 s while there is nothing to do."""
        progress = event.progress
        query = progress.name or str(progress.id)
        with self._lock:
            for field, gauge in self._of_progress.items():
                value = getattr(progress, field)
                gauge.labels(query).set((value or 0) / 1000 if field == "batchDuration" else value or 0)
            self._rows.labels(query).inc(sum(source.numInputRows or 0 for source in progress.sources))
            known = self._behind.setdefault(query, set())
            for labels, value in _behind(progress):
                known.add(labels)
                self._offsets_behind.labels(query, *labels).set(value)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark calls it; nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Spark calls it."""
        with self._lock:
            query = self._names.pop(str(event.runId), str(event.id))
            if event.exception:
                self._failures.labels(query).inc()
            if query in self._names.values():
                return  # another one of that name
            for labels in self._behind.pop(query, ()):
                self._offsets_behind.remove(query, *labels)
            for gauge in self._of_progress.values():
                if (query,) in gauge._metrics:
                    gauge.remove(query)


def _behind(progress: Any) -> Iterator[tuple[tuple[str, str, str], float]]:
    for number, source in enumerate(offsets_behind(progress)):
        topics = ",".join(source.topics)
        for of, value in (("min", source.min), ("max", source.max), ("avg", source.avg)):
            yield (str(number), topics, of), value
