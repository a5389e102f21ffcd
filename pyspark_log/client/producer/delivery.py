"""What became of what was sent: one shared outcome per batch, and light views of it for callers.

Rule: a `Delivery` is finished exactly once, by acknowledgement or error. A future per record would cost 8 µs; a
`RecordFuture` is a pair (delivery, index) instead, which becomes a whole future of `concurrent.futures`, with a lock
and waiters, when these are first used. An exception of a callback is logged by `concurrent.futures`, as for its own
futures, and affects nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from broker_runtime.contract.errors import ClientTimeoutError, PylogError
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.records import BatchMetadata, RecordMetadata

OnDelivery = Callable[[RecordMetadata | None, PylogError | None], object]
"""What ``send(on_delivery=…)`` calls, on a thread of the producer, with the metadata or the error (else None)."""


class _Flush(Protocol):
    def __call__(self, delivery: Delivery) -> None: ...


class Delivery:
    """The outcome of one batch of ``count`` records. Finished once; any thread may wait."""

    __slots__ = (
        "_callbacks", "_event", "_flush", "_lock", "append_time_ms", "base_offset", "base_timestamp_ms", "count",
        "error", "is_done", "partition", "rows", "timestamps", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, *, base_timestamp_ms: int, flush: _Flush | None = None) -> None:
        """``flush`` is called when a caller waits for a batch that may still be open."""
        self.topic = topic
        self.partition = partition
        self.base_timestamp_ms = base_timestamp_ms
        self.timestamps: Sequence[int | None] | None = None
        self.count = 0
        # For `send_batch`: a row number in the data, and the numbers of the rows relative to it.
        self.rows: tuple[int, Any] = (0, ())
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: PylogError | None = None
        self.is_done = False
        self._flush = flush
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def finish(self, *, base_offset: int = -1, append_time_ms: int = -1, error: PylogError | None = None) -> bool:
        """Sets the outcome and runs the callbacks; False if it was set already. Called without a lock."""
        with self._lock:
            if self.is_done:
                return False
            self.base_offset = base_offset
            self.append_time_ms = append_time_ms
            self.error = error
            self.is_done = True
            self._flush = None
            callbacks, self._callbacks = self._callbacks, []
        self._event.set()
        for callback in callbacks:
            run_logged(callback)
        return True

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls ``callback()`` when finished, or at once if it is."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        run_logged(callback)

    def wait(self, timeout_s: float | None, *, flushes: bool = True) -> None:
        """Blocks until finished; raises `ClientTimeoutError` after ``timeout_s``."""
        flush = self._flush
        if flushes and flush is not None:
            flush(self)
        if not self._event.wait(timeout_s):
            raise ClientTimeoutError(f"{self.topic}-{self.partition}: not acknowledged within {timeout_s:g} s")

    def record(self, index: int) -> RecordMetadata:
        """Where record ``index`` of the batch is. Only for a finished delivery without an error."""
        timestamp = self.append_time_ms
        if timestamp < 0:
            given = self.timestamps
            own = given[index] if given is not None and index < len(given) else None
            timestamp = self.base_timestamp_ms if own is None else own
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset, timestamp)

    def batch(self) -> BatchMetadata:
        """Where the batch is. Only for a finished delivery without an error."""
        timestamp = self.base_timestamp_ms if self.append_time_ms < 0 else self.append_time_ms
        return BatchMetadata(self.topic, self.partition, self.base_offset, self.count, timestamp)


Outcome = TypeVar("Outcome")

_MACHINERY = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})
"""What `concurrent.futures.wait` and `as_completed` look for in a future."""
_machinery_lock = threading.Lock()


class _LazyFuture(Future[Outcome]):
    """A future whose outcome is that of one delivery, or of several. Usable wherever one of `concurrent.futures` is.

    Rule: `Future.__init__`, which costs as much as all of `Producer.send`, runs once, when one of its attributes is
    first read. `done`, `result`, `exception` and `add_done_callback` of the subclasses work without it.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _MACHINERY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _machinery_lock:
            is_first = "_condition" not in self.__dict__
            if is_first:
                super().__init__()
        if is_first:
            self.add_done_callback(lambda _: self._notify_waiters())
        return self.__dict__[name]

    def _notify_waiters(self) -> None:
        with self._condition:
            self._state = "FINISHED"
            error = self.exception(0)
            for waiter in self._waiters:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            self._condition.notify_all()

    def __await__(self) -> Generator[Any, None, Outcome]:
        """``await`` returns what `result` returns, without blocking the event loop. It does not flush the batch, so
        records that many tasks send still share batches."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not outcome.done():
                outcome.set_result(None)

        def wake_loop(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing waits any more
                loop.call_soon_threadsafe(finish)

        if not self.done():
            self.add_done_callback(wake_loop)
            yield from outcome
        return self.result(0)

    def running(self) -> bool:
        """Whether the outcome is not known yet."""
        return not self.done()

    def cancelled(self) -> bool:
        """Never."""
        return False

    def cancel(self) -> bool:
        """Does nothing: a record that was sent cannot be recalled."""
        return False

    def set_running_or_notify_cancel(self) -> bool:
        """True: a delivery is under way from the start."""
        return True

    def set_result(self, result: object) -> None:
        """Raises `InvalidStateError`: only the producer sets the outcome of a record."""
        raise InvalidStateError("only the producer sets the outcome of a record")

    def set_exception(self, exception: object) -> None:
        """Raises `InvalidStateError`, as `set_result`."""
        raise InvalidStateError("only the producer sets the outcome of a record")


class RecordFuture(tuple[Delivery, int], _LazyFuture[RecordMetadata]):
    """What `Producer.send` returns: a `concurrent.futures.Future` that can also be awaited.

    Waiting for it with `result` or `exception` sends its batch at once. It cannot be cancelled.
    """

    if TYPE_CHECKING:

        def __init__(self, _: tuple[Delivery | None, int]) -> None: ...  # never None: a queue with room has one

    else:
        # `tuple.__new__` does all there is to do. Future's must not run (see `_LazyFuture`), and a function that does
        # nothing would take as long as the rest of making a future.
        __init__ = object.__init__

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Blocks until the record is acknowledged; raises its error, or `ClientTimeoutError` after ``timeout`` s."""
        delivery, index = self
        if not delivery.is_done:
            delivery.wait(timeout)
        if delivery.error is not None:
            raise delivery.error
        return delivery.record(index)

    def exception(self, timeout: float | None = None) -> PylogError | None:
        """Blocks as `result`; returns the error, or None if the record was acknowledged."""
        delivery = self[0]
        if not delivery.is_done:
            delivery.wait(timeout)
        return delivery.error

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self[0].is_done

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Calls ``fn(self)`` when done, on a thread of the producer, or at once if it is."""
        self[0].when_done(lambda: fn(self))

    def __repr__(self) -> str:
        delivery, index = self
        state = "pending" if not delivery.is_done else "failed" if delivery.error else "acknowledged"
        return f"RecordFuture({delivery.topic}-{delivery.partition}, record {index} of its batch, {state})"


class BatchFuture(_LazyFuture[list[BatchMetadata]]):
    """What `Producer.send_batch` returns: done when all its frames are. Otherwise like `RecordFuture`."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = tuple(deliveries)

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Blocks until all slices are acknowledged; raises the first error, or `ClientTimeoutError`."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return [delivery.batch() for delivery in self._deliveries]

    def exception(self, timeout: float | None = None) -> PylogError | None:
        """Blocks as `result`; returns the first error or None."""
        wait_for(self._deliveries, timeout)
        return next((delivery.error for delivery in self._deliveries if delivery.error is not None), None)

    def done(self) -> bool:
        """Whether all outcomes are known."""
        return all(delivery.is_done for delivery in self._deliveries)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Calls ``fn(self)`` once, when all are done, on a thread of the producer, or at once if they are."""
        left = _Countdown(len(self._deliveries), lambda: fn(self))
        for delivery in self._deliveries:
            delivery.when_done(left.one_less)
        if not self._deliveries:
            run_logged(lambda: fn(self))

    def __repr__(self) -> str:
        done = sum(delivery.is_done for delivery in self._deliveries)
        return f"BatchFuture({done} of {len(self._deliveries)} frames done)"


class _Countdown:
    def __init__(self, count: int, action: Callable[[], object]) -> None:
        self._count = count
        self._action = action
        self._lock = threading.Lock()

    def one_less(self) -> None:
        with self._lock:
            self._count -= 1
            is_last = self._count == 0
        if is_last:
            run_logged(self._action)


def wait_for(deliveries: Sequence[Delivery], timeout_s: float | None) -> None:
    """Blocks until all are finished; raises `ClientTimeoutError`."""
    deadline = Deadline(timeout_s)
    for delivery in deliveries:
        if not delivery.is_done:
            delivery.wait(None if timeout_s is None else deadline.remaining_s())


def run_logged(callback: Callable[[], object]) -> None:
    """Calls ``callback``; an exception that it raises is logged and not passed on."""
    try:
        callback()
    except Exception as error:  # noqa: BLE001 - `concurrent.futures` logs it
        _log(error)


def _log(error: Exception) -> None:
    def fail(_: object) -> None:
        raise error

    outcome: Future[None] = Future()
    outcome.add_done_callback(fail)
    outcome.set_result(None)
