"""A leader whose fsync fails, and whose disk then lacks what it could not write, as Linux allows."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster
from tests.chaos.system_calls import FAILED_SYNC, CallFaults, can_inject
from tests.integration.cluster.replicas import numbers_in, replicas_are_identical
from tests.waiting import wait_until

FLUSHED, NOT_FLUSHED = 40, 20


def cut_newest_segment(directory: Path, size_bytes: int) -> None:
    """What lies behind is gone, as pages are that a failed fsync left clean and the kernel dropped."""
    newest = max(directory.glob("*.log"))
    assert 0 < size_bytes < newest.stat().st_size
    with newest.open("r+b") as file:
        file.truncate(size_bytes)


def test_failed_log_does_not_lead_while_one_that_has_all_is_only_away(tmp_path: Path) -> None:
    """Without ``flush.mode=ack``: the former leader is back first, and waits for the other replica. Nothing is lost."""
    if not can_inject(tmp_path):
        return  # strace is missing here, or may not attach
    with (
        LocalCluster(brokers=2) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer,
    ):
        config = {"flush.mode": "interval", "flush.ms": "200"}
        created = admin.create_topic("t", partitions=1, replication_factor=2, config=config).partitions[0]
        first = created.leader
        assert first is not None
        other = next(broker_id for broker_id in created.replicas if broker_id != first)
        directory = cluster.log_dirs(first)[0] / "t-0"

        def send(numbers: range) -> None:
            for future in [producer.send("t", b"%d" % number) for number in numbers]:
                future.result(30)

        send(range(FLUSHED))
        flushed_bytes = max(directory.glob("*.log")).stat().st_size
        time.sleep(2)  # the disk has it by then
        fault = CallFaults(cluster.pid(first), FAILED_SYNC, tmp_path / "strace.out")
        try:
            send(range(FLUSHED, FLUSHED + NOT_FLUSHED))
            cluster.pause(other)  # it commits nothing from now on
            wait_until(lambda: admin.describe_topic("t").partitions[0].leader != first, "the leader hands over")
            cluster.kill(other)
            cluster.kill(first)
        finally:
            fault.end()
        cut_newest_segment(directory, flushed_bytes)
        cluster.start(first)

        def is_first_alone() -> bool:
            brokers = admin.describe_cluster().brokers
            return first in brokers and other not in brokers

        wait_until(is_first_alone, "the session of the other replica has ended")
        for _ in range(10):
            assert admin.describe_topic("t").partitions[0].leader is None
            time.sleep(0.3)
        cluster.start(other)
        wait_until(lambda: admin.check_health().is_healthy, "the cluster is healthy when the other replica is back")
        replicas_are_identical(cluster, "t")
        assert sorted(numbers_in(cluster, "t")) == list(range(FLUSHED + NOT_FLUSHED))


def test_log_whose_fsync_fails_in_an_orderly_stop_waits_for_the_other(tmp_path: Path) -> None:
    """The broker has nobody to hand over to, reports it last of all, and has less when it is back. Nothing is lost."""
    if not can_inject(tmp_path):
        return  # strace is missing here, or may not attach
    with (
        LocalCluster(brokers=2) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer,
    ):
        config = {"flush.mode": "os", "min.insync.replicas": "2"}
        first = admin.create_topic("t", partitions=1, replication_factor=2, config=config).partitions[0].leader
        assert first is not None
        other = next(each for each in admin.describe_cluster().brokers if each != first)
        for future in [producer.send("t", b"%d" % number) for number in range(FLUSHED)]:
            future.result(30)
        directory = cluster.log_dirs(first)[0] / "t-0"
        size = max(directory.glob("*.log")).stat().st_size
        cluster.stop(other)
        wait_until(lambda: admin.describe_topic("t").partitions[0].isr == (first,), "the other one has left")
        fault = CallFaults(cluster.pid(first), FAILED_SYNC, tmp_path / "strace.out")
        try:
            cluster.stop(first)
        finally:
            fault.end()
        cut_newest_segment(directory, size // 2)
        cluster.start(first)
        wait_until(lambda: len(admin.describe_cluster().brokers) == 1, "the first one is back")
        for _ in range(10):
            assert admin.describe_topic("t").partitions[0].leader is None
            time.sleep(0.3)
        cluster.start(other)
        wait_until(lambda: admin.check_health().is_healthy, "the cluster is healthy when the other replica is back")
        replicas_are_identical(cluster, "t")
        assert sorted(numbers_in(cluster, "t")) == list(range(FLUSHED))
