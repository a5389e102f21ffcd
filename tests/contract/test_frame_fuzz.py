"""Gives mutated frames to every reader of frames, in a process whose death is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "frame_fuzz.py"
MUTANTS = int(os.environ.get("PYLOG_FUZZ_FRAMES", "100000"))
SEED = int(os.environ.get("PYLOG_FUZZ_SEED", "20240229"))
SECONDS_PER_MUTANT = 0.003


@pytest.mark.timeout(120 + MUTANTS * SECONDS_PER_MUTANT)
def test_frame_mutants_are_refused_or_decode_to_valid_batches() -> None:
    """A damaged frame, with correct checksums or not, never crashes or hangs its reader, or fills its memory."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(SEED), str(MUTANTS)],
        capture_output=True,
        text=True,
        timeout=100 + MUTANTS * SECONDS_PER_MUTANT,
    )
    assert done.returncode == 0, f"seed {SEED}, status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
