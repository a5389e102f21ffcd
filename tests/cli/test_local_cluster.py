"""`LocalCluster` and the fixture, on which users' tests rely."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from processes import children_of, is_alive, process_table, wait_until_gone

from pyspark_log import Admin, Producer, read
from pyspark_log.errors import BrokerUnavailableError, ClientStateError, InvalidConfigError, SetupError
from pyspark_log.testing import LocalCluster

pytestmark = pytest.mark.usefixtures("real_brokers", "own_zookeepers_in_module")

LIMIT_S = 60


def write(cluster: LocalCluster, *values: bytes) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send("t", value)


def values(cluster: LocalCluster) -> list[bytes]:
    return read("t", bootstrap_servers=cluster.bootstrap_servers).read_all()["value"].to_pylist()


def test_local_cluster_keeps_records_and_ports_over_kill_stop_and_start(tmp_path: Path) -> None:
    """A killed or stopped broker keeps its port when it restarts, and acknowledged records are there (W19)."""
    with LocalCluster(directory=tmp_path) as cluster:
        address = cluster.bootstrap_servers
        assert list(cluster.broker_ids) == [1]
        with Admin(address) as admin:
            admin.create_topic("t")
        write(cluster, b"1")
        first_pid = cluster.pid(1)
        cluster.kill(1)
        assert not is_alive(first_pid)
        with pytest.raises(BrokerUnavailableError):
            cluster.wait_until_ready(timeout_s=1)
        cluster.start(1)
        assert cluster.pid(1) != first_pid
        write(cluster, b"2")
        cluster.stop(1)
        cluster.start(1)
        cluster.wait_until_ready()
        assert cluster.bootstrap_servers == address
        assert values(cluster) == [b"1", b"2"]
        assert all(path.is_relative_to(tmp_path) and path.is_dir() for path in cluster.log_dirs(1))
    with LocalCluster(directory=tmp_path) as cluster:
        assert values(cluster) == [b"1", b"2"]


def test_local_cluster_is_opened_once(tmp_path: Path) -> None:
    """A second set of servers would be left running."""
    cluster = LocalCluster(directory=tmp_path)
    with cluster:
        with pytest.raises(ClientStateError, match=r"is open already: close\(\) it first"):
            cluster.open()
        assert list(cluster.broker_ids) == [1]


def test_local_cluster_continues_when_zookeeper_comes_back(tmp_path: Path) -> None:
    """After `kill_zookeeper`, stop_zookeeper and start_zookeeper the broker continues (W26 for existing topics)."""
    with LocalCluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t")
        connect = cluster.zookeeper_connect
        cluster.kill_zookeeper(1)
        cluster.start_zookeeper(1)
        cluster.stop_zookeeper(1)
        cluster.start_zookeeper(1)
        assert cluster.zookeeper_connect == connect
        cluster.wait_until_ready()
        write(cluster, b"1")
        assert values(cluster) == [b"1"]


def test_local_cluster_pauses_and_resumes_a_broker() -> None:
    """Pause is SIGSTOP, resume SIGCONT; a paused broker can be stopped for good."""
    with LocalCluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t")
        cluster.pause(1)
        assert process_table()[cluster.pid(1)].state.startswith("T")
        cluster.resume(1)
        write(cluster, b"1")
        cluster.pause(1)
        pid = cluster.pid(1)
    assert not is_alive(pid)


def test_local_cluster_leaves_no_process_and_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leaving the `with` statement, even by an error, ends all processes and removes the temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children_of(os.getpid())
    started: set[int] = set()

    def fail_with_a_cluster() -> None:
        with LocalCluster() as cluster:
            started.update(children_of(os.getpid()) - before)
            assert cluster.pid(1) in started
            assert list(tmp_path.iterdir())
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail_with_a_cluster()
    wait_until_gone(started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_local_cluster_ends_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    """No process outlives the test that started it, even if that is killed; this includes the broker's and the
    JVM's.
    """
    code = (
        "import os, time\nfrom pyspark_log.testing import LocalCluster\n"
        f"cluster = LocalCluster(directory={str(tmp_path)!r})\ncluster.open()\n"
        # A fork of the test must not keep the cluster alive either.
        "pid = os.fork()\n"
        "time.sleep(1000) if pid == 0 else print(pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        forked = int(owner.stdout.readline())
        try:
            below = children_of(owner.pid) - {forked}
            assert len(below) >= 2
            os.kill(owner.pid, number)
            owner.wait(LIMIT_S)
            wait_until_gone(below)
        finally:
            os.kill(forked, signal.SIGKILL)
            owner.kill()


def test_local_cluster_accepts_broker_settings() -> None:
    """Settings by dotted name reach the broker; wrong ones are the broker's own errors."""
    with LocalCluster(settings={"num.partitions": "3"}) as cluster, Admin(cluster.bootstrap_servers) as admin:
        assert len(admin.create_topic("t").partitions) == 3
    with pytest.raises(InvalidConfigError, match=r"num\.partition"), LocalCluster(settings={"num.partition": "3"}):
        pass


def test_local_cluster_of_several_grows_and_loses_a_zookeeper() -> None:
    """Brokers and ZooKeepers can be added and killed; one ZooKeeper of three may be gone (W26)."""
    with LocalCluster(brokers=2, zookeepers=3) as cluster, Admin(cluster.bootstrap_servers) as admin:
        assert len(cluster.zookeeper_connect.split(",")) == 3
        cluster.kill_zookeeper(2)
        assert cluster.add_broker() == 3
        cluster.wait_until_ready()
        assert sorted(admin.describe_cluster().brokers) == [1, 2, 3] == list(cluster.broker_ids)
        assert len(cluster.bootstrap_servers.split(",")) == 3
        cluster.start_zookeeper(2)
        cluster.kill_zookeeper(1)
        cluster.wait_until_ready()


def test_local_cluster_refuses_impossible_requests(tmp_path: Path) -> None:
    """Zero of something, unknown numbers, and data of another ensemble are refused clearly."""
    with pytest.raises(InvalidConfigError, match="brokers=0"):
        LocalCluster(brokers=0)
    with pytest.raises(BrokerUnavailableError, match="not open"):
        _ = LocalCluster().bootstrap_servers
    (tmp_path / "zookeeper-1").mkdir()
    with pytest.raises(SetupError, match="contains the data of 1 ZooKeeper server, not 3"):
        LocalCluster(zookeepers=3, directory=tmp_path).open()
    with LocalCluster() as cluster:
        with pytest.raises(BrokerUnavailableError, match=r"there is no broker 2; the brokers are \[1\]"):
            cluster.kill(2)
        with pytest.raises(BrokerUnavailableError, match=r"there is no ZooKeeper 2; the servers are \[1\]"):
            cluster.start_zookeeper(2)


def test_fixture_is_one_cluster_per_session(tmp_path: Path) -> None:
    """The pytest fixture is `pylog_cluster`, wherever the package is installed: tests of two files have the same."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text("def test_it(pylog_cluster): print('broker', pylog_cluster.pid(1))\n")
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=3 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = re.findall(r"broker (\d+)", done.stdout)
    assert first == second
    wait_until_gone({int(first)})
