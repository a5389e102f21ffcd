"""A broker whose disk stalls: each fsync of its process takes longer than `replica.lag.time.max.ms`."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from pyspark_log import Admin, Producer, RecordMetadata
from pyspark_log.testing import LocalCluster
from tests.chaos.system_calls import CallFaults, can_inject, stalled_sync
from tests.integration.cluster.replicas import numbers_in, replicas_are_identical
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("real_brokers")

LAG_LIMIT_S = 2.0
STALL_S = 30.0  # longer than every limit that is involved: between two fsyncs the disk is well for a moment
PARTITIONS = 6


def leaders(admin: Admin) -> list[int | None]:
    return [partition.leader for partition in admin.describe_topic("stalled").partitions]


def test_broker_gives_up_its_leaderships_and_stays_when_its_disk_stalls(tmp_path: Path) -> None:
    """S6: other brokers lead its partitions and accept records while the disk stalls; the broker stays registered,
    and catches up and leads again when the disk recovers. Nothing is lost or duplicated.
    """
    if not can_inject(tmp_path):
        return  # strace is missing here, or may not attach
    settings = {"replica.lag.time.max.ms": f"{LAG_LIMIT_S * 1_000:.0f}"}
    with (
        LocalCluster(brokers=3, settings=settings) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer,
    ):
        topic = admin.create_topic("stalled", partitions=PARTITIONS, replication_factor=3)
        stalled = topic.partitions[0].leader
        assert stalled is not None
        sent: list[tuple[int, float, Future[RecordMetadata]]] = []
        answered_s: dict[int, float] = {}  # by number: how long its acknowledgement took

        def send() -> None:
            for partition in range(PARTITIONS):
                number, began_s = len(sent), time.monotonic()
                future = producer.send("stalled", b"%d" % number, partition=partition)
                future.add_done_callback(
                    lambda _, number=number, began_s=began_s: answered_s.setdefault(number, time.monotonic() - began_s)
                )
                sent.append((number, began_s, future))

        send()
        for _, _, future in sent:
            future.result(30)
        first = leaders(admin)
        epoch = admin.describe_cluster().brokers[stalled].epoch
        fault = CallFaults(cluster.pid(stalled), stalled_sync(STALL_S), tmp_path / "strace.out")
        try:
            began_s = time.monotonic()
            send()
            wait_until(lambda: stalled not in leaders(admin), "others lead", 10 * LAG_LIMIT_S)
            moved_s = time.monotonic() - began_s
            for _, _, future in sent:
                future.result(30)  # though the disk stalls
            acknowledged_s = time.monotonic() - began_s
            send()
            for _, _, future in sent:
                future.result(30)
            health = admin.check_health()
            assert any(f"broker {stalled}:" in each and "stands still" in each for each in health.disks), health.disks
            assert admin.describe_cluster().brokers[stalled].epoch == epoch
            assert stalled not in leaders(admin)
        finally:
            fault.end()
        waits_s = {
            who: max(answered_s[number] for number, _, _ in sent if (first[number % PARTITIONS] == stalled) == is_led)
            for who, is_led in (("led by the stalled broker", True), ("led by others", False))
        }
        print(f"leaderships moved after {moved_s:.1f} s, all acknowledged after {acknowledged_s:.1f} s: {waits_s}")
        assert max(waits_s.values()) < 10 * LAG_LIMIT_S
        wait_until(lambda: admin.check_health().is_healthy, "the cluster is healthy when the disk has recovered")
        assert admin.describe_cluster().brokers[stalled].epoch == epoch, "it was registered all the time"
        send()
        for _, _, future in sent:
            future.result(30)
        wait_until(lambda: leaders(admin) == first, "it leads again what it led")
        replicas_are_identical(cluster, "stalled")
        assert sorted(numbers_in(cluster, "stalled")) == list(range(len(sent)))
