"""The interface through which clients report what they do to their metrics.

`ProducerMeters` and `ConsumerMeters` do nothing: clients without ``metrics=`` have these. Their subclasses in
`pyspark_log.client.metrics` count. Rule: called per batch, request or call, never per record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from broker_runtime.contract.errors import PylogError

_NOTHING: Final = nullcontext()


class ProducerMeters:
    """Is told what happens to batches. Methods are called from any thread, never block, and raise nothing."""

    def acknowledged(self, topic: str, *, records: int, size_bytes: int, began_s: float) -> None:
        """A batch was acknowledged, or with ``acks=0`` written to the stream. ``began_s``: when `send` took its first
        record, by `time.monotonic`."""

    def failed(self, topic: str, error: PylogError, records: int) -> None:
        """A batch of so many records has failed for good."""

    def retried(self, topic: str, records: int) -> None:
        """A batch was not acknowledged and will be sent again."""

    def throttled(self, wait_s: float) -> None:
        """A broker throttles a stream for ``wait_s``, because the client is over a quota."""

    def watch(self, buffered_bytes: Callable[[], int]) -> None:
        """``buffered_bytes`` returns the unacknowledged bytes. Any thread may call it, until `closed`."""

    def closed(self) -> None:
        """The producer is closed: ends `watch`."""


class ConsumerMeters:
    """Is told what is fetched and committed. Methods are called from any thread, never block, and raise nothing."""

    def polled(self) -> None:
        """The caller polled."""

    def fetching(self) -> AbstractContextManager[None]:
        """Around a fetch request: measures the time to its response. A request without a response does not count."""
        return _NOTHING

    def decoded(self, topic: str, batches: Sequence[Sized], size_bytes: int) -> None:
        """Frames of one partition, of ``size_bytes`` together, were decoded into these batches of records."""

    def throttled(self, wait_s: float) -> None:
        """As `ProducerMeters.throttled`."""

    def rebalanced(self) -> None:
        """The member starts to apply a new assignment from its group."""

    def committing(self) -> AbstractContextManager[None]:
        """Around a commit: measures how long it takes, and counts the error if it fails."""
        return _NOTHING

    def watch(self, max_lag_records: Callable[[], int | None]) -> None:
        """``max_lag_records`` returns the lag of the partition with the largest lag; None: no lag is known. Any thread
        may call it, until `closed`."""

    def closed(self) -> None:
        """The consumer is closed: ends `watch`."""


NO_PRODUCER_METERS: Final = ProducerMeters()
NO_CONSUMER_METERS: Final = ConsumerMeters()
