"""Spark's drivers die at named points of the sink, while brokers fail; ``make chaos-exactly-once MINUTES=60`` runs
the same for longer.

``PYLOG_CHAOS_MINUTES`` sets the duration; ``PYLOG_CHAOS_SEED`` repeats a run's choice of faults.
"""

from __future__ import annotations

import random

import pytest

from tests.chaos.run_exactly_once import one_round
from tests.chaos.test_chaos import MINUTES, SEED

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900 + MINUTES * 60)  # a busy machine needs minutes to start Spark, and to let the query end
def test_every_row_is_written_once_wherever_drivers_die() -> None:
    """S6: killed, frozen, replaced, replayed: each input row is in the output once, and is shown once."""
    outcome = one_round(random.Random(SEED), duration_s=MINUTES * 60, queries=1, cluster_share=0)
    print("\n".join(outcome.lines()))
    assert not outcome.wrong, f"PYLOG_CHAOS_SEED={SEED}: " + "\n".join(outcome.lines())
    assert outcome.input_rows > 0
    assert outcome.deaths.killed > 0
