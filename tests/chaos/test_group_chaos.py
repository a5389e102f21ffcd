"""A group of twelve workers over brokers that fail, for half a minute; ``make chaos-groups MINUTES=60`` runs
the same for longer.

``PYLOG_CHAOS_MINUTES`` sets the duration, two fifths of it here; ``PYLOG_CHAOS_SEED`` repeats a run's choice of faults.
"""

from __future__ import annotations

import random

import pytest

from tests.chaos.run_groups import one_round
from tests.chaos.test_chaos import MINUTES, SEED

pytestmark = pytest.mark.slow


def test_every_record_is_processed_whatever_member_or_broker_breaks() -> None:
    """W17, W22, W23, W24: records are processed at least once, and once if the worker survived and committed
    afterwards.
    """
    outcome = one_round(random.Random(SEED), duration_s=MINUTES * 24, zookeepers=1)
    print("\n".join(outcome.lines()))
    assert not outcome.wrong, f"PYLOG_CHAOS_SEED={SEED}: " + "\n".join(outcome.lines())
    assert outcome.acknowledged > 0
    assert outcome.delivered >= outcome.acknowledged
    assert outcome.faults
