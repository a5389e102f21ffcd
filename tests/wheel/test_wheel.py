"""The wheel in an empty virtual environment, and the documentation as printed; `check_wheel` says what is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).parent / "check_wheel.py"
_LIMIT_S = 900

pytestmark = [pytest.mark.slow, pytest.mark.timeout(_LIMIT_S + 60)]


def test_wheel_and_every_block_of_the_documentation_work_in_an_empty_environment() -> None:
    """S1, and what README and the pages print; in a process of its own, as `make wheel-test` runs it."""
    done = subprocess.run(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S,
        text=True,
        errors="replace",
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
