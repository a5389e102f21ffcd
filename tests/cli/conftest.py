"""Runs `pylog` as a user does: as a process, with its output, errors and exit status."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pylog_command import LIMIT_S, Pylog, clean_environment
from pylog_forks import PylogForks

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster


@pytest.fixture(scope="session")
def pylog_forks() -> Iterator[PylogForks]:
    """The process from which calls of `pylog` are forked."""
    forks = PylogForks()
    yield forks
    forks.close()


@pytest.fixture
def run_pylog(pylog_forks: PylogForks, tmp_path: Path) -> Pylog:
    """`run_pylog("topic", "list", stdin="…", environment={…})` returns the outcome, whatever it is."""

    def run(
        *arguments: str, stdin: str | bytes = b"", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        status, out, errors = pylog_forks.run(
            list(arguments),
            stdin=stdin.encode(errors="surrogateescape") if isinstance(stdin, str) else stdin,
            environment=clean_environment(tmp_path, **(environment or {})),
            directory=tmp_path,
            limit_s=LIMIT_S,
        )
        shown = out.decode(errors="surrogateescape")  # raw records are no text
        return subprocess.CompletedProcess(arguments, status, shown, errors.decode())

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


def topic_name(request: pytest.FixtureRequest) -> str:
    """The test's name as a valid topic name."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
