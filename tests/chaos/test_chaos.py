"""Real brokers under real faults, for a minute and a quarter; ``make chaos MINUTES=60`` runs the same for longer.

``PYLOG_CHAOS_MINUTES`` sets the duration, ``PYLOG_CHAOS_SEED`` repeats a run's choice of faults.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.catalogue import Machine
from tests.chaos.report import Report
from tests.chaos.run import one_round

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("PYLOG_CHAOS_MINUTES", "1.25"))
SEED = int(os.environ.get("PYLOG_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@pytest.mark.parametrize("zookeepers", [1, 3])
def test_no_acknowledged_record_is_lost_duplicated_or_reordered_whatever_breaks(zookeepers: int) -> None:
    """W9, W11, W12, W13, W14, W19, W26: anything may be killed, stopped, paused, cut off, slowed down or filled,
    alone and in pairs.
    """
    report = Report()
    one_round(
        random.Random(SEED + zookeepers),
        report,
        duration_s=MINUTES * 30,
        zookeepers=zookeepers,
        rate=150,
        machine=Machine.find(),
    )
    print("\n".join(report.lines()))
    assert not report.wrong, f"PYLOG_CHAOS_SEED={SEED}: " + "\n".join(report.lines())
    assert report.acknowledged > 0
    assert report.faults > 0
