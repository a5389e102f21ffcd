"""Clients' counters, histograms and gauges in a Prometheus registry.

Rule: a count costs about a microsecond. Clients that share a registry share its metrics, which the first of them
registers. Clients with the same ``client.id`` also share series: counters and buffered bytes are added up, and the
largest lag is reported. When a client is closed its counters and histograms stay, because the last counts before a
scrape would be lost otherwise; its gauges go.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from broker_runtime.contract.errors import InvalidConfigError, PylogError
from pyspark_log.client.meters import ConsumerMeters, ProducerMeters
from pyspark_log.client.metrics.table import METRICS, counter, gauge, histogram

_GAUGES: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {
    "producer_buffer_bytes": sum,
    "consumer_max_lag_records": max,
}
"""How each gauge combines the values of clients with the same ``client.id``."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Watched:
    """One client's value of a gauge; ``look`` returns None if it is not known."""

    metric: str
    client_id: str
    look: Callable[[], float | None]


class _Families:
    """The metrics of one registry's clients. Invariant: it refers to its registry, and the registry to it, so neither
    outlives the other."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._watched: WeakSet[_Watched] = WeakSet()  # a client that is gone without `close` is no longer in it
        try:
            for name, each in METRICS.items():
                if each.kind == "counter":
                    self._counters[name] = counter(registry, each)
                elif each.kind == "histogram":
                    self._histograms[name] = histogram(registry, each)
            registry.register(self)
        except ValueError as error:
            for made in (*self._counters.values(), *self._histograms.values()):
                registry.unregister(made)
            raise InvalidConfigError(f"metrics: the registry has a metric of the same name already: {error}") from None

    def counter(self, name: str) -> Counter:
        return self._counters[name]

    def histogram(self, name: str, client_id: str) -> Histogram:
        return self._histograms[name].labels(client_id)

    def watch(self, watched: _Watched) -> None:
        with _lock:
            self._watched.add(watched)

    def describe(self) -> list[GaugeMetricFamily]:
        """For the registry: the names of what `collect` returns."""
        return [gauge(METRICS[name], {}) for name in _GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For the registry, at a scrape."""
        with _lock:
            watched = list(self._watched)
        for name, joined in _GAUGES.items():
            values: dict[str, list[float]] = {}
            for each in watched:
                value = each.look() if each.metric == name else None
                if value is not None:
                    values.setdefault(each.client_id, []).append(value)
            yield gauge(METRICS[name], {client_id: joined(found) for client_id, found in values.items()})


_lock = threading.Lock()
_families: WeakValueDictionary[int, _Families] = WeakValueDictionary()
"""By the ``id()`` of the registry, which lives as long as its families do."""


def _unlock() -> None:
    """In a child that was forked while another thread of the parent held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _families_of(registry: CollectorRegistry) -> _Families:
    """Raises `InvalidConfigError` if it is none, or has metrics of these names that are not ours."""
    if not isinstance(registry, CollectorRegistry):
        raise InvalidConfigError(f"metrics={registry!r:.80}: must be a CollectorRegistry of prometheus_client, or None")
    with _lock:
        found = _families.get(id(registry))
        if found is None:
            found = _families[id(registry)] = _Families(registry)
        return found


class ProducerCounts(ProducerMeters):
    """Counts into ``registry``. Raises `InvalidConfigError` if that is not a `CollectorRegistry`, or already has other
    metrics of the same names."""

    def __init__(self, registry: CollectorRegistry, client_id: str) -> None:
        self._families = _families_of(registry)
        self._client_id = client_id
        self._topics: dict[str, tuple[Counter, Counter, Counter]] = {}  # records, bytes, batches
        self._acknowledgement_s = self._families.histogram("producer_acknowledgement_seconds", client_id)
        self._errors = self._families.counter("producer_record_errors")
        self._retries = self._families.counter("producer_record_retries")
        self._throttle_s = self._families.counter("producer_throttle_seconds").labels(client_id)
        self._watched: _Watched | None = None

    def acknowledged(self, topic: str, *, records: int, size_bytes: int, began_s: float) -> None:
        counts = self._topics.get(topic)
        if counts is None:
            names = ("producer_records", "producer_bytes", "producer_batches")
            found = [self._families.counter(name).labels(self._client_id, topic) for name in names]
            counts = self._topics[topic] = (found[0], found[1], found[2])
        counts[0].inc(records)
        counts[1].inc(size_bytes)
        counts[2].inc()
        self._acknowledgement_s.observe(time.monotonic() - began_s)

    def failed(self, topic: str, error: PylogError, records: int) -> None:
        self._errors.labels(self._client_id, topic, error.code).inc(records)

    def retried(self, topic: str, records: int) -> None:
        self._retries.labels(self._client_id, topic).inc(records)

    def throttled(self, wait_s: float) -> None:
        self._throttle_s.inc(wait_s)

    def watch(self, buffered_bytes: Callable[[], int]) -> None:
        self._watched = _Watched("producer_buffer_bytes", self._client_id, buffered_bytes)
        self._families.watch(self._watched)

    def closed(self) -> None:
        self._watched = None


class ConsumerCounts(ConsumerMeters):
    """As `ProducerCounts`."""

    def __init__(self, registry: CollectorRegistry, client_id: str) -> None:
        self._families = _families_of(registry)
        self._client_id = client_id
        self._topics: dict[str, tuple[Counter, Counter]] = {}  # records, bytes
        self._fetch_s = self._families.histogram("consumer_fetch_seconds", client_id)
        self._commit_s = self._families.histogram("consumer_commit_seconds", client_id)
        self._commit_errors = self._families.counter("consumer_commit_errors")
        self._polls = self._families.counter("consumer_polls").labels(client_id)
        self._rebalances = self._families.counter("consumer_rebalances").labels(client_id)
        self._throttle_s = self._families.counter("consumer_throttle_seconds").labels(client_id)
        self._watched: _Watched | None = None

    def polled(self) -> None:
        self._polls.inc()

    @contextmanager
    def fetching(self) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self._fetch_s.observe(time.monotonic() - began_s)

    def decoded(self, topic: str, batches: Sequence[Sized], size_bytes: int) -> None:
        counts = self._topics.get(topic)
        if counts is None:
            names = ("consumer_records", "consumer_bytes")
            found = [self._families.counter(name).labels(self._client_id, topic) for name in names]
            counts = self._topics[topic] = (found[0], found[1])
        counts[0].inc(sum(map(len, batches)))
        counts[1].inc(size_bytes)

    def throttled(self, wait_s: float) -> None:
        self._throttle_s.inc(wait_s)

    def rebalanced(self) -> None:
        self._rebalances.inc()

    @contextmanager
    def committing(self) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        except PylogError as error:
            self._commit_errors.labels(self._client_id, error.code).inc()
            raise
        finally:
            self._commit_s.observe(time.monotonic() - began_s)

    def watch(self, max_lag_records: Callable[[], int | None]) -> None:
        self._watched = _Watched("consumer_max_lag_records", self._client_id, max_lag_records)
        self._families.watch(self._watched)

    def closed(self) -> None:
        self._watched = None
