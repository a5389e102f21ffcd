"""Spark Connect, with its server in the client's process and in one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker_runtime.ports import choose_port
from tests.deploy.conftest import BIN, ROWS, environment, started

pytestmark = pytest.mark.slow

EXPECTED = {
    "counted": ROWS,
    "late": 40,
    "loaded": 40,
    "progress": {"rows": ROWS, "batches": ROWS, "behind": [0]},
    "streamed": ROWS,
    "sum": ROWS * (ROWS - 1) // 2,
}


def test_job_runs_over_connect_in_one_process(run_job: Any) -> None:
    """S1: ``SparkSession.builder.remote("local[2]")``: batches, streams, ``foreachBatch``, `offsets_behind`; and
    to register the source changes nothing."""
    result = run_job([sys.executable], remote="local[2]", register="in the end")
    assert {name: result[name] for name in EXPECTED} == EXPECTED
    assert result["registered"] == ROWS


def test_columns_of_connect_are_said_in_the_words_of_where(tmp_path: Path) -> None:
    """S8: names are never taken for values, and values keep their type."""
    program = Path(__file__).parent / "connect_columns.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_job_runs_over_a_connect_server(run_job: Any, tmp_path: Path) -> None:
    """S1: a server started as the guide Deploying says, whose Python has pylog."""
    port = choose_port("127.0.0.1")
    command = [str(BIN / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
               "--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}",
               "--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", "spark.ui.enabled=false",
               "spark-internal"]  # fmt: skip
    with started(command, tmp_path / "server.log", r"Spark Connect server started at: (\S+)"):
        result = run_job([sys.executable], remote=f"sc://127.0.0.1:{port}")
    assert {name: result[name] for name in EXPECTED} == EXPECTED
