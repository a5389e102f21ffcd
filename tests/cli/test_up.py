"""`pylog up`, `broker start`, `zookeeper start`: servers in the foreground."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import children_of, wait_until_gone
from pylog_command import COMMAND, LIMIT_S, Pylog, clean_environment

from broker_runtime.ports import choose_port, is_free
from tests.waiting import wait_until


@contextmanager
def foreground(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, and the address that it printed; killed at the end if it still runs."""
    with (home / "said").open("a") as said:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=clean_environment(home),
            cwd=home,
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (home / "said").read_text()
        yield process, address
    finally:
        process.kill()
        process.wait(LIMIT_S)
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_stops_in_order_and_keeps_its_data(run_pylog: Pylog, tmp_path: Path, number: signal.Signals) -> None:
    """`pylog up` runs a cluster until Ctrl-C or SIGTERM, and ends with 0; when it starts again on the same data,
    everything is there, all of it in that directory, whatever its name is."""
    place = tmp_path / "place"
    data = place / "dätä, \U0001f40d#\\u"
    data.mkdir(parents=True)
    arguments = ("up", "--data", str(data), "--port", "0")
    with foreground(tmp_path, *arguments) as (process, address):
        below = children_of(process.pid)
        assert len(below) >= 2
        assert run_pylog("topic", "create", "kept", "-b", address).returncode == 0
        assert run_pylog("produce", "kept", "-b", address, stdin="a record\n").returncode == 0
        os.kill(process.pid, number)
        assert process.wait(LIMIT_S) == 0
        wait_until_gone(below)
    said = (tmp_path / "said").read_text()
    assert f"Broker 1   {address}" in said
    assert "pylog topic create hello" in said
    assert "Traceback" not in said
    with foreground(tmp_path, *arguments) as (process, address):
        shown = run_pylog("consume", "kept", "--from", "earliest", "--to", "end", "-b", address)
        assert (shown.stdout, shown.returncode) == ("a record\n", 0)
    assert list(place.iterdir()) == [data]
    for name in ("zookeeper-1/data/version-2", "zookeeper-1/zookeeper.log", "broker-1/log/meta.json"):
        assert (data / name).exists(), name
    assert not (Path.cwd() / "data").exists()


def test_up_uses_a_running_zookeeper(run_pylog: Pylog, tmp_path: Path, zookeeper_connect: str) -> None:
    """`pylog up --zookeeper H:P` starts no ZooKeeper of its own; the cluster is found again through it."""
    arguments = ("up", "--data", str(tmp_path / "data"), "--port", "0", "--zookeeper", zookeeper_connect)
    with foreground(tmp_path, *arguments) as (process, address):
        assert run_pylog("topic", "create", "elsewhere", "-b", address).returncode == 0
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert not (tmp_path / "data" / "zookeeper-1").exists()
    with foreground(tmp_path, *arguments) as (_, address):
        assert run_pylog("topic", "list", "-o", "name", "-b", address).stdout == "elsewhere\n"


def test_up_leaves_nothing_behind_when_it_is_killed(tmp_path: Path) -> None:
    """No process outlives the one that started it, even after SIGKILL."""
    with foreground(tmp_path, "up", "--data", str(tmp_path / "data"), "--port", "0") as (process, _):
        below = children_of(process.pid)
        assert below
        process.kill()
        process.wait(LIMIT_S)
        wait_until_gone(below)


def test_up_names_the_owner_of_its_port(run_pylog: Pylog, tmp_path: Path) -> None:
    """`[PORT_IN_USE] 127.0.0.1:9192 is taken by pid 4711. Use: pylog up --port 9300`."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", choose_port()))
        holder.listen()
        port = holder.getsockname()[1]
        refused = run_pylog("up", "--data", str(tmp_path / "data"), "--port", str(port))
    assert refused.returncode == 1
    beginning = f"[PORT_IN_USE] 127.0.0.1:{port} is taken by pid {os.getpid()}. Use: pylog up --port "
    assert refused.stderr.startswith(beginning)
    assert refused.stderr.strip().removeprefix(beginning).isdecimal()
    assert refused.stdout == ""


def test_up_explains_how_to_get_java(run_pylog: Pylog, tmp_path: Path) -> None:
    """`[JAVA_NOT_FOUND] The bundled ZooKeeper needs Java 17 or later; JAVA_HOME is unset …`."""
    refused = run_pylog(
        "up", "--data", str(tmp_path / "data"), "--port", "0", environment={"PATH": str(tmp_path), "JAVA_HOME": ""}
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "[JAVA_NOT_FOUND] The bundled ZooKeeper needs Java 17 or later; JAVA_HOME is unset and java is not on PATH. "
    )
    assert "apt install" in refused.stderr
    assert "brew install" in refused.stderr


def test_up_refuses_a_second_one_on_the_same_data(run_pylog: Pylog, tmp_path: Path) -> None:
    """Two ZooKeepers on one directory would destroy its data."""
    with foreground(tmp_path, "up", "--data", str(tmp_path / "data"), "--port", "0"):
        refused = run_pylog("up", "--data", str(tmp_path / "data"), "--port", "0")
        assert refused.returncode == 1
        assert refused.stderr.startswith("[DIRECTORY_LOCKED]")


def test_up_runs_several_brokers_on_ports_in_a_row(run_pylog: Pylog, tmp_path: Path) -> None:
    """`pylog up --brokers 3` continues without one broker, and has as many as before when it starts again."""
    # Outside the range from which all others take theirs: nobody may take the second one meanwhile.
    port = next(first for first in range(13_000, 19_000, 3) if all(is_free("127.0.0.1", first + n) for n in range(3)))
    arguments = ("up", "--data", str(tmp_path / "data"))
    with foreground(tmp_path, *arguments, "--brokers", "3", "--port", str(port)) as (process, addresses):
        assert addresses == ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        assert sorted(path.name for path in (tmp_path / "data").glob("*-*")) == [
            *(f"broker-{number}" for number in (1, 2, 3)),
            *(f"zookeeper-{number}" for number in (1, 2, 3)),
        ]
        assert run_pylog("topic", "create", "kept", "-p", "3", "-b", addresses).returncode == 0
        said = re.search(rf"Broker 3 +127\.0\.0\.1:{port + 2} +pid (\d+)", (tmp_path / "said").read_text())
        assert said is not None
        os.kill(int(said[1]), signal.SIGKILL)
        again = "To start it again: pylog broker start --config "
        wait_for_text(tmp_path / "said", f"Broker 3 stopped; the others continue. {again}")
        assert run_pylog("topic", "list", "-o", "name", "-b", addresses).stdout == "kept\n"
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    with foreground(tmp_path, *arguments, "--port", "0") as (_, addresses):
        assert len(addresses.split(",")) == 3
        assert run_pylog("topic", "list", "-o", "name", "-b", addresses).stdout == "kept\n"


def wait_for_text(path: Path, text: str) -> None:
    """Fails unless the file contains the text in time."""
    wait_until(lambda: text in path.read_text(), f"{path.name} says {text!r}", LIMIT_S)


def test_servers_start_one_by_one(run_pylog: Pylog, tmp_path: Path) -> None:
    """`zookeeper start` is followed by `broker start --config broker.toml`; SIGTERM stops each cleanly."""
    with foreground(tmp_path, "zookeeper", "start", "--data", str(tmp_path / "zk"), "--port", "0") as (_, connect):
        port, ready = choose_port(), tmp_path / "ready.json"
        (tmp_path / "broker.toml").write_text(
            f'broker.id = 7\nlisteners = "127.0.0.1:{port}"\nlog.dirs = "{tmp_path / "log"}"\n'
            f'zookeeper.connect = "{connect}/pylog"\n'
        )
        with (tmp_path / "broker-said").open("w") as said:
            broker = subprocess.Popen(
                [*COMMAND, "broker", "start", "--config", "broker.toml", "--ready-file", str(ready)],
                stdout=said,
                stderr=said,
                env=clean_environment(tmp_path),
                cwd=tmp_path,
            )
        try:
            wait_until(lambda: ready.exists() or broker.poll() is not None, "the broker serves or has ended", LIMIT_S)
            assert ready.exists(), (tmp_path / "broker-said").read_text()
            described = run_pylog("doctor", "-b", f"127.0.0.1:{port}", "-o", "json").stdout
            assert "1 broker, controller 7" in described
            broker.terminate()
            assert broker.wait(LIMIT_S) == 0
            assert is_free("127.0.0.1", port)
        finally:
            broker.kill()
            broker.wait(LIMIT_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_zookeeper_ends_in_order_when_asked_to(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C is how a person stops it; that is no failure."""
    with foreground(tmp_path, "zookeeper", "start", "--data", str(tmp_path / "zk"), "--port", "0") as (process, _):
        below = children_of(process.pid)
        os.kill(process.pid, number)
        assert process.wait(LIMIT_S) == 0
        wait_until_gone(below)


def test_up_ends_in_order_when_asked_to_during_its_start(tmp_path: Path) -> None:
    """The status is that of a cluster that ran; nothing is left."""
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [*COMMAND, "up", "--data", str(tmp_path / "data"), "--port", "0"],
            stdout=subprocess.DEVNULL, stderr=said, env=clean_environment(tmp_path), cwd=tmp_path,
        )  # fmt: skip
    try:
        wait_for_text(tmp_path / "said", "ZooKeeper")
        below = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        wait_until_gone(below)
    finally:
        process.kill()
        process.wait(LIMIT_S)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("broker.idd = 1", "broker.id"),
        ('broker.id = "one"', "broker.id"),
        ("broker.id = 1\n[log]\nretention.check.interval.ms = 'soon'", "log.retention.check.interval.ms"),
        ("not toml", "broker.toml"),
    ],
)
def test_broker_start_refuses_settings_by_name(run_pylog: Pylog, tmp_path: Path, text: str, named: str) -> None:
    """Unknown or wrong settings are refused by name with what is allowed: exit 2."""
    (tmp_path / "broker.toml").write_text(text)
    refused = run_pylog("broker", "start", "--config", "broker.toml")
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.startswith("[INVALID_CONFIG]")
    assert named in refused.stderr
    assert "Traceback" not in refused.stderr


def test_unreachable_broker_is_reported_with_a_remedy(run_pylog: Pylog) -> None:
    """`[BROKER_UNAVAILABLE] localhost:9192 refused for 10 s. Start one: pylog up`; exit 4."""
    address = f"127.0.0.1:{choose_port()}"
    refused = run_pylog("topic", "list", "-b", address, "--timeout", "1")
    assert refused.returncode == 4
    assert refused.stderr == f"[BROKER_UNAVAILABLE] {address} refused for 1 s. Start one: pylog up\n"
    assert refused.stdout == ""


def test_foreign_server_is_not_mistaken_for_a_broker(run_pylog: Pylog) -> None:
    """`[NOT_A_PYLOG_BROKER]` names the service that is there; exit 4."""
    code = (
        "import socket, sys\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True)\n"
        "while True:\n"
        "    c, _ = s.accept(); c.recv(1024); c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'); c.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as foreign_server:
        try:
            assert foreign_server.stdout is not None
            address = f"127.0.0.1:{foreign_server.stdout.readline().strip()}"
            refused = run_pylog("topic", "list", "-b", address, "--timeout", "5")
        finally:
            foreign_server.kill()
    assert refused.returncode == 4
    assert refused.stderr == f"[NOT_A_PYLOG_BROKER] {address} is a web server, not a pylog broker\n"


def test_up_shows_the_cluster_in_a_browser(tmp_path: Path) -> None:
    """`pylog up` prints the console's address, which knows the cluster; it ends with the rest."""
    with foreground(tmp_path, "up", "--data", str(tmp_path / "data"), "--port", "0") as (process, address):
        said = re.search(r"Console +(http://127\.0\.0\.1:\d+/)", (tmp_path / "said").read_text())
        assert said is not None
        page = urllib.request.urlopen(said[1], timeout=LIMIT_S).read().decode()
        assert "The cluster is healthy" in page
        assert address in page
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(said[1], timeout=LIMIT_S)
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_up_starts_without_its_console(run_pylog: Pylog, tmp_path: Path) -> None:
    """A port in use is said and fails nothing; --no-console starts none."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = str(holder.getsockname()[1])
        arguments = ("up", "--data", str(tmp_path / "data"), "--port", "0", "--console-port", taken)
        with foreground(tmp_path, *arguments) as (_, address):
            assert run_pylog("topic", "list", "-b", address).returncode == 0
            assert f"Console    not started: cannot listen on 127.0.0.1:{taken}" in (tmp_path / "said").read_text()
    (tmp_path / "said").unlink()
    with foreground(tmp_path, "up", "--data", str(tmp_path / "data"), "--port", "0", "--no-console"):
        assert "Console" not in (tmp_path / "said").read_text()


def test_console_serves_until_it_is_stopped(run_pylog: Pylog, tmp_path: Path) -> None:
    """`pylog console` prints its address to standard output for programs, and ends with 0 at Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with foreground(tmp_path, "console", "--port", "0", "-b", "127.0.0.1:1") as (process, address):
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{address}topics", timeout=LIMIT_S)
            process.send_signal(number)
            assert process.wait(LIMIT_S) == 0
    assert "Traceback" not in (tmp_path / "said").read_text()
    refused = run_pylog("console", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "--allow-anyone" in refused.stderr
    wrong = run_pylog("console", "--port", "0", "--ssl-certfile", str(tmp_path / "none.pem"))
    assert wrong.returncode == 2
    assert "give both or neither" in wrong.stderr
