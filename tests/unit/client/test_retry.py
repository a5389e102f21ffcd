"""Deadlines end, pauses grow to a limit."""

import random

from pyspark_log.client.connection.retry import Backoff, Deadline


def test_deadline_counts_down_to_zero() -> None:
    """Remaining time never goes below zero nor above what is asked."""
    now = [100.0]
    deadline = Deadline(5.0, clock=lambda: now[0])
    assert (deadline.remaining_s(), deadline.remaining_s(2.0), deadline.expired) == (5.0, 2.0, False)
    now[0] = 105.0
    assert (deadline.remaining_s(), deadline.expired) == (0.0, True)
    assert not Deadline(None).expired


def test_backoff_doubles_with_jitter_up_to_its_limit() -> None:
    """Each pause is between half and all of the step, the last ones of the limit."""
    backoff = Backoff(first_s=0.1, limit_s=1.0, rng=random.Random(1))
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, full in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= pause <= full
    backoff.reset()
    assert backoff.next_s() <= 0.1
