"""``python -m tests.run PROCESSES [pytest's arguments…]``: tests side by side, and those that failed once more, alone.

Tests of real brokers, Spark and kills share a machine of two cores, and now and then one finds it too busy. So at most
`_MOST` tests that failed are run again, one after the other with nothing beside them; those that pass then are named,
and do not fail the run. A test that is named again and again is a defect, of the test or of the product.

Never run again is what says that the product is wrong whatever the machine did: simulations, and chaos that found
records lost, duplicated or reordered (an assertion of `tests/chaos`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.conftest import FAILURES_VARIABLE

_MOST: Final = 4
_FAILED: Final = 1  # pytest's exit status when tests failed, and not when it was interrupted or misused


def main() -> int:
    """Returns pytest's exit status."""
    processes, *arguments = sys.argv[1:]
    side_by_side = ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]
    with tempfile.TemporaryDirectory(prefix="pylog-tests-") as directory:
        report = Path(directory) / "failures.json"
        status = _pytest([*side_by_side, *arguments], report)
        failures = json.loads(report.read_text()) if report.exists() else {}
        if status != _FAILED or not is_worth_another_run(failures):
            return status
        names = sorted(failures)
        print(f"\n{len(names)} failed beside others; now alone:", *names, sep="\n  ", flush=True)
        report.unlink()
        status = _pytest(["-n", "0", *names], report)
    if status == 0:
        print("passed alone, having failed beside others:", *names, sep="\n  ", flush=True)
    return status


def is_worth_another_run(failures: Mapping[str, str]) -> bool:
    """``failures``: what each failed test raised, by the test's name."""
    return 0 < len(failures) <= _MOST and not any(_is_verdict(*failure) for failure in failures.items())


def _is_verdict(name: str, raised: str) -> bool:
    folder = name.removeprefix("tests/").partition("/")[0]
    return folder == "simulation" or (folder == "chaos" and raised.startswith(("AssertionError", "assert ")))


def _pytest(arguments: Sequence[str], report: Path) -> int:
    environment = {**os.environ, FAILURES_VARIABLE: str(report)}
    with subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # pytest had it, too: it ends its processes and says how far it came


if __name__ == "__main__":
    sys.exit(main())
