"""A timeline is drawn from real processes: what a hook makes of a call's arguments fits the call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIMIT_S = 150


def test_record_is_drawn_from_its_producer_to_a_consumer(tmp_path: Path) -> None:
    """The broker's threads among those drawn, and its actions, which a client asks for before it sends."""
    command = [sys.executable, "-m", "bench.timeline", "produced_to_consumed", "--quick", "--figures", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    drawn = (tmp_path / "produced_to_consumed.svg").read_text()
    for what in ("take request", "check and append", "write answer", "decode"):
        assert what in drawn
