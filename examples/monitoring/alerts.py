"""The alerts, each defined once: its rule for Prometheus, and what proves it (``promtool test rules``).

Rule: the label ``job`` stands for the cluster, as in ``prometheus.yml``. An alert names what to look at; the thresholds
are those of a cluster with default settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

_GIB: Final = 1 << 30
_BROKER: Final = {"instance": "log1", "job": "pylog"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """``fires``: series by which it fires after ``after_s``, with the labels of the alert then. ``silent``: series by
    which it does not. Values as ``promtool`` writes them, one each 30 s."""

    name: str
    expression: str
    for_s: int
    severity: Literal["critical", "warning"]
    summary: str
    look_at: str
    fires: Mapping[str, str]
    silent: Mapping[str, str]
    after_s: int
    labels: Mapping[str, str] = field(default_factory=lambda: _BROKER)


def _series(name: str, **labels: str) -> str:
    shown = ",".join(f'{label}="{value}"' for label, value in {**labels, **_BROKER}.items())
    return f"{name}{{{shown}}}"


def _gauge(gauge: str, *, above: float, for_s: int, **rest: Any) -> Alert:
    """An alert on a gauge that is above a bound."""
    series = _series(f"pylog_{gauge}", **rest.pop("by", {}))
    return Alert(
        expression=f"pylog_{gauge} > {above:g}",
        for_s=for_s,
        fires={series: f"{above + 1:g}x{for_s // 30 + 20}"},
        silent={series: f"{above:g}x{for_s // 30 + 20}"},
        after_s=for_s + 60,
        **rest,
    )


ALERTS: Final = (
    Alert(
        name="PylogBrokerDown",
        expression='up{job="pylog"} == 0',
        for_s=60,
        severity="critical",
        summary="{{ $labels.instance }} is not scraped",
        look_at="whether the process runs, and whether http.listener can be reached",
        fires={_series("up"): "0x20"},
        silent={_series("up"): "1x20"},
        after_s=120,
    ),
    _gauge(
        "offline_partitions",
        above=0,
        for_s=60,
        name="PylogOfflinePartitions",
        severity="critical",
        summary="{{ $value }} partitions have no leader",
        look_at="pylog cluster health: which, and what can be done",
    ),
    _gauge(
        "under_min_isr_partitions",
        above=0,
        for_s=60,
        name="PylogUnderMinIsr",
        severity="critical",
        summary="{{ $value }} partitions that {{ $labels.instance }} leads take no records with acks=all",
        look_at="brokers that are down, and their disks",
    ),
    _gauge(
        "under_replicated_partitions",
        above=0,
        for_s=600,
        name="PylogUnderReplicated",
        severity="warning",
        summary="{{ $value }} partitions that {{ $labels.instance }} leads have replicas that are not in sync",
        look_at="brokers that are down or slow, and partitions that are being moved",
    ),
    _gauge(
        "offline_replicas",
        above=0,
        for_s=300,
        name="PylogOfflineReplicas",
        severity="warning",
        summary="{{ $value }} logs on {{ $labels.instance }} have failed or are damaged",
        look_at="pylog cluster health, and the broker's log",
    ),
    Alert(
        name="PylogControllers",
        expression="sum by (job) (pylog_controller) != 1",
        for_s=60,
        severity="critical",
        summary="{{ $value }} brokers say that they are the controller",
        look_at="whether ZooKeeper answers, and whether all brokers are scraped",
        fires={_series("pylog_controller"): "0x20"},
        silent={_series("pylog_controller"): "1x20"},
        after_s=120,
        labels={"job": "pylog"},
    ),
    Alert(
        name="PylogUncleanElection",
        expression='increase(pylog_leader_elections_total{kind="unclean"}[15m]) > 0',
        for_s=0,
        severity="critical",
        summary="a replica that was not in sync became a leader: records may be lost",
        look_at="unclean.leader.election.enable, and who ran pylog partition elect",
        fires={_series("pylog_leader_elections_total", kind="unclean"): "0x10 1x20"},
        silent={_series("pylog_leader_elections_total", kind="unclean"): "3x30"},
        after_s=480,
        labels={**_BROKER, "kind": "unclean"},
    ),
    _gauge(
        "directory_stalled",
        above=0,
        for_s=30,
        by={"directory": "/data"},
        name="PylogDiskStalled",
        severity="critical",
        summary="the disk of {{ $labels.directory }} on {{ $labels.instance }} does not answer",
        look_at="the disk; its leaderships go to other brokers after replica.lag.time.max.ms",
        labels={**_BROKER, "directory": "/data"},
    ),
    _gauge(
        "directory_failed_partitions",
        above=0,
        for_s=0,
        by={"directory": "/data"},
        name="PylogDiskFailed",
        severity="critical",
        summary="{{ $value }} logs in {{ $labels.directory }} on {{ $labels.instance }} have failed",
        look_at="the disk; the logs come back when the broker is restarted",
        labels={**_BROKER, "directory": "/data"},
    ),
    Alert(
        name="PylogDiskFull",
        expression=f"pylog_directory_usable_bytes < {5 * _GIB}",
        for_s=300,
        severity="critical",
        summary="{{ $labels.directory }} on {{ $labels.instance }} has {{ $value | humanize1024 }}B left",
        look_at="below log.dir.min.free.bytes it takes no records: retention, or another disk",
        fires={_series("pylog_directory_usable_bytes", directory="/data"): f"{4 * _GIB}x20"},
        silent={_series("pylog_directory_usable_bytes", directory="/data"): f"{6 * _GIB}x20"},
        after_s=360,
        labels={**_BROKER, "directory": "/data"},
    ),
    Alert(
        name="PylogDiskFillsUp",
        expression="predict_linear(pylog_directory_usable_bytes[6h], 86400) < 0",
        for_s=3600,
        severity="warning",
        summary="{{ $labels.directory }} on {{ $labels.instance }} is full within a day at this rate",
        look_at="retention.ms and retention.bytes of the topics that grow (pylog_topic_size_bytes)",
        fires={_series("pylog_directory_usable_bytes", directory="/data"): f"{100 * _GIB}-{_GIB // 10}x400"},
        silent={_series("pylog_directory_usable_bytes", directory="/data"): f"{100 * _GIB}-{_GIB // 1000}x400"},
        after_s=4200,
        labels={**_BROKER, "directory": "/data"},
    ),
    Alert(
        name="PylogSlowDisk",
        expression="histogram_quantile(0.99, sum by (job, instance, directory, le) "
        "(rate(pylog_sync_seconds_bucket[5m]))) > 1",
        for_s=600,
        severity="warning",
        summary="one fsync in a hundred of {{ $labels.directory }} on {{ $labels.instance }} takes {{ $value }} s",
        look_at="the disk, and what else uses it",
        fires={
            _series("pylog_sync_seconds_bucket", directory="/data", le="1.0"): "0+1x40",
            _series("pylog_sync_seconds_bucket", directory="/data", le="2.5"): "0+2x40",
            _series("pylog_sync_seconds_bucket", directory="/data", le="+Inf"): "0+2x40",
        },
        silent={
            _series("pylog_sync_seconds_bucket", directory="/data", le="0.1"): "0+2x40",
            _series("pylog_sync_seconds_bucket", directory="/data", le="1.0"): "0+2x40",
            _series("pylog_sync_seconds_bucket", directory="/data", le="+Inf"): "0+2x40",
        },
        after_s=960,
        labels={**_BROKER, "directory": "/data"},
    ),
    Alert(
        name="PylogGroupLagGrows",
        expression="pylog_group_lag_seconds > 300 and deriv(pylog_group_lag_records[15m]) > 0",
        for_s=600,
        severity="warning",
        summary="{{ $labels.group }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}-"
        "{{ $labels.partition }}, and falls back further",
        look_at="pylog group describe: whether it has members, and how fast they are",
        fires={
            _series("pylog_group_lag_seconds", group="g", topic="t", partition="0"): "400+30x60",
            _series("pylog_group_lag_records", group="g", topic="t", partition="0"): "100+10x60",
        },
        silent={
            _series("pylog_group_lag_seconds", group="g", topic="t", partition="0"): "400+30x60",
            _series("pylog_group_lag_records", group="g", topic="t", partition="0"): "1000-10x60",
        },
        after_s=1200,
        labels={**_BROKER, "group": "g", "topic": "t", "partition": "0"},
    ),
    _gauge(
        "group_partitions_omitted",
        above=0,
        for_s=3600,
        name="PylogGroupLagUnknown",
        severity="warning",
        summary="{{ $labels.instance }} does not say the lag of {{ $value }} partitions of groups",
        look_at="metrics.max.group.partitions, and partitions without a leader",
    ),
    _gauge(
        "oldest_transaction_seconds",
        above=1200,
        for_s=60,
        name="PylogOldTransaction",
        severity="warning",
        summary="a transaction on {{ $labels.instance }} has been open for {{ $value | humanizeDuration }}",
        look_at="pylog cluster health: readers wait behind it; pylog txn abort ends it",
    ),
    Alert(
        name="PylogLoginsRefused",
        expression="sum by (job, instance) (rate(pylog_logins_refused_total[5m])) > 1",
        for_s=300,
        severity="warning",
        summary="{{ $labels.instance }} refuses {{ $value | humanize }} logins a second",
        look_at="the broker's log (refuse login): a client with an old password, or somebody who guesses",
        fires={_series("pylog_logins_refused_total"): "0+120x40"},
        silent={_series("pylog_logins_refused_total"): "0+6x40"},
        after_s=900,
    ),
    Alert(
        name="PylogZooKeeperDisconnected",
        expression="pylog_zookeeper_connected == 0",
        for_s=60,
        severity="critical",
        summary="{{ $labels.instance }} does not reach ZooKeeper",
        look_at="ZooKeeper; no topic, leader or group changes meanwhile",
        fires={_series("pylog_zookeeper_connected"): "0x20"},
        silent={_series("pylog_zookeeper_connected"): "1x20"},
        after_s=120,
    ),
    Alert(
        name="PylogZooKeeperSessionExpired",
        expression="increase(pylog_zookeeper_session_expirations_total[1h]) > 0",
        for_s=0,
        severity="warning",
        summary="{{ $labels.instance }} lost its session with ZooKeeper, and its leaderships with it",
        look_at="pauses of the machine, the network, and zookeeper.session.timeout.ms",
        fires={_series("pylog_zookeeper_session_expirations_total"): "0x10 1x20"},
        silent={_series("pylog_zookeeper_session_expirations_total"): "2x30"},
        after_s=480,
    ),
    Alert(
        name="PylogBrokerErrors",
        expression="sum by (job, instance, request, code) (rate(pylog_request_errors_total"
        '{code=~"UNKNOWN_SERVER_ERROR|KAFKA_STORAGE_ERROR|CORRUPT_MESSAGE|DATA_LOSS|BROKER_OVERLOADED"}[5m])) > 0',
        for_s=300,
        severity="warning",
        summary="{{ $labels.instance }} answers {{ $labels.request }} with {{ $labels.code }}",
        look_at="the broker's log: these are faults of a broker, a disk or a producer, not of a reader",
        fires={_series("pylog_request_errors_total", request="produce", code="KAFKA_STORAGE_ERROR"): "0+1x40"},
        silent={_series("pylog_request_errors_total", request="produce", code="NOT_LEADER_OR_FOLLOWER"): "0+1x40"},
        after_s=600,
        labels={**_BROKER, "request": "produce", "code": "KAFKA_STORAGE_ERROR"},
    ),
    Alert(
        name="PylogRequestErrors",
        expression="sum by (job, instance, request) (rate(pylog_request_errors_total[5m])) / "
        "sum by (job, instance, request) (rate(pylog_request_seconds_count[5m])) > 0.05",
        for_s=600,
        severity="warning",
        summary="{{ $value | humanizePercentage }} of {{ $labels.request }} at {{ $labels.instance }} are refused",
        look_at="which codes pylog_request_errors_total has; at log level DEBUG the broker names each client",
        fires={
            _series("pylog_request_errors_total", request="produce", code="NOT_ENOUGH_REPLICAS"): "0+1x60",
            _series("pylog_request_seconds_count", request="produce"): "0+10x60",
        },
        silent={
            _series("pylog_request_errors_total", request="produce", code="NOT_ENOUGH_REPLICAS"): "0+1x60",
            _series("pylog_request_seconds_count", request="produce"): "0+100x60",
        },
        after_s=1200,
        labels={**_BROKER, "request": "produce"},
    ),
)


def rules() -> dict[str, Any]:
    """The file of rules, for Prometheus' ``rule_files``."""
    return {"groups": [{"name": "pylog", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **({"for": f"{alert.for_s}s"} if alert.for_s else {}),
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": f"Look at {alert.look_at}."},
    }


def rule_tests(rule_file: str) -> dict[str, Any]:
    """The file of tests for ``promtool test rules``: each alert fires where it must, and not a moment too early."""
    tests = [test for alert in ALERTS for test in (_test(alert), _silent_test(alert))]
    return {"rule_files": [rule_file], "evaluation_interval": "30s", "tests": tests}


def _test(alert: Alert) -> dict[str, Any]:
    series = [{"series": name, "values": values} for name, values in alert.fires.items()]
    # What the text says depends on the value; that it fires, and for whom, is what counts.
    expression = f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}'
    labels = {"alertname": alert.name, "alertstate": "firing", "severity": alert.severity, **alert.labels}
    shown = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    firing = [{"labels": f"ALERTS{{{shown}}}", "value": 1}]
    checks = [{"expr": expression, "eval_time": f"{alert.after_s}s", "exp_samples": firing}]
    if alert.for_s >= 60:
        checks.insert(0, {"expr": expression, "eval_time": f"{alert.for_s // 2}s", "exp_samples": []})
    return {"interval": "30s", "name": f"{alert.name} fires", "input_series": series, "promql_expr_test": checks}


def _silent_test(alert: Alert) -> dict[str, Any]:
    series = [{"series": name, "values": values} for name, values in alert.silent.items()]
    checks = [{"eval_time": f"{alert.after_s}s", "alertname": alert.name, "exp_alerts": []}]
    return {"interval": "30s", "name": f"{alert.name} is silent", "input_series": series, "alert_rule_test": checks}
