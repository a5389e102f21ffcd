"""A standalone cluster as the guide Deploying starts it: a master, two workers, and jobs by ``spark-submit``."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import pyspark_log
from tests.deploy.conftest import BIN, ROWS, environment, submit

pytestmark = pytest.mark.slow

EXPECTED: dict[str, Any] = {
    "counted": ROWS,
    "executors": 2,
    "late": 40,
    "loaded": 40,
    "progress": {"rows": ROWS, "batches": ROWS, "behind": [0]},
    "streamed": ROWS,
    "sum": ROWS * (ROWS - 1) // 2,
}
PACKAGES = [Path(pyspark_log.__file__).parent, Path(pyspark_log.__file__).parent.parent / "broker_runtime"]


def test_job_runs_in_client_mode_where_every_python_has_pylog(standalone: str, run_job: Any) -> None:
    """S1: both executors take part, by lookup alone."""
    assert run_job(submit(master=standalone)) == EXPECTED


def test_cluster_mode_is_refused_by_spark_for_python(standalone: str, tmp_path: Path) -> None:
    """Not by us: the guide Deploying says so."""
    job = tmp_path / "job.py"
    job.write_text("")
    done = subprocess.run(
        [*submit("--deploy-mode", "cluster", master=standalone), str(job)],
        capture_output=True, text=True, timeout=120, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Cluster deploy mode is currently not supported for python applications" in done.stderr


def zipped(path: Path) -> Path:
    """pylog as the file that ``--py-files`` takes: Spark knows .zip, .egg and .py, and no wheels."""
    with zipfile.ZipFile(path, "w") as file:
        for package in PACKAGES:
            for source in package.rglob("*.py"):
                file.write(source, source.relative_to(package.parent))
    return path


def test_job_runs_with_pylog_as_a_py_file(standalone: str, run_job: Any, bare_python: Path, tmp_path: Path) -> None:
    """S1: nothing of pylog is installed. The session registers it, and PYTHONPATH has the file, too: Spark gives
    ``--py-files`` to the tasks, but not to the process in which a stream's source runs."""
    file = zipped(tmp_path / "pylog.zip")
    env = environment(bare_python, PYTHONPATH=str(file))
    command = submit("--py-files", str(file), master=standalone)
    assert run_job(command, env=env, register=True) == EXPECTED


def test_job_runs_with_a_packed_environment(standalone: str, run_job: Any, bare_python: Path, tmp_path: Path) -> None:
    """S1: ``--archives env.tar.gz#environment``. The planners run on the driver's machine with the same relative path,
    so a link of that name has to be there."""
    made = tmp_path / "made"
    (made / "bin").mkdir(parents=True)
    python = made / "bin" / "python"
    # A real packed environment has the interpreter itself; this one has a script, so that it is small.
    python.write_text(
        f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/lib:${{PYTHONPATH##*pyspark.zip:}}" exec {bare_python} "$@"
"""
    )
    python.chmod(0o755)
    with zipfile.ZipFile(zipped(tmp_path / "pylog.zip")) as file:
        file.extractall(made / "lib")
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(made, ".")
    start = tmp_path / "start"
    start.mkdir()
    (start / "environment").symlink_to(made)
    env = environment("./environment/bin/python")
    command = submit("--archives", f"{archive}#environment", master=standalone)
    assert run_job(command, env=env, cwd=start, register=True) == EXPECTED


def test_shell_reads_a_topic(topics: dict[str, str], tmp_path: Path) -> None:
    """S1: ``pyspark``, as it is typed."""
    typed = f"""
reader = spark.read.format("pylog").option("pylog.bootstrap.servers", "{topics["servers"]}")
print("COUNTED", reader.option("subscribe", "{topics["source"]}").load().count())
"""
    done = subprocess.run(
        [BIN / "pyspark", "--master", "local[1]", "--conf", "spark.ui.enabled=false"],
        input=typed, capture_output=True, text=True, timeout=200, cwd=tmp_path,
        env=environment(PYSPARK_DRIVER_PYTHON_OPTS="-i"), check=False,
    )  # fmt: skip
    assert f"COUNTED {ROWS}" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
