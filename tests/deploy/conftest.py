"""Spark as it is deployed: a cluster of its own processes, a Python that lacks pylog, a job that runs every way."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster
from tests.class_archives import frugal_java
from tests.spark_python import write_python

BIN = Path(sys.executable).parent
JOB = Path(__file__).parent / "job.py"
ROWS = 4_000
LIMIT_S = 500.0
_pythons = Path()


@pytest.fixture(scope="session", autouse=True)
def pythons(tmp_path_factory: pytest.TempPathFactory, forked_python: Path) -> None:
    """Where `environment` writes the Pythons of Spark."""
    global _pythons
    _pythons = tmp_path_factory.mktemp("pythons")
    (_pythons / _name(sys.executable)).symlink_to(forked_python)


def environment(python: Path | str = sys.executable, **more: str) -> dict[str, str]:
    """What a user's shell has: Spark's Python, and nothing else of ours. A script of `tests.spark_python` starts that
    Python; with pyspark from Spark's zip, as users have it, `test_versions` runs."""
    if Path(python).is_absolute():
        script = _pythons / _name(python)
        python = script if script.exists() else write_python(script, python)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON", "PYLOG_"))
    }
    return {
        **kept,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": frugal_java(),
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **more,
    }


def _name(python: Path | str) -> str:
    return f"python3-{hashlib.sha256(str(python).encode()).hexdigest()[:8]}"


@contextmanager
def started(command: list[str], log: Path, pattern: str, **more: str) -> Iterator[str]:
    """A process until the end of the block; gives what the first group of ``pattern`` matches in its output."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment(**more))
    try:
        deadline = time.monotonic() + LIMIT_S
        while (match := re.search(pattern, log.read_text(errors="replace"))) is None:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        yield match[1]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone master with two workers of one core each, started as the guide Deploying says."""
    directory = tmp_path_factory.mktemp("standalone")
    with ExitStack() as stack:
        master = stack.enter_context(
            started(
                [str(BIN / "spark-class"), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
                 "--port", "0", "--webui-port", "0"],
                directory / "master.log", r"Starting Spark master at (spark://\S+)", SPARK_DAEMON_MEMORY="256m",
            )
        )  # fmt: skip
        for number in (1, 2):
            stack.enter_context(
                started(
                    [str(BIN / "spark-class"), "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                     "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir",
                     str(directory / f"work{number}"), master],
                    directory / f"worker{number}.log", r"Successfully registered with master (\S+)",
                    SPARK_DAEMON_MEMORY="256m",
                )
            )  # fmt: skip
        yield master


@pytest.fixture
def topics(pylog_cluster: LocalCluster, request: pytest.FixtureRequest) -> dict[str, str]:
    """A source with `ROWS` rows in four partitions, and two targets."""
    name = re.sub(r"\W", "-", request.node.name)[:80]
    with Admin(pylog_cluster.bootstrap_servers) as admin, Producer(pylog_cluster.bootstrap_servers) as producer:
        for kind, partitions in (("source", 4), ("batch", 2), ("stream", 2)):
            admin.create_topic(f"{name}-{kind}", partitions=partitions)
        for number in range(ROWS):
            producer.send(f"{name}-source", b"%d" % number, key=b"%d" % (number % 7), partition=number % 4)
    return {
        "servers": pylog_cluster.bootstrap_servers,
        **{kind: f"{name}-{kind}" for kind in ("source", "batch", "stream")},
    }


@pytest.fixture
def run_job(topics: dict[str, str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs `job.py` and returns what it printed."""

    def run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None, **more: Any) -> Any:
        given = {**topics, "checkpoint": str(tmp_path / "checkpoint"), **more}
        done = subprocess.run(
            [*command, str(JOB), json.dumps(given)],
            capture_output=True, text=True, timeout=LIMIT_S, env=env or environment(), cwd=cwd or tmp_path, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        assert lines, done.stdout[-3000:] + done.stderr[-6000:]
        return json.loads(lines[0].removeprefix("RESULT"))

    return run


def submit(*more: str, master: str) -> list[str]:
    """``spark-submit`` to a cluster, waiting for both executors."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": frugal_java(),
        "spark.cores.max": "2",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    pairs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [str(BIN / "spark-submit"), "--master", master, *pairs, *more]


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with everything that this one has but pylog."""
    directory = tmp_path_factory.mktemp("bare")
    packages = directory / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("pyspark_log", "broker_runtime")) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory / "venv")], check=True, timeout=120)
    python = directory / "venv" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    (Path(found.stdout.strip()) / "all.pth").write_text(f"{packages}\n")
    missing = subprocess.run(
        [python, "-c", "import pyarrow, kazoo, pyspark; import pyspark_log"],
        capture_output=True, text=True, check=False, timeout=60, cwd=directory,
    )  # fmt: skip
    assert "No module named 'pyspark_log'" in missing.stderr, missing.stderr
    return python
