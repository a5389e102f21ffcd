"""What became of what was sent: one shared outcome per frame, and light views of it for callers.

Rule: a `Delivery` is finished exactly once, by acknowledgement or error. A future per record would cost 8 µs; a
`RecordFuture` is a pair (delivery, index) instead, which becomes a whole future of `concurrent.futures`, with a lock
and waiters, when somebody first looks for these. What a callback raises is logged by `concurrent.futures`, as for its
own futures, and stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol, TypeVar

from broker_runtime.contract.errors import ClientTimeoutError, PylogError
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.records import BatchMetadata, RecordMetadata

OnDelivery = Callable[[RecordMetadata | None, PylogError | None], object]
"""What ``send(on_delivery=…)`` calls, from a thread of the producer: metadata or error, the other is None."""


class _Hurry(Protocol):
    def __call__(self, delivery: Delivery) -> None: ...


class Delivery:
    """The outcome of one frame of ``count`` records. Finished once; any thread may wait."""

    __slots__ = (
        "_callbacks", "_event", "_hurry", "_lock", "append_time_ms", "base_offset", "base_timestamp_ms", "count",
        "error", "is_done", "partition", "rows", "timestamps", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, *, base_timestamp_ms: int, hurry: _Hurry | None = None) -> None:
        """``hurry`` is called when somebody waits for a frame that still gathers records."""
        self.topic = topic
        self.partition = partition
        self.base_timestamp_ms = base_timestamp_ms
        self.timestamps: Sequence[int | None] | None = None
        self.count = 0
        # Of `send_batch`: a first row of the data, and which from there on.
        self.rows: tuple[int, Any] = (0, ())
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: PylogError | None = None
        self.is_done = False
        self._hurry = hurry
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def finish(self, *, base_offset: int = -1, append_time_ms: int = -1, error: PylogError | None = None) -> bool:
        """Sets the outcome and runs callbacks; False if it was set already. Not under a lock."""
        with self._lock:
            if self.is_done:
                return False
            self.base_offset = base_offset
            self.append_time_ms = append_time_ms
            self.error = error
            self.is_done = True
            self._hurry = None
            callbacks, self._callbacks = self._callbacks, []
        self._event.set()
        for callback in callbacks:
            run_logged(callback)
        return True

    def when_done(self, callback: Callable[[], object]) -> None:
        """``callback()`` once finished: at once if it is."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        run_logged(callback)

    def wait(self, timeout_s: float | None, *, hurries: bool = True) -> None:
        """Blocks until finished; raises `ClientTimeoutError` when the time is over."""
        hurry = self._hurry
        if hurries and hurry is not None:
            hurry(self)
        if not self._event.wait(timeout_s):
            raise ClientTimeoutError(f"{self.topic}-{self.partition}: not acknowledged within {timeout_s:g} s")

    def record(self, index: int) -> RecordMetadata:
        """Where record ``index`` of the frame is. Only of a finished delivery without an error."""
        timestamp = self.append_time_ms
        if timestamp < 0:
            given = self.timestamps
            own = given[index] if given is not None and index < len(given) else None
            timestamp = self.base_timestamp_ms if own is None else own
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset, timestamp)

    def batch(self) -> BatchMetadata:
        """Where the frame is. Only of a finished delivery without an error."""
        timestamp = self.base_timestamp_ms if self.append_time_ms < 0 else self.append_time_ms
        return BatchMetadata(self.topic, self.partition, self.base_offset, self.count, timestamp)


Outcome = TypeVar("Outcome")

_MACHINERY = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})
"""What `concurrent.futures.wait` and `as_completed` look for in a future."""
_machinery_lock = threading.Lock()


class _LazyFuture(Future[Outcome]):
    """A future whose outcome is a delivery's, or several. Passes wherever one of `concurrent.futures` does.

    Rule: `Future.__init__`, which costs as much as all of `Producer.send`, runs when one of its attributes is first
    asked for, once. Subclasses say `done`, `result`, `exception` and `add_done_callback` without it.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _MACHINERY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _machinery_lock:
            is_first = "_condition" not in self.__dict__
            if is_first:
                super().__init__()
        if is_first:
            self.add_done_callback(lambda _: self._tell_waiters())
        return self.__dict__[name]

    def _tell_waiters(self) -> None:
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
        """``await`` gives what `result` gives, without blocking the event loop. It sends nothing off before its time:
        what many tasks send still shares frames."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not outcome.done():
                outcome.set_result(None)

        def tell_loop(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(finish)

        if not self.done():
            self.add_done_callback(tell_loop)
            yield from outcome
        return self.result(0)

    def running(self) -> bool:
        """Whether the outcome is not known yet."""
        return not self.done()

    def cancelled(self) -> bool:
        """Never."""
        return False

    def cancel(self) -> bool:
        """Does nothing: what was sent stays sent."""
        return False

    def set_running_or_notify_cancel(self) -> bool:
        """It runs from the beginning."""
        return True

    def set_result(self, result: object) -> None:
        """Raises `InvalidStateError`: only the producer says what became of a record."""
        raise InvalidStateError("the outcome of what was sent is the producer's to say")

    def set_exception(self, exception: object) -> None:
        """Raises `InvalidStateError`, as `set_result`."""
        raise InvalidStateError("the outcome of what was sent is the producer's to say")


class RecordFuture(tuple[Delivery, int], _LazyFuture[RecordMetadata]):
    """What `Producer.send` returns: a `concurrent.futures.Future` that can be awaited as well.

    Waiting for it with `result` or `exception` sends its frame off at once. There is no cancelling.
    """

    def __init__(self, _: tuple[Delivery, int]) -> None:
        # Not Future's: see `_LazyFuture`.
        pass

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
        """``fn(self)`` when done, from a thread of the producer, or at once."""
        self[0].when_done(lambda: fn(self))

    def __repr__(self) -> str:
        delivery, index = self
        state = "pending" if not delivery.is_done else "failed" if delivery.error else "acknowledged"
        return f"RecordFuture({delivery.topic}-{delivery.partition}, record {index} of its frame, {state})"


class BatchFuture(_LazyFuture[list[BatchMetadata]]):
    """What `Producer.send_batch` returns: done when all frames of the batch are. Otherwise as `RecordFuture`."""

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
        """Whether the outcome of all is known."""
        return all(delivery.is_done for delivery in self._deliveries)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """``fn(self)`` once, when all are done, from a thread of the producer, or at once."""
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
    """Calls ``callback``; what it raises is logged and goes no further."""
    outcome: Future[Any] = Future()
    outcome.add_done_callback(lambda _: callback())
    outcome.set_result(None)
