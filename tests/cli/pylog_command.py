"""`pylog` as a process: how tests start it, and in which environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from broker_runtime.ports import RANGE_VARIABLE

Pylog = Callable[..., "subprocess.CompletedProcess[str]"]
LIMIT_S = 60
COMMAND = [sys.executable, "-m", "pyspark_log.cli"]


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without settings of the user who runs the tests; ``home`` has none either."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == RANGE_VARIABLE or not name.startswith(("PYLOG_", "XDG_", "PYSPARK_"))
    }
    return {**kept, "HOME": str(home), "COLUMNS": "200", "NO_COLOR": "1", **more}
