"""THE list of clients' metrics: each is defined once, here, and ``docs/`` generates the reference from it.

Rule: names follow Prometheus: base units, and ``_total`` for counters. Each label has a bounded number of values:
client ids, topics that the client has used, and error codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

PREFIX: Final = "pylog_"
_TIMES_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric. ``name``: without `PREFIX`, and a counter's without ``_total``. ``labels``: besides ``client_id``.
    ``kafka``: its name in Kafka's clients; empty if they have none."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    kafka: str

    @property
    def series(self) -> str:
        """The name as Prometheus stores it; of a histogram the part that its series have in common."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels in their order."""
        return ("client_id", *self.labels)

    @property
    def text(self) -> str:
        """The help as a scrape shows it."""
        return f"{self.help} Kafka: {self.kafka or 'none'}."


def _all(*definitions: Definition) -> dict[str, Definition]:
    found = {each.name: each for each in definitions}
    assert len(found) == len(definitions), "a metric is defined twice"
    return found


# A definition reads as a row, so it is not laid out by the formatter.
# fmt: off
METRICS: Final[Mapping[str, Definition]] = _all(
    Definition("producer_records", "counter", ("topic",),
        "Records that were acknowledged (with acks=0: written to the stream).", "record-send-total"),
    Definition("producer_bytes", "counter", ("topic",), "Bytes of acknowledged batches, as sent.", "byte-total"),
    Definition("producer_batches", "counter", ("topic",),
        "Acknowledged batches.", "batch-size-avg = bytes / batches, records-per-request-avg = records / batches"),
    Definition("producer_acknowledgement_seconds", "histogram", (),
        "Time from the send of a batch's first record to the batch's acknowledgement, linger.ms included.",
        "record-queue-time-avg and request-latency-avg together"),
    Definition("producer_record_errors", "counter", ("topic", "code"),
        "Records that send accepted and that have failed for good.", "record-error-total"),
    Definition("producer_record_retries", "counter", ("topic",),
        "Records of batches that were not acknowledged and are sent again.", "record-retry-total"),
    Definition("producer_buffer_bytes", "gauge", (),
        "Bytes of buffer.memory in use by records that are not acknowledged yet.",
        "buffer-total-bytes less buffer-available-bytes"),
    Definition("producer_throttle_seconds", "counter", (),
        "How long brokers throttled the producer's streams because it was over a quota.", "produce-throttle-time-avg"),
    Definition("consumer_records", "counter", ("topic",),
        "Records that were fetched and decoded for the caller.", "records-consumed-total"),
    Definition("consumer_bytes", "counter", ("topic",), "Bytes of the frames with these records.",
        "bytes-consumed-total"),
    Definition("consumer_fetch_seconds", "histogram", (),
        "Time from a fetch request to its response, including the broker's wait for records and for quotas.",
        "fetch-latency-avg"),
    Definition("consumer_max_lag_records", "gauge", (),
        "Lag of the partition with the largest lag: end offset in the last response less the position.",
        "records-lag-max"),
    Definition("consumer_polls", "counter", (), "How often the caller polled.",
        "time-between-poll-avg = time / polls"),
    Definition("consumer_rebalances", "counter", (), "How often the member got a new assignment.",
        "rebalance-total"),
    Definition("consumer_commit_seconds", "histogram", (), "Time from a commit to its response, also of failed ones.",
        "commit-latency-avg, commit-total"),
    Definition("consumer_commit_errors", "counter", ("code",), "Commits that failed.", ""),
    Definition("consumer_throttle_seconds", "counter", (),
        "How long brokers throttled the consumer's streams because it was over a quota.",
        "fetch-throttle-time-avg"),
)
# fmt: on


def counter(registry: CollectorRegistry, defined: Definition) -> Counter:
    """The counter, registered."""
    return Counter(PREFIX + defined.name, defined.text, defined.all_labels, registry=registry)


def histogram(registry: CollectorRegistry, defined: Definition) -> Histogram:
    """The histogram, registered; all are of times."""
    return Histogram(PREFIX + defined.name, defined.text, defined.all_labels, registry=registry, buckets=_TIMES_S)


def gauge(defined: Definition, values: Mapping[str, float]) -> GaugeMetricFamily:
    """The gauge, with a value for each client id."""
    family = GaugeMetricFamily(PREFIX + defined.name, defined.text, labels=defined.all_labels)
    for client_id, value in values.items():
        family.add_metric((client_id,), float(value))
    return family
