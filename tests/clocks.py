"""Clocks of tests, for everything that takes a `Clock`."""

from __future__ import annotations

from collections.abc import Callable

from broker_runtime.contract.waiting import Clock


class ReadClock(Clock):
    """Shows the time that a test's function returns. Nobody can sleep by it."""

    __slots__ = ("_read_s",)

    def __init__(self, read_s: Callable[[], float]) -> None:
        self._read_s = read_s

    def now_s(self) -> float:
        return self._read_s()

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing here sleeps, and this wants to for {seconds:g} s")
