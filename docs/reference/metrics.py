"""The series that a broker publishes."""

from __future__ import annotations

import re

from broker_runtime.metrics.table import METRICS, PREFIX, Definition
from docs.reference.markdown import sections, table
from examples.monitoring import alerts


def page() -> str:
    """The page."""
    return sections(
        "# Metrics",
        "What a broker with `http.listener` publishes at `/metrics`, beside Python's `process_` figures. The guide "
        "[Monitoring](../guides/monitoring.md) says how to scrape it. Every name begins with "
        f"`{PREFIX}`, which is left out here; ⚑ stands where an alert of `examples/monitoring/alerts.yml` looks at it.",
        table(("series", "by", "what"), map(_row, METRICS.values())),
    )


def _row(metric: Definition) -> tuple[str, str, str]:
    name = metric.series.removeprefix(PREFIX)
    is_watched = any(
        re.search(rf"\b{metric.series}(_bucket|_count|_sum)?\b", each.expression) for each in alerts.ALERTS
    )
    kind = " (histogram)" if metric.kind == "histogram" else ""
    return f"`{name}`{kind}{' ⚑' if is_watched else ''}", ", ".join(metric.labels), metric.help
