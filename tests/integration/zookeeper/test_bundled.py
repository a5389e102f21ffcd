"""The bundled ZooKeeper: a real server out of PySpark's jars."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker_runtime.contract.errors import (
    DirectoryLockedError,
    JavaNotFoundError,
    PortInUseError,
    SetupError,
    ZooKeeperUnavailableError,
)
from broker_runtime.zookeeper.bundled import SESSION_LIMITS_MS, BundledZooKeeper, four_letters
from broker_runtime.zookeeper.client import KazooZooKeeper
from tests.waiting import wait_until

LIMIT_S = 30.0


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("options", "said"),
    [("-XX:NoSuchOption", "NoSuchOption"), ("-Da='b", "is no list of options of Java: No closing quotation")],
)
def test_further_options_of_java_come_from_the_variable(tmp_path, options, said):
    """As ZooKeeper's own scripts take them; a wrong one is named."""
    server = BundledZooKeeper(tmp_path, environment={**os.environ, "SERVER_JVMFLAGS": options})
    with pytest.raises(SetupError, match=said):
        server.start()
    assert not server.is_running


def test_data_outlives_a_kill_and_the_port_stays(tmp_path):
    """W26: the cluster's state survives completely."""
    with BundledZooKeeper(tmp_path) as server:
        address = server.connect_string
        # The longest: a newly started JVM on a busy machine may let a session of 10 s end before it answers.
        client = KazooZooKeeper.connect(f"{address}/root", session_timeout_ms=SESSION_LIMITS_MS[1])
        client.create("/kept", b"x")
        session = client.session_id
        server.kill()
        assert not server.is_running
        server.start()
        assert server.connect_string == address
        wait_until(lambda: client.is_connected, "the client is back", LIMIT_S)
        assert client.get("/kept").data == b"x"
        assert client.session_id == session
        client.close()


def test_connection_that_is_never_answered_does_not_cost_the_session(tmp_path):
    """A starting ZooKeeper can fail while it closes a connection, which then stays open for ever."""
    with BundledZooKeeper(tmp_path) as server:
        client = KazooZooKeeper.connect(server.connect_string, session_timeout_ms=15_000)
        session = client.session_id
        server.kill()
        with socket.create_server(server.address) as mute:
            mute.settimeout(10)
            first, _ = mute.accept()
            with first:
                second, _ = mute.accept()  # long before the session's 15 s are over
                second.close()
        server.start()
        wait_until(lambda: client.is_connected, "the client is back", LIMIT_S)
        assert client.session_id == session
        client.close()


def test_only_loopback_is_served(zookeeper_server):
    assert zookeeper_server.address.host == "127.0.0.1"
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", zookeeper_server.address.port)) != 0


def test_second_server_on_one_directory_is_refused(zookeeper_server):
    with pytest.raises(DirectoryLockedError, match="Another ZooKeeper runs on"):
        BundledZooKeeper(zookeeper_server._directory).start()
    assert "Mode:" in four_letters(zookeeper_server.address, "srvr")


def test_taken_port_is_refused_by_name(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"127.0.0.1:{port} is taken"):
            BundledZooKeeper(tmp_path, port=port).start()


def test_missing_java_is_the_error_of_the_readme(tmp_path):
    """A newcomer gets this error, word for word."""
    with pytest.raises(JavaNotFoundError, match=r"^\[JAVA_NOT_FOUND\] The bundled ZooKeeper needs Java 17 or later; "):
        BundledZooKeeper(tmp_path, environment={"PATH": "/nowhere"}).start()


def test_server_that_ends_at_once_shows_its_last_output(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "version-2").write_text("not a directory")
    server = BundledZooKeeper(tmp_path)
    with pytest.raises(SetupError, match=r"ended at once \(exit \d+\)\. Its last words: .*version-2"):
        server.start()
    assert not server.is_running


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_dies_with_its_parent(tmp_path, number):
    """The process never outlives its parent, however that ends."""
    script = (
        "import sys, time, pathlib\n"
        "from broker_runtime.zookeeper.bundled import BundledZooKeeper\n"
        "server = BundledZooKeeper(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.send_signal(number)
    parent.wait(30)
    parent.stdout.close()
    wait_until(lambda: not is_alive(pid), "the server is gone", LIMIT_S)


def test_server_dies_with_its_parent_though_a_fork_survives(tmp_path):
    script = (
        "import os, sys, time, pathlib\n"
        "from broker_runtime.zookeeper.bundled import BundledZooKeeper\n"
        "server = BundledZooKeeper(pathlib.Path(sys.argv[1])); server.start()\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "print(server.pid, child, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    pid, fork = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait(30)
        wait_until(lambda: not is_alive(pid), "the server is gone", LIMIT_S)
        assert is_alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        parent.stdout.close()


def test_connecting_without_a_server_is_a_bounded_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(ZooKeeperUnavailableError, match=f"No ZooKeeper answers at 127.0.0.1:{port} after 1 s"):
        KazooZooKeeper.connect(f"127.0.0.1:{port}/x", session_timeout_ms=4_000, connect_timeout_s=1)
    assert time.monotonic() - started < 30


def test_host_name_that_does_not_exist_is_said_at_once():
    """Waiting would not help, and the name is the mistake."""
    started = time.monotonic()
    with pytest.raises(ZooKeeperUnavailableError, match=r"host name not found: nosuch.invalid, also.invalid"):
        KazooZooKeeper.connect("nosuch.invalid:2181,also.invalid/pylog", session_timeout_ms=4_000)
    assert time.monotonic() - started < 10


def test_calls_are_bounded_while_the_server_is_frozen(tmp_path):
    """Every wait is bounded; the session continues when the server does."""
    with BundledZooKeeper(tmp_path) as server:
        client = KazooZooKeeper.connect(server.connect_string, session_timeout_ms=60_000, operation_limit_s=0.5)
        session = client.session_id
        os.kill(server.pid, signal.SIGSTOP)
        wait_until(server._process.has_stopped, "none of its threads runs", LIMIT_S)
        try:
            with pytest.raises(ZooKeeperUnavailableError):
                client.create("/a")
        finally:
            os.kill(server.pid, signal.SIGCONT)

        def is_written():
            try:
                client.ensure_path("/b")
            except ZooKeeperUnavailableError:
                return False  # not within the limit, which is short here
            return True

        wait_until(is_written, "answered again", LIMIT_S)
        assert client.session_id == session
        client.close()


def test_expired_session_refuses_writes_of_the_old_belief(tmp_path):
    """0.2 s after the expiry kazoo has a new session, in which a write of the old belief would succeed."""
    with BundledZooKeeper(tmp_path) as server:
        client = KazooZooKeeper.connect(server.connect_string, session_timeout_ms=2_000)
        states = []
        client.listen(states.append)
        old = client.session_id
        client.create("/mine", ephemeral=True, session=old)
        # Another connection takes over the session and ends it: the fastest real expiry there is.
        from kazoo.client import KazooClient

        thief = KazooClient(hosts=server.connect_string, client_id=client._client.client_id, timeout=2)
        thief.start(10)
        thief.stop()
        thief.close()
        wait_until(lambda: client.is_connected and client.session_id not in {0, old}, "a new session", 60)
        with pytest.raises(ZooKeeperUnavailableError, match="session it was to be written in has ended"):
            client.create("/belief", session=old)
        assert client.find("/belief") is None
        assert client.find("/mine") is None
        assert "lost" in [state.value for state in states]
        client.close()
