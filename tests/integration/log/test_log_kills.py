"""kill -9 of appending processes at random moments, on the real file system.

The children are forked from one warm process that imports only the log: 200 of them take well under two minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KILLS = 200


def test_kills_at_random_moments_lose_no_acknowledged_frame(tmp_path):
    """After each of 200 kills every acknowledged frame is there, offsets are dense, and indexes agree."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed_appender.py")), str(tmp_path / "data"), str(KILLS)],
        stdout=subprocess.PIPE,
        timeout=280,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    report = json.loads(child.stdout)
    assert report["kills"] == KILLS
    assert report["acknowledged"] > KILLS
    assert report["kills_during_work"] > KILLS // 2, "most children must die while they append, not before"
    assert report["segments"] > 1
    assert report["rebuilt_indexes_compared"] > 10
