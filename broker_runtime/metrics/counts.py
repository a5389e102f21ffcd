"""A broker's counts, as Prometheus takes them.

Rule: a count costs about a microsecond. Only topics that were written or read have counts; those of topics that are
gone go with `forget_topics`, so there are never more than topics. Names follow Prometheus: base units, ``_total`` for
what only grows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from broker_runtime.contract.errors import PylogError, UnknownServerError
from broker_runtime.meters import Meters

PREFIX: Final = "pylog_"
_TIMES_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BY_TOPIC: Final = {
    "topic_records_in": "Records that clients produced.",
    "topic_bytes_in": "Bytes of frames that clients produced.",
    "topic_bytes_out": "Bytes of frames that clients read.",
    "topic_replication_bytes_in": "Bytes of frames that this broker copied from leaders.",
    "topic_replication_bytes_out": "Bytes of frames that followers copied from this broker.",
}


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
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(PREFIX + name, text, labels, registry=registry, buckets=_TIMES_S)

        self._by_topic = [counter(name, text, "topic") for name, text in _BY_TOPIC.items()]
        self._request_s = histogram(
            "request_seconds", "From a request's arrival to its answer; of produce until acknowledged.", "request"
        )
        self._errors = counter("request_errors", "Requests that were answered with an error.", "request", "code")
        self._append_s = histogram("append_seconds", "Checking a produced frame and writing it into the log.")
        self._sync_s = histogram("sync_seconds", "fsync and fdatasync of a data directory.", "directory")
        self._lock = threading.Lock()
        self._known_topics: Callable[[], Collection[str]] | None = None
        self._topics: dict[str, _TopicCounts] = {}
        self._requests: dict[str, Histogram] = {}
        self._directories: dict[str, Histogram] = {}

    def produced(self, topic: str, *, records: int, size_bytes: int, took_s: float) -> None:
        counts = self._of(topic)
        counts.records_in.inc(records)
        counts.bytes_in.inc(size_bytes)
        self._append_s.observe(took_s)

    def read(self, topic: str, size_bytes: int, *, is_replica: bool = False) -> None:
        counts = self._of(topic)
        (counts.copied_out if is_replica else counts.bytes_out).inc(size_bytes)

    def copied(self, topic: str, size_bytes: int) -> None:
        self._of(topic).copied_in.inc(size_bytes)

    def answered(self, request: str, took_s: float, error: PylogError | None = None) -> None:
        _observe(self._request_s, self._requests, request, took_s)
        if error is not None:
            self._errors.labels(request, error.code).inc()

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

    def synced(self, directory: str, took_s: float) -> None:
        _observe(self._sync_s, self._directories, directory, took_s)

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


def _observe(histogram: Histogram, by_label: dict[str, Histogram], label: str, took_s: float) -> None:
    """``by_label``: what was found before. There are few: actions, and directories."""
    found = by_label.get(label)
    if found is None:
        found = by_label[label] = histogram.labels(label)
    found.observe(took_s)
