"""The oldest PySpark that pylog supports, with the newest Python that it names: `use_wheel` in a venv of its own.

All other tests run with one Python and one PySpark, those of the environment they are in.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wheel.run_documents import STRANGERS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PYTHON, PYSPARK = "3.13", "4.2.0"
# The job takes half a minute of a processor, and three minutes of a machine that has ten other things to do.
INSTALL_LIMIT_S = 600.0
JOB_LIMIT_S = 900.0

# What pip says if a download breaks off, if it gets no answer at all, and if there is no such version.
NO_DOWNLOAD = re.compile(r"ConnectionError|Timeout|timed out|ProxyError|SSLError|IncompleteRead|HTTP error 5\d\d")
NO_ANSWER = "(from versions: none)"
NO_VERSION = f"No matching distribution found for pyspark=={PYSPARK}"
RETRYING = "WARNING: Retrying"


def test_versions_under_test_are_those_that_the_package_names() -> None:
    """The oldest PySpark of ``dependencies``, and the newest Python of ``classifiers``."""
    declared = (ROOT / "pyproject.toml").read_text()
    assert f'"pyspark>={PYSPARK.removesuffix(".0")}"' in declared
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', declared)
    assert f"3.{max(map(int, named))}" == PYTHON


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("ERROR: No matching distribution found for pyspark==4.2.0", "the package index has no PySpark 4.2.0"),
        (
            "WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError(…)'\n"
            "ERROR: Could not find a version that satisfies the requirement pyspark==4.2.0 (from versions: none)\n"
            "ERROR: No matching distribution found for pyspark==4.2.0",
            "the package index could not be reached",
        ),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.", "the package index could not be reached"),
        ("error: subprocess-exited-with-error\nModuleNotFoundError: No module named 'distutils'", None),
        (
            "WARNING: Retrying (Retry(total=1)) after connection broken by 'ReadTimeoutError(…)'\n"
            "ERROR: Cannot install pyspark-log and numpy==1 because these conflict",
            None,
        ),
    ],
)
def test_only_what_this_machine_lacks_is_a_reason_to_skip(printed: str, reason: str | None) -> None:
    """What is installed and does not fit fails."""
    found = reason_to_skip(printed)
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


@pytest.mark.timeout(2 * INSTALL_LIMIT_S + JOB_LIMIT_S + 300)
def test_wheel_works_with_the_newest_python_and_the_oldest_pyspark(other_python: Path, tmp_path: Path) -> None:
    """S1: a broker, a typed topic, the command; Spark reads, and a query whose last batch is replayed copies each row
    once.
    """
    shutil.copy(Path(__file__).parent / "use_wheel.py", tmp_path)
    # As after `activate`: Spark finds pylog because python3 on PATH is the venv's, and in no other way.
    path = f"{other_python.parent}{os.pathsep}{os.environ['PATH']}"
    done = run([other_python, "use_wheel.py"], tmp_path, JOB_LIMIT_S, PATH=path, HOME=str(tmp_path))
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert f"Python {PYTHON}, PySpark {PYSPARK}\n" in done.stdout


@pytest.fixture
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of a venv with `PYTHON`, `PYSPARK` and pylog's wheel; skips where this machine cannot have one."""
    python = find_python()
    if python is None:
        pytest.skip(f"there is no Python {PYTHON} on PATH, nor beside this Python")
    directory = tmp_path_factory.mktemp("other")
    try:
        made = run([python, "-m", "venv", directory / "venv"], directory, INSTALL_LIMIT_S)
        assert made.returncode == 0, made.stdout
        inside = directory / "venv" / "bin" / "python"
        install(inside, str(ROOT), f"pyspark=={PYSPARK}")
        yield inside
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # some 900 MB


def install(python: Path, *wanted: str) -> None:
    """``pip install``; skips where the package index does not answer or has no such version, fails otherwise."""
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--retries", "2", "--timeout", "30"]
    command += ["--no-compile"]  # most of it is never imported
    try:
        done = run([*command, *wanted], python.parent, INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip has not installed {' '.join(wanted)} within {INSTALL_LIMIT_S:.0f} s")
    if done.returncode != 0:
        reason = reason_to_skip(done.stdout)
        if reason is not None:
            pytest.skip(reason)
        pytest.fail(f"pip install {' '.join(wanted)}: {done.stdout[-4000:]}")


def reason_to_skip(printed: str) -> str | None:
    """What pip says is missing on this machine; None: something is wrong with what was to be installed."""
    last = "\n".join(line for line in printed.splitlines() if RETRYING not in line)  # that may have helped
    if NO_DOWNLOAD.search(last) or (RETRYING in printed and NO_ANSWER in last):
        return f"the package index could not be reached: {printed.strip()[-500:]}"
    return f"the package index has no PySpark {PYSPARK}" if NO_VERSION in last else None


def find_python() -> Path | None:
    """`PYTHON` on PATH, or beside this Python's installation, where version managers keep them. A command of that name
    may be a shim that runs nothing, so each is tried.
    """
    name = f"python{PYTHON}"
    on_path = [Path(folder) / name for folder in os.environ["PATH"].split(os.pathsep) if folder]
    for candidate in [*on_path, *sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            code = "import ensurepip, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
            found = run([candidate, "-c", code], Path.cwd(), 60)
            if found.returncode == 0 and found.stdout.strip() == PYTHON:
                return candidate
    return None


def run(command: list[Path | str], directory: Path, limit_s: float, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs it in a session of its own, with none of this environment's Python or Spark, and leaves nothing behind.
    Raises `subprocess.TimeoutExpired`.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in STRANGERS}
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**inherited, "SPARK_LOCAL_IP": "127.0.0.1", "NO_COLOR": "1", **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, printed)
