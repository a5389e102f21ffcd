"""An idle query sends fewer requests to the brokers; a busy one never waits."""

from __future__ import annotations

from pyspark_log.spark.stream_reader import IdlePace
from tests.unit.client.channels import FakeClock


class IdleClock(FakeClock):
    """Moves only when told to sleep or advance; records the pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept.append(seconds)


def ask(pace: IdlePace, clock: IdleClock, *, times: int, gap_s: float, is_news: bool = False) -> None:
    for _ in range(times):
        clock.now += gap_s
        pace.before()
        pace.after(is_news=is_news)


def test_pace_slows_an_idle_query_to_a_quarter_and_recovers_at_once() -> None:
    """When it is polled every 11 ms without new data, the source pauses between its requests until there is some."""
    clock = IdleClock()
    pace = IdlePace(clock)
    ask(pace, clock, times=50, gap_s=0.011)
    assert clock.slept == []
    ask(pace, clock, times=10, gap_s=0.011)
    assert len(clock.slept) == 10
    ask(pace, clock, times=1, gap_s=0.011, is_news=True)
    slept = len(clock.slept)
    ask(pace, clock, times=50, gap_s=0.011)
    assert len(clock.slept) == slept


def test_pace_never_delays_a_query_whose_other_source_is_busy() -> None:
    """Requests a micro-batch apart are not idle polling, however little this source returns."""
    clock = IdleClock()
    pace = IdlePace(clock)
    ask(pace, clock, times=500, gap_s=0.09)
    assert clock.slept == []
