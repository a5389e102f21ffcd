"""Deadlines end, pauses grow to a limit."""

import random

from pyspark_log.client.connection.retry import Backoff, Deadline
from tests.unit.client.channels import FakeClock


def test_deadline_counts_down_to_zero() -> None:
    """Remaining time never goes below zero nor above what is asked."""
    clock = FakeClock()
    deadline = Deadline(5.0, clock=clock)
    assert (deadline.remaining_s(), deadline.remaining_s(2.0), deadline.expired) == (5.0, 2.0, False)
    clock.now += 5.0
    assert (deadline.remaining_s(), deadline.expired) == (0.0, True)
    assert not Deadline(None).expired


def test_wait_ends_at_its_deadline() -> None:
    """A pause between two tries is no reason to be late."""
    clock = FakeClock()
    deadline = Deadline(5.0, clock=clock)
    slept = []
    for seconds in (3.0, 3.0, 3.0):
        deadline.sleep(seconds)
        slept.append(clock.now)
    assert slept == [3.0, 5.0, 5.0]
    Deadline(None, clock=clock).sleep(2.0)
    assert clock.now == 7.0


def test_backoff_doubles_with_jitter_up_to_its_limit() -> None:
    """Each pause is between half and all of the step, the last ones of the limit."""
    backoff = Backoff(first_s=0.1, limit_s=1.0, rng=random.Random(1))
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, full in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= pause <= full
    backoff.reset()
    assert backoff.next_s() <= 0.1
