"""The dashboards for Grafana: what is on them, and their JSON.

Rule: one panel is one question. Both dashboards ask for a Prometheus, a cluster (the label ``job``) and brokers (the
label ``instance``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_SELECTED: Final = 'job="$job", instance=~"$instance"'
_WIDTH: Final = 8
_HEIGHT: Final = 7
_PER_ROW: Final = 3
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """``queries``: by legend; ``$`` stands for the selected brokers. ``unit``: Grafana's name of it."""

    title: str
    unit: str
    queries: dict[str, str]


def _by_topic(name: str) -> dict[str, str]:
    return {"{{topic}}": f"topk(10, sum by (topic) (rate(pylog_{name}_total{{$}}[$__rate_interval])))"}


def _quantile(name: str, by: str, *, quantile: float = 0.99, where: str = "") -> str:
    chosen = f"$, {where}" if where else "$"
    rate = f"rate(pylog_{name}_bucket{{{chosen}}}[$__rate_interval])"
    return f"histogram_quantile({quantile:g}, sum by ({by}, le) ({rate}))"


def _parts(request: str) -> dict[str, str]:
    """The mean of each part: these add up, as quantiles do not."""
    chosen = f'$, request="{request}"'
    total, count = (f"pylog_request_part_seconds_{each}{{{chosen}}}" for each in ("sum", "count"))
    return {
        "{{part}}": f"sum by (part) (rate({total}[$__rate_interval])) / sum by (part) (rate({count}[$__rate_interval]))"
    }


BROKERS: Final = (
    Panel("Brokers", "none", {
        "registered": "max(pylog_brokers{$})",
        "scraped": "count(pylog_broker_info{$})",
        "controllers": "sum(pylog_controller{$})",
    }),
    Panel("Partitions in trouble", "none", {
        "offline": "sum(pylog_offline_partitions{$})",
        "under min ISR": "sum(pylog_under_min_isr_partitions{$})",
        "at min ISR": "sum(pylog_at_min_isr_partitions{$})",
        "under-replicated": "sum(pylog_under_replicated_partitions{$})",
        "failed logs": "sum(pylog_offline_replicas{$})",
    }),
    Panel("Leaders", "none", {"{{instance}}": "sum by (instance) (pylog_leader_partitions{$})"}),
    Panel("Elections", "none", {
        "{{kind}}": "sum by (kind) (increase(pylog_leader_elections_total{$}[$__rate_interval]))",
        "controller": "sum(increase(pylog_controller_elections_total{$}[$__rate_interval]))",
    }),
    Panel("Changes of in-sync sets", "none", {
        "shrinks": "sum(increase(pylog_isr_shrinks_total{$}[$__rate_interval]))",
        "expands": "sum(increase(pylog_isr_expands_total{$}[$__rate_interval]))",
    }),
    Panel("Replicas", "none", {
        "replicas": "sum(pylog_partitions{$})",
        "topics": "sum(pylog_topics{$})",
    }),
    Panel("Records in", "cps", _by_topic("topic_records_in")),
    Panel("Bytes in", "Bps", _by_topic("topic_bytes_in")),
    Panel("Bytes out", "Bps", _by_topic("topic_bytes_out")),
    Panel("Replication", "Bps", {
        "in": "sum(rate(pylog_topic_replication_bytes_in_total{$}[$__rate_interval]))",
        "out": "sum(rate(pylog_topic_replication_bytes_out_total{$}[$__rate_interval]))",
    }),
    Panel("Requests", "reqps", {
        "{{request}}": "sum by (request) (rate(pylog_request_seconds_count{$}[$__rate_interval]))",
    }),
    Panel("Errors", "reqps", {
        "{{request}} {{code}}": "sum by (request, code) (rate(pylog_request_errors_total{$}[$__rate_interval]))",
    }),
    Panel("Produce: mean of its parts", "s", _parts("produce")),
    Panel("Fetch: mean of its parts", "s", _parts("fetch")),
    Panel("Produce until acknowledged", "s", {
        "p50": _quantile("request_seconds", "job", quantile=0.5, where='request="produce"'),
        "p99": _quantile("request_seconds", "job", where='request="produce"'),
        "p99 of writing the log": _quantile("request_part_seconds", "job", where='request="produce", part="local"'),
    }),
    Panel("fsync, p99", "s", {"{{instance}} {{directory}}": _quantile("sync_seconds", "instance, directory")}),
    Panel("Free on disks", "bytes", {
        "{{instance}} {{directory}}": "min by (instance, directory) (pylog_directory_usable_bytes{$})",
    }),
    Panel("Disks in trouble", "none", {
        "{{instance}} {{directory}} stalled": "pylog_directory_stalled{$} > 0",
        "{{instance}} {{directory}} failed logs": "pylog_directory_failed_partitions{$} > 0",
    }),
    Panel("ZooKeeper, p99", "s", {"{{instance}}": _quantile("zookeeper_request_seconds", "instance")}),
    Panel("ZooKeeper's sessions", "none", {
        "{{instance}} connected": "pylog_zookeeper_connected{$}",
        "{{instance}} lost": "increase(pylog_zookeeper_disconnects_total{$}[$__rate_interval])",
        "{{instance}} expired": "increase(pylog_zookeeper_session_expirations_total{$}[$__rate_interval])",
    }),
    Panel("Refused", "reqps", {
        "{{instance}} logins": "rate(pylog_logins_refused_total{$}[$__rate_interval])",
        "{{instance}} no ACL": "rate(pylog_requests_denied_total{$}[$__rate_interval])",
    }),
    Panel("Over a quota", "s", {
        "{{limit}}: s a second": "sum by (limit) (rate(pylog_throttle_seconds_total{$}[$__rate_interval]))",
        "{{limit}}: requests": "sum by (limit) (rate(pylog_throttled_requests_total{$}[$__rate_interval]))",
    }),
    Panel("Streams", "none", {"{{kind}}": "sum by (kind) (pylog_streams{$})"}),
    Panel("Memory", "bytes", {
        "{{instance}}": "process_resident_memory_bytes{$}",
        "{{instance}} Arrow": "pylog_arrow_bytes{$}",
    }),
    Panel("Processors", "none", {"{{instance}}": "rate(process_cpu_seconds_total{$}[$__rate_interval])"}),
    Panel("Threads and descriptors", "none", {
        "{{instance}} threads": "pylog_process_threads{$}",
        "{{instance}} descriptors": "process_open_fds{$}",
    }),
)  # fmt: skip
TOPICS_AND_GROUPS: Final = (
    Panel("Lag in time", "s", {
        "{{group}} {{topic}}": "topk(10, max by (group, topic) (pylog_group_lag_seconds{$}))",
    }),
    Panel("Lag in records", "none", {
        "{{group}} {{topic}}": "topk(10, sum by (group, topic) (pylog_group_lag_records{$}))",
    }),
    Panel("Groups", "none", {
        "groups": "sum(pylog_groups{$})",
        "partitions whose lag is not said": "sum(pylog_group_partitions_omitted{$})",
    }),
    Panel("Partitions that lag most", "s", {
        "{{group}} {{topic}}-{{partition}}": "topk(10, pylog_group_lag_seconds{$})",
    }),
    Panel("Open transactions", "none", {
        "transactions": "sum(pylog_open_transactions{$})",
        "partitions": "sum(pylog_open_transaction_partitions{$})",
    }),
    Panel("Oldest transaction", "s", {"{{instance}}": "pylog_oldest_transaction_seconds{$}"}),
    Panel("Size of topics, all replicas", "bytes", {
        "{{topic}}": "topk(10, sum by (topic) (pylog_topic_size_bytes{$}))",
    }),
    Panel("Growth of topics, all replicas", "Bps", {
        "{{topic}}": "topk(10, sum by (topic) (deriv(pylog_topic_size_bytes{$}[15m])))",
    }),
    Panel("Records in", "cps", _by_topic("topic_records_in")),
)  # fmt: skip


def dashboard(title: str, uid: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "title": title,
        "uid": uid,
        "tags": ["pylog"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), _variable("job", "label_values(pylog_broker_info, job)", is_many=False),
            _variable("instance", 'label_values(pylog_broker_info{job="$job"}, instance)', is_many=True)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }  # fmt: skip


def expressions(panels: Sequence[Panel]) -> list[str]:
    """All queries of the panels, as Grafana sends them but for its variables."""
    return [query.replace("$,", f"{_SELECTED},").replace("{$}", f"{{{_SELECTED}}}")
        for panel in panels for query in panel.queries.values()]  # fmt: skip


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _PER_ROW * _WIDTH, "y": number // _PER_ROW * _HEIGHT, "w": _WIDTH, "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(zip(panel.queries, expressions([panel]), strict=True))
        ],
    }  # fmt: skip


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str, *, is_many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": is_many,
        "includeAll": is_many,
        "current": {"text": "All", "value": "$__all"} if is_many else {},
    }
