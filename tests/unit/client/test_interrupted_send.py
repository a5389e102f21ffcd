"""A signal may raise at any moment of `Producer.send`: no lock stays held."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pyspark_log import Producer

_TIMES = 300


class InterruptedBySignalError(Exception):
    """Raised by the handler, as `KeyboardInterrupt` is."""


@pytest.fixture
def raising_alarm() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise InterruptedBySignalError

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def send_until_interrupted(producer: Producer, after_s: float) -> None:
    end = time.monotonic() + 10
    signal.setitimer(signal.ITIMER_REAL, after_s)
    while time.monotonic() < end:
        for _ in range(100):
            producer.send("t", b"x")


@pytest.mark.usefixtures("raising_alarm")
def test_signal_in_the_middle_of_send_leaves_no_lock_held() -> None:
    with Producer("127.0.0.1:1") as producer:
        queue = SimpleNamespace(room=1 << 60, values=[], delivery=object())
        queues = SimpleNamespace(unkeyed=itertools.repeat(queue), values=queue.values)
        producer._plain_topics["t"] = queues  # type: ignore[assignment]
        sent = 0
        for number in range(_TIMES):
            queue.room = 1 << 60
            del queue.values[:]
            with pytest.raises(InterruptedBySignalError):
                send_until_interrupted(producer, 0.0005 + number * 1e-6)
            sent += len(queue.values)
            is_free = producer._lock.acquire(timeout=5)
            producer._lock.release()  # in any case, or `close` would wait for it
            assert is_free, f"the lock is held after interruption {number}"
        assert sent > _TIMES
