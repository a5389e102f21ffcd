"""`pylog doctor`, `version`, `completion`, and what all commands have in common."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from pylog_command import COMMAND, LIMIT_S, Pylog, clean_environment

import pyspark_log
from broker_runtime.contract.errors import VersionMismatchError
from broker_runtime.ports import choose_port
from pyspark_log.cli.doctor import Finding, ports
from pyspark_log.testing import LocalCluster


def findings(text: str) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(text)}


def with_this_python() -> dict[str, str]:
    """An environment in which `python3` is the Python that runs the tests, as after `activate`."""
    return {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_doctor_finds_no_problem(run_pylog: Pylog, pylog_cluster: LocalCluster) -> None:
    """`pylog doctor` checks Java, PySpark, the workers' Python, versions, and the cluster."""
    done = run_pylog("doctor", "-b", pylog_cluster.bootstrap_servers, "-o", "json", environment=with_this_python())
    assert done.returncode == 0, done.stdout
    statuses = {name: finding["status"] for name, finding in findings(done.stdout).items()}
    assert statuses.pop("ports") in {"ok", "note"}, "the owner of the default ports here does not matter"
    assert statuses == dict.fromkeys(("python", "java", "pyspark", "pyarrow", "spark workers", "cluster"), "ok")


def test_doctor_finds_a_worker_python_without_pylog(run_pylog: Pylog, tmp_path: Path) -> None:
    """S1: Spark uses PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else python3; doctor says how to fix it."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python3")
    for environment in ({"PYSPARK_PYTHON": bare}, {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": bare}):
        done = run_pylog("doctor", "-o", "json", environment={**with_this_python(), **environment})
        assert done.returncode == 5
        finding = findings(done.stdout)["spark workers"]
        assert finding["status"] == "bad"
        assert "cannot import pyspark_log" in finding["found"]
        assert f'PYSPARK_PYTHON="{sys.executable}"' in finding["mend"]
        assert "pyspark_log.register(spark)" in finding["mend"]


def test_doctor_notes_two_different_pythons(run_pylog: Pylog) -> None:
    """D9: a source that Spark looks up runs with the driver's path on executors."""
    environment = {**with_this_python(), "PYSPARK_PYTHON": "/bin/true", "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = run_pylog("doctor", "-o", "json", environment=environment)
    finding = findings(done.stdout)["spark workers"]
    assert finding["status"] == "note"
    assert finding["mend"].startswith("PYSPARK_PYTHON=/bin/true is another Python.")


def test_doctor_finds_a_command_that_is_no_python(run_pylog: Pylog) -> None:
    """PYSPARK_DRIVER_PYTHON=jupyter hides every Python data source."""
    done = run_pylog("doctor", "-o", "json", environment={**with_this_python(), "PYSPARK_DRIVER_PYTHON": "true"})
    assert findings(done.stdout)["spark workers"]["status"] == "bad"
    assert done.returncode == 5


def test_doctor_finds_another_version_of_pylog(run_pylog: Pylog, tmp_path: Path) -> None:
    """The finding has the code and the text of the error, and says how to mend it."""
    other = tmp_path / "python3"
    said = {"python": "3.11.0", "executable": str(other), "error": None, "pylog": "0.0.1", "pyspark": "4.2.0"}
    other.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    other.chmod(0o755)
    done = run_pylog("doctor", "-o", "json", environment={**with_this_python(), "PYSPARK_PYTHON": str(other)})
    finding = findings(done.stdout)["spark workers"]
    assert (done.returncode, finding["status"]) == (5, "bad")
    expected = VersionMismatchError(f"pyspark-log is {pyspark_log.__version__} here and 0.0.1 there. ")
    assert finding["mend"].startswith(f"{expected}Set PYSPARK_PYTHON=")


def test_doctor_finds_java_missing(run_pylog: Pylog, tmp_path: Path) -> None:
    """Each finding says how to fix it."""
    (tmp_path / "python3").symlink_to(sys.executable)
    done = run_pylog("doctor", environment={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert done.returncode == 5
    assert "apt install openjdk-17" in done.stdout


def test_doctor_names_a_java_home_without_java(run_pylog: Pylog) -> None:
    """pylog finds another Java; Spark does not."""
    done = run_pylog("doctor", "-o", "json", environment={**with_this_python(), "JAVA_HOME": "/nonexistent"})
    finding = findings(done.stdout)["java"]
    assert (done.returncode, finding["status"]) == (5, "bad")
    assert finding["mend"].startswith("JAVA_HOME=/nonexistent has no Java 17 or later")


@pytest.mark.parametrize(
    ("taken", "cluster_status", "status", "message"),
    [
        (set(), "note", "ok", ""),
        ({9192}, "ok", "ok", ""),
        ({9192}, "note", "bad", "pylog up --port 9300"),
        ({2181}, "note", "note", "pylog zookeeper start` needs --port"),
    ],
)
def test_doctor_checks_ports(taken: set[int], cluster_status: str, status: str, message: str) -> None:
    """It checks the broker's port and ZooKeeper's, and names their owners; a broker of ours on its port is no fault."""
    finding = ports(
        Finding(check="cluster", status=cluster_status, found=""),  # type: ignore[arg-type]
        is_free=lambda host, port: port not in taken,
    )
    assert finding.status == status
    assert message in finding.mend
    for port in (9192, 2181):
        assert re.search(rf"{port} \(\w+\) {'taken' if port in taken else 'free'}", finding.found)


@pytest.mark.parametrize(("found", "status"), [("elsewhere:9300: x", "note"), ("127.0.0.1:9192: x", "bad")])
def test_doctor_takes_a_broker_of_another_cluster_for_no_other_program(found: str, status: str) -> None:
    """PYLOG_BOOTSTRAP_SERVERS may name a cluster elsewhere while `pylog up` runs here."""
    finding = ports(
        Finding(check="cluster", status="bad", found=found),
        is_free=lambda host, port: port != 9192,
        is_broker=lambda host, port: True,
    )
    assert finding.status == status
    assert ("another program" in finding.mend) == (status == "bad")


def test_doctor_reports_a_missing_cluster_only_if_one_was_named(run_pylog: Pylog) -> None:
    """The exit status is 5, unhealthy, when the named cluster does not answer."""
    address = f"127.0.0.1:{choose_port()}"
    done = run_pylog("doctor", "-b", address, "--timeout", "1", "-o", "json", environment=with_this_python())
    assert done.returncode == 5
    assert findings(done.stdout)["cluster"]["status"] == "bad"
    assert "pylog up" in findings(done.stdout)["cluster"]["mend"]


def test_version_names_its_dependencies(run_pylog: Pylog) -> None:
    """`pylog version` lists them."""
    assert run_pylog("version").stdout.startswith(f"pylog {pyspark_log.__version__} protocol 1 python 3.")
    assert run_pylog("--version").stdout == run_pylog("version").stdout
    assert json.loads(run_pylog("version", "-o", "json").stdout)["pylog"] == pyspark_log.__version__


def test_completion_prints_a_script_that_the_shell_accepts(run_pylog: Pylog) -> None:
    """`pylog completion` prints it."""
    script = run_pylog("completion", "bash").stdout
    assert "pylog" in script
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert run_pylog("completion", "tcsh").returncode == 2


def test_usage_errors_end_with_2_and_print_nothing_on_stdout(run_pylog: Pylog) -> None:
    """The exit status is 2, usage; data goes to stdout, everything else to stderr."""
    for arguments in (
        ("nope",),
        ("topic", "create"),
        ("topic", "list", "-o", "pdf"),
        ("consume",),
        ("version", "-X", "x"),
    ):
        done = run_pylog(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert "Traceback" not in done.stderr


def test_every_command_has_help(run_pylog: Pylog) -> None:
    """Each command exists and explains itself; commands of later versions do not exist."""
    everything = [
        "up", "doctor", "console", "version", "completion", "broker start", "zookeeper start", "produce", "consume",
        "topic create", "topic list", "topic describe", "topic alter", "topic delete", "topic add-partitions",
        "topic add-column", "topic trim", "log dump", "log verify",
        "cluster describe", "cluster health", "cluster decommission",
        "partition move", "partition moves", "partition elect",
        "group list", "group describe", "group reset", "group delete",
        "txn list", "txn describe", "txn abort",
    ]  # fmt: skip
    for command in everything:
        done = run_pylog(*command.split(), "--bootstrap-server", "x:1", "--help")
        assert done.returncode == 0, f"{command} takes the common options"
        assert "--bootstrap-server" not in done.stdout, "they are in pylog --help, once"
    assert run_pylog("topic", "list", "--help").stdout == run_pylog("topic", "list", "-b", "x:1", "--help").stdout
    assert run_pylog("bench", "--help").returncode == 2


def test_errors_have_no_colour_without_a_terminal(run_pylog: Pylog) -> None:
    """Colour appears on a terminal only."""
    done = run_pylog("topic", "list", "-b", "nowhere")
    assert done.returncode == 2
    assert "\033[" not in done.stderr + done.stdout


def test_verbose_twice_shows_the_traceback_and_once_does_not(tmp_path: Path) -> None:
    """An expected error is one line unless more is requested."""
    address = f"127.0.0.1:{choose_port()}"
    for option, has_traceback in (("-v", False), ("-vv", True)):
        done = subprocess.run(
            [*COMMAND, "topic", "list", "-b", address, "--timeout", "0.5", option],
            capture_output=True,
            text=True,
            env=clean_environment(tmp_path),
            timeout=LIMIT_S,
            check=False,
        )
        assert ("Traceback" in done.stderr) == has_traceback
        assert done.returncode == 4


def test_help_has_no_technical_type_names(run_pylog: Pylog) -> None:
    """Help has no names of types; a flag takes no value; the common options are listed once."""
    for command in ((), ("topic",), ("topic", "create"), ("topic", "delete"), ("consume",), ("group", "reset"),
                    ("completion",)):  # fmt: skip
        shown = run_pylog(*command, "--help").stdout
        assert not re.search(r"<(bool|str|int|list|table)", shown), command
        assert ("--bootstrap-server" in shown) == (command == ())
