"""What clients count while they work: the seam between those that do the work and whoever watches them.

`ProducerMeters` and `ConsumerMeters` count nothing, which is what a client without ``metrics=`` has.
`pyspark_log.client.metrics` counts. Rule: called per batch, request or call, never per record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from broker_runtime.contract.errors import PylogError

_NOTHING: Final = nullcontext()


class ProducerMeters:
    """Takes note of what happened to batches. Any thread; never blocks, and raises nothing."""

    def acknowledged(self, topic: str, *, records: int, size_bytes: int, began_s: float) -> None:
        """A batch was acknowledged, or written with ``acks=0``. ``began_s``: when its first record was sent, by
        `time.monotonic`."""

    def failed(self, topic: str, error: PylogError, records: int) -> None:
        """A batch of so many records has failed for good."""

    def retried(self, topic: str, records: int) -> None:
        """A batch came back unacknowledged, to be sent again."""

    def throttled(self, wait_s: float) -> None:
        """A broker takes nothing more of a stream for so long, because the client is over a quota."""

    def watch(self, buffered_bytes: Callable[[], int]) -> None:
        """``buffered_bytes`` says at any time how much is not acknowledged yet. Any thread may call it, until
        `closed`."""

    def closed(self) -> None:
        """The producer is closed: there is nothing to watch any more."""


class ConsumerMeters:
    """Takes note of what was fetched and committed. Any thread; never blocks, and raises nothing."""

    def polled(self) -> None:
        """The caller asks for records."""

    def fetching(self) -> AbstractContextManager[None]:
        """Around a fetch request: how long a broker takes to answer it. One without an answer does not count."""
        return _NOTHING

    def decoded(self, topic: str, batches: Sequence[Sized], size_bytes: int) -> None:
        """What was fetched of a partition, ``size_bytes`` of frames, was decoded into these batches of records."""

    def throttled(self, wait_s: float) -> None:
        """As `ProducerMeters.throttled`."""

    def rebalanced(self) -> None:
        """The group has given this member another share, which it begins to carry out."""

    def committing(self) -> AbstractContextManager[None]:
        """Around a commit: how long it takes, and with which error it fails."""
        return _NOTHING

    def watch(self, max_lag_records: Callable[[], int | None]) -> None:
        """``max_lag_records`` says at any time how far the consumer is behind in the partition in which it is
        furthest behind; None: that is not known of any. Any thread may call it, until `closed`."""

    def closed(self) -> None:
        """The consumer is closed: there is nothing to watch any more."""


NO_PRODUCER_METERS: Final = ProducerMeters()
NO_CONSUMER_METERS: Final = ConsumerMeters()
