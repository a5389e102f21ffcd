"""Runs `pylog` as a user does: as a process, with its output, errors and exit status."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pylog_command import COMMAND, LIMIT_S, Pylog, clean_environment

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster
from tests.fork_server import CAN_FORK, ForkServer


@pytest.fixture(scope="session")
def pylog_forks() -> Iterator[ForkServer | None]:
    """The process from which calls of `pylog` are forked, where that is possible."""
    if not CAN_FORK:
        yield None
        return
    forks = ForkServer("pylog")
    yield forks
    forks.close()


@pytest.fixture
def run_pylog(pylog_forks: ForkServer | None, tmp_path: Path) -> Pylog:
    """`run_pylog("topic", "list", stdin="…", environment={…})` returns the outcome, whatever it is."""

    def run(
        *arguments: str, stdin: str | bytes = b"", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        told = stdin.encode(errors="surrogateescape") if isinstance(stdin, str) else stdin
        variables = clean_environment(tmp_path, **(environment or {}))
        if pylog_forks is None:
            done = subprocess.run(
                [*COMMAND, *arguments], input=told, env=variables, cwd=tmp_path, capture_output=True, timeout=LIMIT_S,
                check=False,
            )  # fmt: skip
            return completed(arguments, done.returncode, done.stdout, done.stderr)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            given.write(told)
            given.seek(0)
            files = [given.fileno(), out.fileno(), errors.fileno()]
            process = pylog_forks.start(arguments, files=files, environment=variables, directory=tmp_path)
            status = process.wait(LIMIT_S)
            if status is None:
                process.stop(0)
                raise subprocess.TimeoutExpired(arguments, LIMIT_S)
            out.seek(0)
            errors.seek(0)
            return completed(arguments, status, out.read(), errors.read())

    return run


@pytest.fixture
def pylog(run_pylog: Pylog, pylog_cluster: LocalCluster) -> Pylog:
    """The same against the session's cluster; fails the test if the command failed, unless ``status`` expects it."""

    def run(*arguments: str, status: int = 0, **keywords: object) -> subprocess.CompletedProcess[str]:
        done = run_pylog(*arguments, "-b", pylog_cluster.bootstrap_servers, **keywords)
        assert done.returncode == status, f"{arguments}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def topic(pylog_cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """An untyped topic of the test's own, with two partitions."""
    name = topic_name(request)
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=2)
    return name


@pytest.fixture
def typed_topic(pylog_cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own with columns carrier (its key) and delay, and one partition."""
    name = topic_name(request) + "-typed"
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic(name, schema="carrier string, delay int32", key="carrier")
    return name


def completed(arguments: tuple[str, ...], status: int, out: bytes, errors: bytes) -> subprocess.CompletedProcess[str]:
    """The outcome as text; raw records are none."""
    return subprocess.CompletedProcess(arguments, status, out.decode(errors="surrogateescape"), errors.decode())


def topic_name(request: pytest.FixtureRequest) -> str:
    """The test's name as a valid topic name."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
