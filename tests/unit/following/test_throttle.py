"""The throttled rate of fetches for replicas that are not in sync."""

from __future__ import annotations

import pytest

from broker_runtime.rates import RateLimit


def test_throttle_admits_at_once_until_a_seconds_bytes_are_spent() -> None:
    """W25: a burst of one second passes, then nothing until it is paid for."""
    throttle = RateLimit(1_000)
    assert throttle.wait_ms(0) == 0
    throttle.spend(999, 0)
    assert throttle.wait_ms(0) == 0
    throttle.spend(1, 0)
    assert throttle.wait_ms(0) == 1, "nothing is left: the first byte is earned in a ms"
    throttle.spend(4_000, 0)
    assert throttle.wait_ms(0) == 4_001
    assert throttle.wait_ms(3_999) == 2
    assert throttle.wait_ms(4_001) == 0


def test_throttle_earns_no_more_than_one_second_while_nobody_fetches() -> None:
    """An hour without moves does not let the next hour's bytes through at once."""
    throttle = RateLimit(1_000)
    throttle.spend(1_000, 0)
    throttle.spend(1_000, 3_600_000)
    assert throttle.wait_ms(3_600_000) == 1


@pytest.mark.parametrize("rate", [1, 7, 1_000, 50_000_000])
def test_throttle_keeps_its_rate_over_time(rate: int) -> None:
    """After the burst no more than the rate passes, however large the answers are."""
    throttle, now_ms, came_bytes = RateLimit(rate), 0, 0
    for size_bytes in [3 * rate, 1, rate // 2 + 1, 10 * rate] * 5:
        now_ms += throttle.wait_ms(now_ms)
        assert throttle.wait_ms(now_ms) == 0, "the time it names is enough"
        assert came_bytes <= rate * (now_ms / 1000 + 1)
        throttle.spend(size_bytes, now_ms)
        came_bytes += size_bytes


def test_throttle_does_not_count_a_late_time_twice() -> None:
    """Threads read the clock before they take the lock: one may bring an older time."""
    throttle = RateLimit(1_000)
    throttle.spend(2_000, 0)
    assert throttle.wait_ms(1_000) == 1
    assert throttle.wait_ms(400) == 1
    assert throttle.wait_ms(1_000) == 1
