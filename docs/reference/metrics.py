"""The series that a broker publishes, and those of clients."""

from __future__ import annotations

import re

from broker_runtime.metrics.table import METRICS, PREFIX, Definition
from docs.reference.markdown import sections, table
from examples.monitoring import alerts
from pyspark_log.client.metrics import table as of_clients


def page() -> str:
    """The page."""
    return sections(
        "# Metrics",
        "What a broker with `http.listener` publishes at `/metrics`, beside Python's `process_` figures. The guide "
        "[Monitoring](../guides/monitoring.md) says how to scrape it. Every name begins with "
        f"`{PREFIX}`, which is left out here; ⚑ stands where an alert of `examples/monitoring/alerts.yml` looks at it.",
        table(("series", "by", "what"), map(_row, METRICS.values())),
    )


def clients_page() -> str:
    """The page of clients'."""
    return sections(
        "# Metrics of clients",
        "What a `Producer` or a `Consumer` counts into the registry that it is given as `metrics`. The guide "
        "[Metrics of clients](../guides/client-metrics.md) says how. Every name begins with "
        f"`{of_clients.PREFIX}`, which is left out here, and every series has the label `client_id`.",
        table(("series", "and by", "what", "Kafka's clients"), map(_row_of_clients, of_clients.METRICS.values())),
    )


def _row_of_clients(metric: of_clients.Definition) -> tuple[str, str, str, str]:
    kind = " (histogram)" if metric.kind == "histogram" else ""
    name = metric.series.removeprefix(of_clients.PREFIX)
    return f"`{name}`{kind}", ", ".join(metric.labels), metric.help, metric.kafka or "none"


def _row(metric: Definition) -> tuple[str, str, str]:
    name = metric.series.removeprefix(PREFIX)
    is_watched = any(
        re.search(rf"\b{metric.series}(_bucket|_count|_sum)?\b", each.expression) for each in alerts.ALERTS
    )
    kind = " (histogram)" if metric.kind == "histogram" else ""
    return f"`{name}`{kind}{' ⚑' if is_watched else ''}", ", ".join(metric.labels), metric.help
