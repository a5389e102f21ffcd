"""`pylog doctor`: checks what pylog and Spark need on this machine, and says how to fix what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

import typer

from broker_runtime.contract import DEFAULT_PORT
from broker_runtime.contract.errors import JavaNotFoundError, PylogError
from pyspark_log.cli.exit_status import UNHEALTHY
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows
from pyspark_log.cli.progress import Progress

_COLUMNS = [Column("check", "CHECK"), Column("status", "STATUS"), Column("found", "FOUND")]
_CLUSTER_LIMIT_S = 3.0
_MINIMUM_PYTHON = (3, 11)
_HOST = "127.0.0.1"
_ZOOKEEPER_PORT = 2181
_ANSWER_LIMIT_S = 60.0
_QUESTION = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
try:
    import pyspark_log; error = None
except BaseException as found: error = f"{type(found).__name__}: {found}"
print(json.dumps({"python": sys.version.split()[0], "executable": sys.executable, "error": error,
                  "pylog": version("pyspark-log"), "pyspark": version("pyspark")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. ``mend`` says what to do unless it is ok. A ``note`` is not an error."""

    check: str
    status: Literal["ok", "note", "bad"]
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerPython:
    """The Python that Spark starts to look up and run Python data sources. Spark uses the environment variable
    PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else python3 on PATH; its own setting ``spark.pyspark.python`` has no
    effect on the look-up.

    ``problem`` None: Spark will find pylog. ``said_by``: what names this Python."""

    said_by: str
    command: str
    executable: str | None = None
    python: str | None = None
    pylog: str | None = None
    pyspark: str | None = None
    problem: str | None = None


def add_to(app: typer.Typer, *, panel: str) -> None:
    """Adds the command, listed under the heading ``panel``."""
    add_command(app, "doctor", panel=panel)(doctor)


def doctor(invocation: Invocation) -> None:
    """Check this machine's setup and say how to fix it.

    Checks Python, Java, PySpark, pyarrow, the Python of Spark's workers, ports and the cluster.
    """
    findings: list[Finding] = []
    checks = {"Python": _python, "Java": _java, "PySpark": _pyspark, "pyarrow": _pyarrow, "Spark's workers": _workers}
    with Progress(invocation, "Checking", total=len(checks) + 1) as progress:
        for name, check in checks.items():
            progress.say(f"Checking {name}")
            findings.append(check())
            progress.advance()
        progress.say("Checking the cluster")
        cluster = _cluster(invocation)
    findings += [ports(cluster), cluster]
    if invocation.output in {None, OutputFormat.TABLE, OutputFormat.WIDE}:
        print_rows([asdict(finding) for finding in findings], _COLUMNS, invocation.output, name="check")
        for finding in findings:
            if finding.mend:
                sys.stdout.write(f"\n{finding.check}: {finding.mend}\n")
    else:
        print_rows([asdict(finding) for finding in findings], _COLUMNS, invocation.output, name="check")
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(UNHEALTHY)


def _python() -> Finding:
    from pyspark_log import __version__

    found = f"Python {sys.version.split()[0]}, pylog {__version__} ({sys.executable})"
    if sys.version_info < _MINIMUM_PYTHON:
        return Finding(check="python", status="bad", found=found, mend="Use Python 3.11 or later.")
    return Finding(check="python", status="ok", found=found)


def _java() -> Finding:
    from broker_runtime.zookeeper.java import find_java, java_version

    try:
        java = find_java()
    except JavaNotFoundError as error:
        return Finding(check="java", status="bad", found="not found, or older than 17", mend=error.message)
    found = f"Java {java_version(java)} ({java})"
    home = os.environ.get("JAVA_HOME")
    if home and not java.is_relative_to(home):
        mend = (
            f"JAVA_HOME={home} has no Java 17 or later. pylog uses another Java in that case, but Spark does not: "
            "correct JAVA_HOME or unset it."
        )
        return Finding(check="java", status="bad", found=found, mend=mend)
    return Finding(check="java", status="ok", found=found)


def _pyspark() -> Finding:
    from broker_runtime.contract.errors import SetupError
    from broker_runtime.zookeeper.bundled import find_jars

    version = _installed("pyspark")
    if version is None:
        mend = "pip install 'pyspark>=4.2' (its wheel also brings the bundled ZooKeeper)."
        return Finding(check="pyspark", status="bad", found="not installed", mend=mend)
    if _numbers(version) < (4, 2):
        return Finding(check="pyspark", status="bad", found=version, mend="pip install --upgrade 'pyspark>=4.2'")
    home = os.environ.get("SPARK_HOME")
    if home:
        note = (
            f"SPARK_HOME={home} takes precedence over the installed PySpark. Unset it if that Spark is another version."
        )
        return Finding(check="pyspark", status="note", found=version, mend=note)
    try:
        find_jars()
    except SetupError as error:
        return Finding(check="pyspark", status="note", found=version, mend=error.message)
    return Finding(check="pyspark", status="ok", found=version)


def _pyarrow() -> Finding:
    version = _installed("pyarrow")
    if version is None or _numbers(version) < (20,):
        return Finding(
            check="pyarrow", status="bad", found=version or "not installed", mend="pip install 'pyarrow>=20'"
        )
    return Finding(check="pyarrow", status="ok", found=version)


def _workers() -> Finding:
    from broker_runtime.contract.errors import VersionMismatchError
    from pyspark_log import __version__

    worker = _worker_python()
    chosen = "python3 on PATH" if worker.said_by == "PATH" else f"{worker.said_by}={worker.command}"
    mend = (
        f'Set PYSPARK_PYTHON="{sys.executable}" before the session starts (and PYSPARK_DRIVER_PYTHON, if it is set), '
        "or call pyspark_log.register(spark) in the program."
    )
    if worker.problem is not None:
        return Finding(check="spark workers", status="bad", found=f"{chosen}: {worker.problem}", mend=mend)
    found = f"{chosen}: Python {worker.python}, pylog {worker.pylog} ({worker.executable})"
    if worker.pylog is not None and worker.pylog != __version__:
        mismatch = VersionMismatchError(f"pyspark-log is {__version__} here and {worker.pylog} there. {mend}")
        return Finding(check="spark workers", status="bad", found=found, mend=str(mismatch))
    drivers, workers = (os.environ.get(name) for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"))
    if drivers and workers and shutil.which(drivers) != shutil.which(workers):
        note = (
            f"PYSPARK_PYTHON={workers} is another Python. Executors use the path of PYSPARK_DRIVER_PYTHON for pylog, "
            "unless the program calls pyspark_log.register(spark): both must be on every machine. Leave one out"
        )
        return Finding(check="spark workers", status="note", found=found, mend=note)
    return Finding(check="spark workers", status="ok", found=found)


def _cluster(invocation: Invocation) -> Finding:
    from broker_runtime.ports import listener_pid

    address = invocation.bootstrap_servers
    if not invocation.timeout_is_given:
        invocation = replace(invocation, timeout_s=_CLUSTER_LIMIT_S)
    try:
        with invocation.admin() as admin:
            cluster = admin.describe_cluster()
            topics = len(admin.list_topics())
    except PylogError as error:
        host, _, port = address.split(",")[0].rpartition(":")
        holder = listener_pid(int(port)) if port.isdecimal() and host in {"localhost", "127.0.0.1"} else None
        found = f"{address}: {error.code}" + (f", the port is held by pid {holder}" if holder else "")
        is_wanted = invocation.address_is_given or holder is not None
        return Finding(check="cluster", status="bad" if is_wanted else "note", found=found, mend=error.message)
    brokers = counted(len(cluster.brokers), "broker")
    found = f"{address}: {brokers}, controller {cluster.controller_id}, {counted(topics, 'topic')}"
    if cluster.controller_id is None:
        mend = "There is no controller, so nothing can be created or changed. Is ZooKeeper running?"
        return Finding(check="cluster", status="bad", found=found, mend=mend)
    return Finding(check="cluster", status="ok", found=found)


def ports(
    cluster: Finding,
    is_free: Callable[[str, int], bool] | None = None,
    is_broker: Callable[[str, int], bool] | None = None,
) -> Finding:
    """Whether the default ports of `pylog up` and `pylog zookeeper start` are free; a running cluster may use them."""
    from broker_runtime.ports import is_free as is_free_now

    wanted = {"broker": DEFAULT_PORT, "ZooKeeper": _ZOOKEEPER_PORT}
    taken = {name: port for name, port in wanted.items() if not (is_free or is_free_now)(_HOST, port)}
    found = ", ".join(f"{port} ({name}) {_holder(port) if name in taken else 'free'}" for name, port in wanted.items())
    is_elsewhere = not cluster.found.startswith((f"localhost:{DEFAULT_PORT}", f"{_HOST}:{DEFAULT_PORT}"))
    if "broker" in taken and cluster.status != "ok" and is_elsewhere and (is_broker or _is_broker)(_HOST, DEFAULT_PORT):
        mend = (
            f"A broker is at port {DEFAULT_PORT} here, while the cluster that is asked for is elsewhere. See cluster."
        )
        return Finding(check="ports", status="note", found=found, mend=mend)
    if "broker" in taken and cluster.status != "ok":
        mend = f"Port {DEFAULT_PORT} is in use by another program. Use another port: pylog up --port 9300"
        return Finding(check="ports", status="bad", found=found, mend=mend)
    if "ZooKeeper" in taken:
        mend = "`pylog up` picks a free port for its ZooKeeper; `pylog zookeeper start` needs --port."
        return Finding(check="ports", status="note", found=found, mend=mend)
    return Finding(check="ports", status="ok", found=found)


def _is_broker(host: str, port: int) -> bool:
    """Most likely: something there speaks gRPC."""
    from broker_runtime.contract.settings import Address
    from pyspark_log.client.connection.strangers import Peer, who_is_at

    return who_is_at(Address(host, port)) is Peer.GRPC


def _holder(port: int) -> str:
    from broker_runtime.ports import listener_pid

    pid = listener_pid(port)
    return "taken" if pid is None else f"taken by pid {pid}"


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:2])


def _worker_python() -> _WorkerPython:
    """Runs the Python that Spark would start, in the caller's environment. Blocks for at most a minute."""
    environment = os.environ
    said_by = next((name for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON") if environment.get(name)), "PATH")
    command = environment.get(said_by) if said_by != "PATH" else "python3"
    assert command is not None
    found = shutil.which(command, path=environment.get("PATH", os.defpath))
    if found is None:
        return _WorkerPython(said_by=said_by, command=command, problem=f"{command} was not found")
    try:
        # PYTHONSAFEPATH: Spark's workers do not see the modules of the current directory.
        answer = subprocess.run(
            [found, "-c", _QUESTION],
            env={**environment, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=_ANSWER_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        said = json.loads(answer.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return _WorkerPython(said_by=said_by, command=command, problem=f"{found} does not run Python code with -c")
    problem = None if said["error"] is None else f"it cannot import pyspark_log ({said['error']})"
    return _WorkerPython(
        said_by=said_by,
        command=command,
        executable=said["executable"],
        python=said["python"],
        pylog=said["pylog"],
        pyspark=said["pyspark"],
        problem=problem,
    )
