"""THE list of metrics: each is defined once, here.

`counts`, `state`, `group_lag` and `log_sizes` make series of it and nothing else, the reference is generated from it,
and the dashboards and alerts of ``examples/monitoring`` may name nothing that is not in it.

Rule: names follow Prometheus: base units, and ``_total`` is added to what only grows. Each label has a bounded number
of values: actions, codes, directories, the topics that exist, and group partitions up to
``metrics.max.group.partitions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

PREFIX: Final = "pylog_"
_TIMES_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric. ``name``: without `PREFIX`, and a counter's without ``_total``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> str:
        """The name as Prometheus stores it; of a histogram the part that its series have in common."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _all(*definitions: Definition) -> dict[str, Definition]:
    found = {each.name: each for each in definitions}
    assert len(found) == len(definitions), "a metric is defined twice"
    return found


# A definition reads as a row, so it is not laid out by the formatter.
# fmt: off
METRICS: Final[Mapping[str, Definition]] = _all(
    Definition("broker_info", "gauge", ("broker", "cluster", "version"), "Always 1: which broker this is."),
    # traffic
    Definition("topic_records_in", "counter", ("topic",), "Records that clients produced."),
    Definition("topic_bytes_in", "counter", ("topic",), "Bytes of frames that clients produced."),
    Definition("topic_bytes_out", "counter", ("topic",), "Bytes of frames that clients read."),
    Definition("topic_replication_bytes_in", "counter", ("topic",), "Bytes of frames copied from leaders."),
    Definition("topic_replication_bytes_out", "counter", ("topic",), "Bytes of frames that followers copied."),
    Definition("topic_size_bytes", "gauge", ("topic",),
        "Bytes of the topic's logs on this broker, as looked at every 10 s."),
    # requests
    Definition("request_seconds", "histogram", ("request",),
        "From a request's arrival to its answer: actions by name; produce until acknowledged; fetch and follower with "
        "the wait for records; read and plain-get until the last piece is taken."),
    Definition("request_part_seconds", "histogram", ("request", "part"),
        "Parts of produce, fetch and follower: queue (produce, for memory), local (check and log), remote (disk "
        "and followers, or records to come), response (writing to the peer)."),
    Definition("request_errors", "counter", ("request", "code"), "Requests that were answered with an error."),
    Definition("streams", "gauge", ("kind",), "Streams that are open."),
    # replicas
    Definition("partitions", "gauge", (), "Replicas on this broker."),
    Definition("leader_partitions", "gauge", (), "Partitions that this broker leads."),
    Definition("offline_replicas", "gauge", (), "Replicas on this broker whose log has failed or is damaged."),
    Definition("under_replicated_partitions", "gauge", (), "Partitions led here with replicas that are not in sync."),
    Definition("under_min_isr_partitions", "gauge", (), "Partitions led here that take no records with acks=all."),
    Definition("at_min_isr_partitions", "gauge", (), "Partitions led here that may lose no further replica."),
    Definition("isr_shrinks", "counter", (), "In-sync sets of partitions led here that lost a replica."),
    Definition("isr_expands", "counter", (), "In-sync sets of partitions led here that a replica joined."),
    # the cluster
    Definition("controller", "gauge", (), "Whether this broker is the controller."),
    Definition("brokers", "gauge", (), "Brokers that are registered."),
    Definition("topics", "gauge", (), "Topics of the cluster; said by the controller."),
    Definition("offline_partitions", "gauge", (), "Partitions without a leader; said by the controller."),
    Definition("leader_elections", "counter", ("kind",),
        "Leaders that this broker elected as the controller: new, clean, preferred, unclean (records may be lost)."),
    Definition("controller_elections", "counter", (), "How often this broker became the controller."),
    # consumer groups
    Definition("groups", "gauge", (), "Groups that this broker speaks for."),
    Definition("group_lag_records", "gauge", ("group", "topic", "partition"),
        "Offsets between what the group has committed and the end of what it can read."),
    Definition("group_lag_seconds", "gauge", ("group", "topic", "partition"),
        "How long the first record that the group has not passed has been in the log; 0 when it is caught up."),
    Definition("group_partitions_omitted", "gauge", (),
        "Partitions of groups without series of lag: too many of them, or no answer from their leader."),
    # transactions
    Definition("open_transactions", "gauge", (), "Transactions that are open in a partition led here."),
    Definition("open_transaction_partitions", "gauge", (), "Partitions led here with a transaction that is open."),
    Definition("oldest_transaction_seconds", "gauge", (),
        "How long the oldest of them has been open; 0 without one. Readers of committed records wait behind it."),
    # disks
    Definition("sync_seconds", "histogram", ("directory",), "fsync and fdatasync of a data directory."),
    Definition("directory_stalled", "gauge", ("directory",), "Whether the disk has not answered for 5 s."),
    Definition("directory_usable_bytes", "gauge", ("directory",), "Bytes that are free on its disk."),
    Definition("directory_failed_partitions", "gauge", ("directory",), "Logs that have failed."),
    # who comes in
    Definition("logins_refused", "counter", (), "Calls that proved nobody: a wrong password, certificate or token."),
    Definition("requests_denied", "counter", (), "Requests that no ACL allows to who made them."),
    # quotas
    Definition("throttled_requests", "counter", ("limit",),
        "Requests of clients over this quota, which were held back; of max_connections: streams that were refused."),
    Definition("throttle_seconds", "counter", ("limit",), "How long they were held back, in all."),
    # ZooKeeper
    Definition("zookeeper_connected", "gauge", (), "Whether ZooKeeper answers."),
    Definition("zookeeper_request_seconds", "histogram", (), "From a request to ZooKeeper to its answer."),
    Definition("zookeeper_disconnects", "counter", (), "Connections to ZooKeeper that were lost."),
    Definition("zookeeper_session_expirations", "counter", (), "Sessions that ZooKeeper ended: the broker left."),
    # the process
    Definition("process_threads", "gauge", (), "Threads of the process."),
    Definition("arrow_bytes", "gauge", (), "Bytes that Arrow's memory pool holds."),
)
# fmt: on


def counter(registry: CollectorRegistry, name: str) -> Counter:
    """The counter of that name in `METRICS`."""
    defined = _defined(name, "counter")
    return Counter(PREFIX + name, defined.help, defined.labels, registry=registry)


def histogram(registry: CollectorRegistry, name: str) -> Histogram:
    """The histogram of that name in `METRICS`; all are of times."""
    defined = _defined(name, "histogram")
    return Histogram(PREFIX + name, defined.help, defined.labels, registry=registry, buckets=_TIMES_S)


def gauge(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    """The gauge of that name in `METRICS`, with a value for each tuple of its labels' values."""
    defined = _defined(name, "gauge")
    family = GaugeMetricFamily(PREFIX + name, defined.help, labels=defined.labels)
    for at, value in values.items():
        family.add_metric(at, float(value))
    return family


def _defined(name: str, kind: Kind) -> Definition:
    defined = METRICS[name]
    assert defined.kind == kind, f"{name} is a {defined.kind}"
    return defined
