"""What `pylog broker start` tells the systemd that started it: a real socket stands for systemd's."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from collections.abc import Iterator

import pytest

from broker_runtime.broker_process import Systemd
from tests.waiting import comes_true, wait_until

pytestmark = pytest.mark.usefixtures("real_brokers")

LIMIT_S = 60.0
WATCHDOG_S = 1.0


class NotifySocket:
    """Keeps what is sent to it, in order."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        """All assignments until now."""
        while True:
            try:
                message = self._socket.recv(4096)
            except BlockingIOError:
                return list(self._lines)
            self._lines += message.decode().split("\n")

    def count(self, line: str) -> int:
        """How often it was sent until now."""
        return self.lines().count(line)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path, monkeypatch) -> Iterator[NotifySocket]:
    """What the broker's environment names."""
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    listening = NotifySocket(address)
    yield listening
    listening.close()


@pytest.fixture
def new_service(new_broker):
    """Makes brokers that are started as the unit file does."""

    def new_service(**settings):
        broker = new_broker(**settings)
        broker.program = ["-m", "pyspark_log.cli", "broker", "start"]
        return broker

    return new_service


def test_start_is_over_when_the_broker_serves_and_the_stop_is_announced(new_service, systemd) -> None:
    """READY=1 comes once, when clients are served, and STOPPING=1 at SIGTERM. Without WatchdogSec nothing is pinged."""
    broker = new_service().start()
    served = f"STATUS=broker 1 at 127.0.0.1:{broker.port}: serves"
    wait_until(lambda: served in systemd.lines(), "it serves", LIMIT_S)
    assert broker.call("metadata", topics=()).brokers
    assert systemd.lines() == ["STATUS=starting", "READY=1", served]
    assert broker.stop() == 0
    assert systemd.lines()[3:] == ["STOPPING=1", "STATUS=stopping"]


def test_broker_that_stands_still_does_not_ping(new_service, systemd, monkeypatch) -> None:
    """A stopped process sends no WATCHDOG=1: systemd would restart it."""
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1_000_000)))
    broker = new_service().start()
    wait_until(lambda: systemd.count("WATCHDOG=1") >= 3, "it pings", LIMIT_S)
    os.kill(broker.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, broker.process.pid, os.WSTOPPED | os.WNOWAIT)
    before = systemd.count("WATCHDOG=1")
    assert not comes_true(lambda: systemd.count("WATCHDOG=1") > before, 2 * WATCHDOG_S)
    os.kill(broker.process.pid, signal.SIGCONT)
    wait_until(lambda: systemd.count("WATCHDOG=1") > before, "it pings again", LIMIT_S)


def test_broker_without_zookeeper_pings_and_says_so(new_service, systemd, monkeypatch, own_zookeeper) -> None:
    """As /healthz, the watchdog asks whether the process lives: a restart would not bring ZooKeeper back."""
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1_000_000)))
    broker = new_service(zookeeper=f"{own_zookeeper.address}/pylog").start()
    own_zookeeper.kill()
    said = f"STATUS=broker 1 at 127.0.0.1:{broker.port}: not ready: ZooKeeper does not answer"
    wait_until(lambda: said in systemd.lines(), "it says so", LIMIT_S)
    before = systemd.count("WATCHDOG=1")
    wait_until(lambda: systemd.count("WATCHDOG=1") > before + 2, "it still pings", LIMIT_S)
    assert systemd.count("READY=1") == 1


def test_start_that_fails_is_never_ready(new_service, systemd) -> None:
    """systemd counts it as failed, by the exit code."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = new_service(**{"http.listener": f"127.0.0.1:{taken.getsockname()[1]}"})
        broker.launch()
        assert broker.exit_code() == 1
    assert systemd.lines() == ["STATUS=starting"]


def test_abstract_sockets_are_told_as_well() -> None:
    """Where NOTIFY_SOCKET begins with @."""
    name = f"pylog-{uuid.uuid4()}"
    listening = NotifySocket(f"\0{name}")
    Systemd({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1")
    assert listening.lines() == ["READY=1"]
    listening.close()


@pytest.mark.parametrize(
    ("environment", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "500000"}, None),
        ({"NOTIFY_SOCKET": "/nobody"}, 1.0),
        ({"NOTIFY_SOCKET": "/nobody", "WATCHDOG_USEC": "500000"}, 0.25),
        ({"NOTIFY_SOCKET": "/nobody", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
        ({"NOTIFY_SOCKET": "/nobody", "WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, 1.0),
        ({"NOTIFY_SOCKET": "/nobody", "WATCHDOG_USEC": "soon"}, 1.0),
    ],
)
def test_watchdog_is_pinged_twice_in_its_time(environment: dict[str, str], period_s: float | None) -> None:
    """Only that of this process, and without NOTIFY_SOCKET nothing is sent; a socket that is gone harms nobody."""
    systemd = Systemd(environment)
    assert systemd.period_s == period_s
    systemd.tell_alive("serves")
