"""The wheel is complete: built, installed into an empty venv as README says, and used from another directory (S1); and
the blocks of README and of the documentation work (`run_documents`).

    python tests/wheel/check_wheel.py

Run by `make wheel-test`, with a Python that has `build`. Everything it writes is in a temporary directory. The new venv
runs `use_wheel.py`, with none of this repository on its path and an environment of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # it is run as a program, by its path

from run_documents import STRANGERS, DocumentError, run_documents

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 900


def main() -> None:
    """Builds, checks what is inside, installs, uses."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background commands with SIGINT ignored, and so would be everything that the blocks start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pylog-wheel-") as name:
        directory = Path(name)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", str(directory), str(ROOT)], cwd=directory)
        (wheel,) = directory.glob("pyspark_log-*.whl")
        check_contents(wheel)
        say(began, f"built {wheel.name}, {wheel.stat().st_size >> 10} KiB")

        try:
            run_documents(directory, wheel, lambda text: say(began, text))
        except DocumentError as error:
            sys.exit(f"wheel-test: {error}")
        environment = directory / "venv"

        elsewhere = directory / "elsewhere"
        elsewhere.mkdir()
        shutil.copy(Path(__file__).parent / "use_wheel.py", elsewhere)
        variables = {key: value for key, value in os.environ.items() if key not in STRANGERS}
        # As after `activate`: Spark finds pylog because python3 on PATH is the venv's, and in no other way.
        variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{variables['PATH']}"
        variables["HOME"] = str(elsewhere)
        run(["python", "use_wheel.py"], cwd=elsewhere, environment=variables)
        say(began, "used from another directory, Spark included")


def check_contents(wheel: Path) -> None:
    """Both packages with their py.typed, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"pyspark_log", "broker_runtime"}, tops
    for package in sorted(tops):
        assert f"{package}/py.typed" in names, package


def run(command: list[str], *, cwd: Path, environment: dict[str, str] | None = None) -> None:
    """Runs to the end; a failure ends this program with the same status."""
    status = subprocess.run(command, cwd=cwd, env=environment, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False)
    if status.returncode != 0:
        sys.exit(f"wheel-test: {' '.join(command)} ended with status {status.returncode}")


def say(began: float, text: str) -> None:
    """Prints a line of progress."""
    print(f"wheel-test: {time.monotonic() - began:5.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
