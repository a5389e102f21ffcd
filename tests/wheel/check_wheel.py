"""The wheel is complete (S1): built, installed into an empty venv as README says, and used from another directory,
where the blocks of README and of the documentation work (`run_documents`).

    python tests/wheel/check_wheel.py

Run by `make wheel-test`, with a Python that has `build`. Everything it writes is in a temporary directory. What runs in
the new venv has none of this repository on its path, and an environment of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # it is run as a program, by its path

from run_documents import DocumentError, run_documents

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
        say(began, "all blocks work, Spark included")


def check_contents(wheel: Path) -> None:
    """Both packages with their py.typed, and nothing else; and the command."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        # On PATH there may be another `pylog`, behind the new venv's.
        assert "pylog = pyspark_log.cli:main" in archive.read(points).decode()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"pyspark_log", "broker_runtime"}, tops
    for package in sorted(tops):
        assert f"{package}/py.typed" in names, package


def run(command: list[str], *, cwd: Path) -> None:
    """Runs to the end; a failure ends this program with the same status."""
    status = subprocess.run(command, cwd=cwd, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False)
    if status.returncode != 0:
        sys.exit(f"wheel-test: {' '.join(command)} ended with status {status.returncode}")


def say(began: float, text: str) -> None:
    """Prints a line of progress."""
    print(f"wheel-test: {time.monotonic() - began:5.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
