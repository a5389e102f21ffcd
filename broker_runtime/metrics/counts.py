"""A broker's counts, as Prometheus takes them.

Rule: a count costs about a microsecond. Only topics that were written or read have counts; those of topics that are
gone go with `forget_topics`, so there are never more than topics. Names and helps are those of `table`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from broker_runtime.contract.errors import PylogError, UnknownServerError
from broker_runtime.contract.quotas import LIMITS
from broker_runtime.controller.election import ELECTION_KINDS
from broker_runtime.meters import Meters
from broker_runtime.metrics.table import counter, histogram

_Labels = TypeVar("_Labels", str, tuple[str, ...])

_BY_TOPIC: Final = (
    "topic_records_in",
    "topic_bytes_in",
    "topic_bytes_out",
    "topic_replication_bytes_in",
    "topic_replication_bytes_out",
)


class _TopicCounts:
    """The counts of one topic, found once."""

    __slots__ = ("bytes_in", "bytes_out", "copied_in", "copied_out", "records_in")

    def __init__(self, counters: list[Counter], topic: str) -> None:
        self.records_in, self.bytes_in, self.bytes_out, self.copied_in, self.copied_out = (
            each.labels(topic) for each in counters
        )


class Counts(Meters):
    """Counts into ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._by_topic = [counter(registry, name) for name in _BY_TOPIC]
        self._request_s = histogram(registry, "request_seconds")
        self._part_s = histogram(registry, "request_part_seconds")
        self._errors = counter(registry, "request_errors")
        self._sync_s = histogram(registry, "sync_seconds")
        self._isr_shrinks = counter(registry, "isr_shrinks")
        self._isr_expands = counter(registry, "isr_expands")
        self._elections = counter(registry, "leader_elections")
        for kind in ELECTION_KINDS:
            self._elections.labels(kind)  # an alert on the first unclean one needs the 0 before it
        self._controller_elections = counter(registry, "controller_elections")
        self._logins_refused = counter(registry, "logins_refused")
        self._requests_denied = counter(registry, "requests_denied")
        self._throttled = counter(registry, "throttled_requests")
        self._throttle_s = counter(registry, "throttle_seconds")
        for limit in LIMITS:
            self._throttled.labels(limit)
            self._throttle_s.labels(limit)
        self._zookeeper_s = histogram(registry, "zookeeper_request_seconds")
        self._zookeeper_disconnects = counter(registry, "zookeeper_disconnects")
        self._zookeeper_expirations = counter(registry, "zookeeper_session_expirations")
        self._lock = threading.Lock()
        self._known_topics: Callable[[], Collection[str]] | None = None
        self._topics: dict[str, _TopicCounts] = {}
        self._requests: dict[str, Histogram] = {}
        self._parts: dict[tuple[str, ...], Histogram] = {}
        self._directories: dict[str, Histogram] = {}

    def produced(self, topic: str, *, records: int, size_bytes: int) -> None:
        counts = self._of(topic)
        counts.records_in.inc(records)
        counts.bytes_in.inc(size_bytes)

    def read(self, topic: str, size_bytes: int, *, is_replica: bool = False) -> None:
        counts = self._of(topic)
        (counts.copied_out if is_replica else counts.bytes_out).inc(size_bytes)

    def copied(self, topic: str, size_bytes: int) -> None:
        self._of(topic).copied_in.inc(size_bytes)

    def answered(self, request: str, took_s: float, error: PylogError | None = None) -> None:
        _observe(self._request_s, self._requests, request, took_s)
        if error is not None:
            self.refused(request, error)

    @contextmanager
    def answering(self, request: str) -> Iterator[None]:
        began_s = time.monotonic()
        error: PylogError | None = None
        try:
            yield
        except PylogError as refusal:
            error = refusal
            raise
        except Exception:
            error = UnknownServerError("a defect of the broker")  # which is what the client gets
            raise
        finally:
            self.answered(request, time.monotonic() - began_s, error)

    def refused(self, request: str, error: PylogError) -> None:
        self._errors.labels(request, error.code).inc()

    @contextmanager
    def refusing(self, request: str) -> Iterator[None]:
        try:
            yield
        except PylogError as error:
            self.refused(request, error)
            raise

    def took(self, request: str, part: str, took_s: float) -> None:
        _observe(self._part_s, self._parts, (request, part), took_s)

    def synced(self, directory: str, took_s: float) -> None:
        _observe(self._sync_s, self._directories, directory, took_s)

    def in_sync_changed(self, *, shrank: bool, grew: bool) -> None:
        if shrank:
            self._isr_shrinks.inc()
        if grew:
            self._isr_expands.inc()

    def elected(self, kind: str) -> None:
        self._elections.labels(kind).inc()

    def became_controller(self) -> None:
        self._controller_elections.inc()

    def zookeeper_answered(self, took_s: float) -> None:
        self._zookeeper_s.observe(took_s)

    def login_refused(self) -> None:
        self._logins_refused.inc()

    def request_denied(self) -> None:
        self._requests_denied.inc()

    def throttled(self, limit: str, wait_s: float) -> None:
        self._throttled.labels(limit).inc()
        self._throttle_s.labels(limit).inc(wait_s)

    def zookeeper_lost(self, *, is_expired: bool) -> None:
        (self._zookeeper_expirations if is_expired else self._zookeeper_disconnects).inc()

    def know_topics(self, known: Callable[[], Collection[str]]) -> None:
        """``known``: the topics of which there may be counts. A topic is known before anything of it is counted."""
        self._known_topics = known

    def forget_topics(self) -> None:
        """Drops the counts of topics that are gone. (One that was made anew meanwhile goes on with the old counts.)"""
        with self._lock:
            self._forget_topics()

    def _forget_topics(self) -> None:
        if self._known_topics is None:
            return
        for topic in self._topics.keys() - set(self._known_topics()):
            del self._topics[topic]
            for each in self._by_topic:
                with suppress(KeyError):
                    each.remove(topic)

    def _of(self, topic: str) -> _TopicCounts:
        counts = self._topics.get(topic)
        if counts is None:
            with self._lock:
                self._forget_topics()
                counts = self._topics[topic] = _TopicCounts(self._by_topic, topic)
        return counts


def _observe(histogram: Histogram, known: dict[_Labels, Histogram], labels: _Labels, took_s: float) -> None:
    """``known``: what was found before. There are few: actions, parts of two requests, and directories."""
    found = known.get(labels)
    if found is None:
        found = known[labels] = histogram.labels(*((labels,) if isinstance(labels, str) else labels))
    found.observe(took_s)
