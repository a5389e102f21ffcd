"""A broker's life: what prevents its start, how it ends, and what it does without ZooKeeper."""

import contextlib
import os
import re
import signal
import socket
import time
from datetime import datetime
from pathlib import Path

import pytest

from broker_runtime.contract import errors
from broker_runtime.zookeeper.client import KazooZooKeeper
from tests.integration.broker import broker_ahead
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("real_brokers")


def watcher(connect):
    return KazooZooKeeper.connect(connect, session_timeout_ms=10_000)


def test_killed_broker_is_back_at_once_under_a_higher_epoch(broker):
    """The broker does not wait for its predecessor's registration and claim, which last until the session ends."""
    epoch = broker.call("metadata").brokers[0].epoch
    broker.kill()
    started = time.monotonic()
    broker.start()
    assert time.monotonic() - started < 15, "less than the session's 18 s"
    metadata = broker.call("metadata")
    assert [(b.broker_id, b.epoch) for b in metadata.brokers] == [(1, epoch + 1)]
    assert metadata.controller_id == 1


def test_second_broker_on_the_port_names_the_first(broker, new_broker):
    """Without this check, Flight would silently let both brokers listen."""
    second = new_broker("second", **{"broker.id": 2, "listeners": f"127.0.0.1:{broker.port}"})
    second.launch()
    assert second.exit_code() == 1
    assert (
        f"[PORT_IN_USE] 127.0.0.1:{broker.port} is taken by pid {broker.process.pid}. Set listeners=" in second.output
    )


def test_second_broker_of_the_same_id_names_the_first(broker, new_broker):
    second = new_broker("second")
    second.launch()
    assert second.exit_code() == 1
    assert f"[SETUP] broker.id 1 is registered by 127.0.0.1:{broker.port} pid {broker.process.pid}" in second.output
    assert [b.port for b in broker.call("metadata").brokers] == [broker.port]


def test_second_broker_on_the_directories_is_refused(broker, new_broker):
    second = new_broker("second", **{"log.dirs": str(broker.directory / "log")})
    second.launch()
    assert second.exit_code() == 1
    assert "[DIRECTORY_LOCKED]" in second.output


@pytest.mark.parametrize("place", ["log/t-0", "log/t-0/deeper", "", "log2,{}/./log2", "log2,{}/log2/deeper"])
def test_broker_with_nested_data_directories_is_refused(broker, new_broker, place):
    first = broker.directory
    second = new_broker("second", **{"broker.id": 2, "log.dirs": f"{first}/{place.format(first)}"})
    second.launch()
    assert second.exit_code() == 1
    assert "[SETUP] log.dirs: " in second.output
    assert "Traceback" not in second.output
    assert not (first / "log2").exists()
    assert not (first / "log" / "t-0").exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"log.dir": "/x"}, "'log.dir' is not a broker setting; did you mean 'log.dirs'?"),
        ({"num.partitions": "many"}, "num.partitions='many': must be a whole number"),
        ({"log.dirs": "/proc/none"}, "log.dirs: /proc/none cannot be used"),
    ],
)
def test_wrong_settings_are_refused_by_name(new_broker, settings, problem):
    broker = new_broker(**settings)
    broker.launch()
    assert broker.exit_code() == 1
    assert problem in broker.output
    assert "Traceback" not in broker.output


def test_start_without_zookeeper_is_one_bounded_error(new_broker):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        broker = new_broker(zookeeper=f"{address}/x", **{"zookeeper.session.timeout.ms": "2s"})
        broker.launch()
        assert broker.exit_code() == 1
    assert f"[ZOOKEEPER_UNAVAILABLE] No ZooKeeper answers at {address}" in broker.output


def test_stopped_broker_removes_its_znodes(broker, zookeeper_connect):
    assert broker.stop() == 0
    client = watcher(zookeeper_connect)
    assert client.children("/brokers/ids") == []
    assert client.find("/controller") is None
    client.close()
    assert (broker.directory / "log" / "clean-shutdown").exists()


def test_broker_serves_without_zookeeper_and_topic_changes_wait(new_broker, own_zookeeper):
    """W26: established leaders continue to serve; when ZooKeeper is back, all operations work again."""
    broker = new_broker(zookeeper=f"{own_zookeeper.connect_string}/c").start()
    broker.call("create_topic", name="t")
    broker.produce("t", [b"before"])
    own_zookeeper.kill()
    broker.produce("t", [b"during"])
    assert broker.consume("t") == [b"before", b"during"]
    wait_until(lambda: "change session state state=suspended" in broker.output, "the broker noticed")
    with pytest.raises(errors.ZooKeeperUnavailableError):
        broker.call("create_topic", name="u")
    with pytest.raises(errors.ZooKeeperUnavailableError):
        broker.call("fetch_offsets", group_id="g")
    own_zookeeper.start()

    def creates():
        try:
            return broker.call("create_topic", name="u")
        except errors.RetriableError:
            return None

    wait_until(creates, "topics can be made again")
    broker.produce("u", [b"x"])
    broker.produce("t", [b"after"])
    assert broker.consume("t") == [b"before", b"during", b"after"]


def test_broker_stops_in_bounded_time_without_zookeeper(new_broker, own_zookeeper):
    broker = new_broker(zookeeper=f"{own_zookeeper.connect_string}/c").start()
    broker.call("create_topic", name="t")
    broker.produce("t", [b"x"])
    own_zookeeper.kill()
    started = time.monotonic()
    assert broker.stop() == 0
    assert time.monotonic() - started < 25
    assert (broker.directory / "log" / "clean-shutdown").exists(), "the logs were closed in order"


def test_broker_registers_and_leads_again_when_its_session_expired(new_broker, zookeeper_connect):
    """After its session expired, the broker serves only with fresh epochs."""
    broker = new_broker(**{"zookeeper.session.timeout.ms": "2s"}).start()
    broker.call("create_topic", name="t")
    broker.produce("t", [b"x"])
    client = watcher(zookeeper_connect)
    os.kill(broker.process.pid, signal.SIGSTOP)
    wait_until(lambda: client.children("/brokers/ids") == [], "its session expired")
    broker.close_client()
    os.kill(broker.process.pid, signal.SIGCONT)
    client.close()

    def leads_again():
        try:
            partition = broker.topic("t").partitions[0]
            return partition.leader_epoch >= 1 and broker.consume("t") == [b"x"]
        except errors.RetriableError:
            return False

    wait_until(leads_again, "it leads again")
    broker.produce("t", [b"y"])
    assert broker.consume("t") == [b"x", b"y"]
    assert broker.call("metadata").brokers[0].epoch >= 2


def test_broker_ends_with_one_error_when_its_id_was_taken_while_it_was_frozen(new_broker, zookeeper_connect):
    """A broker whose id was taken fails as a second broker with the same id does at its start."""
    broker = new_broker(**{"zookeeper.session.timeout.ms": "2s"}).start()
    os.kill(broker.process.pid, signal.SIGSTOP)
    with contextlib.closing(watcher(zookeeper_connect)) as client:
        wait_until(lambda: client.children("/brokers/ids") == [], "its session expired")
    other = new_broker("other").start()
    os.kill(broker.process.pid, signal.SIGCONT)
    assert broker.exit_code() == 1
    assert broker.output.count("broker.id 1 is registered by") == 1
    assert "Traceback" not in broker.output
    assert other.stop() == 0


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]])
def test_broker_stops_when_it_was_signalled_while_frozen(broker, numbers):
    """Shutdown is bounded although the kernel may deliver the signal to any thread."""
    os.kill(broker.process.pid, signal.SIGSTOP)
    for number in numbers:
        broker.process.signal(number)
    broker.close_client()
    os.kill(broker.process.pid, signal.SIGCONT)
    assert broker.exit_code() in {0, 130}


def test_start_loads_no_log(new_broker):
    """Start is lazy: its cost does not grow with the number of records in the broker's partitions."""
    broker = new_broker().start()
    broker.call("create_topic", name="t", partitions=50)
    broker.produce("t", [b"x"], partition=7)
    assert broker.stop() == 0
    broker.start()
    opened = []
    for descriptor in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            opened.append(str(descriptor.readlink()))
    assert not [path for path in opened if "/log/t-" in path]
    assert "recover log" not in broker.output.rpartition("open directory")[2]
    assert broker.consume("t", 7) == [b"x"]


def test_clock_that_jumped_ahead_while_the_broker_was_stopped_deletes_nothing(new_broker):
    """ZooKeeper's clock is trusted when the broker's clock is ahead of it, and one log line names both times."""
    broker = new_broker(**{"log.retention.check.interval.ms": 100}).start()
    broker.call("create_topic", name="t", config={"retention.ms": str(86_400_000)})
    broker.call("create_topic", name="u", config={"retention.ms": "1"})
    broker.produce("t", [b"x"])
    assert broker.stop() == 0
    before_ms = time.time_ns() // 1_000_000
    broker.program = [broker_ahead.__file__]
    broker.start()
    broker.produce("u", [b"y"])
    wait_until(lambda: broker.topic("u", with_offsets=True).partitions[0].log_start == 1, "retention was applied")
    assert broker.consume("t") == [b"x"]
    (times,) = re.findall(r"follow zookeeper's clock here=(\S+) zookeeper=(\S+)", broker.output)
    here_ms, zookeeper_ms = (round(datetime.fromisoformat(each).timestamp() * 1_000) for each in times)
    assert 0 <= zookeeper_ms - before_ms < 60_000
    assert 0 <= here_ms - before_ms - broker_ahead.AHEAD_MS < 60_000
    assert "ignore clock set ahead" not in broker.output
