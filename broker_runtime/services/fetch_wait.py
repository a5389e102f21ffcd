"""The wait of a fetch for which there is not enough yet: it ends in time, and shows signs of life until then."""

from __future__ import annotations

from collections.abc import Callable

from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, MAX_SERVER_WAIT_S
from broker_runtime.contract.waiting import Clock, Deadline
from broker_runtime.meters import Meters


class FetchWait:
    """From the arrival of a fetch to its answer: at most ``max_wait_ms``, and at most `MAX_SERVER_WAIT_S`.

    ``still_waiting`` is called each `HEARTBEAT_INTERVAL_S`, on the waiting thread, however often that is woken
    meanwhile. What it raises ends the fetch.
    """

    __slots__ = ("_clock", "_deadline", "_heartbeat", "_still_waiting", "began_s", "waited_s")

    def __init__(self, max_wait_ms: int, still_waiting: Callable[[], None], clock: Clock) -> None:
        self._still_waiting = still_waiting
        self._clock = clock
        self.began_s = clock.now_s()
        self.waited_s = 0.0
        self._deadline = Deadline(min(max_wait_ms / 1000, MAX_SERVER_WAIT_S), clock=clock)
        self._heartbeat = Deadline(HEARTBEAT_INTERVAL_S, clock=clock)

    @property
    def is_over(self) -> bool:
        """Whether the fetch is to be answered with what there is."""
        return self._deadline.expired

    def until(self, wait: Callable[[float], bool]) -> None:
        """Blocks until a signal is set or the wait is over. ``wait``: the signal's."""
        began_s = self._clock.now_s()
        while not wait(self._deadline.remaining_s(self._heartbeat.remaining_s())) and not self.is_over:
            self._maybe_show_life()
        self.waited_s += self._clock.now_s() - began_s
        self._maybe_show_life()

    def note(self, meters: Meters, request: str) -> None:
        """The fetch has its answer: what it did by itself, and how long it waited."""
        took_s = self._clock.now_s() - self.began_s
        meters.took(request, "local", took_s - self.waited_s)
        meters.took(request, "remote", self.waited_s)

    def _maybe_show_life(self) -> None:
        if self._heartbeat.expired:
            self._still_waiting()
            self._heartbeat = Deadline(HEARTBEAT_INTERVAL_S, clock=self._clock)
