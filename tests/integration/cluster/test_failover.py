"""Three brokers lose one and get it back: real processes, killed and stopped."""

from __future__ import annotations

from pyspark_log import Admin, Consumer
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import numbers_in, produce, replicas_are_identical
from tests.waiting import wait_until


def test_killed_leader_loses_no_acknowledged_record(cluster: LocalCluster, admin: Admin) -> None:
    """W11, W13: another broker leads a killed leader's partition at once, no acknowledged record is lost, and the
    replica that comes back is identical byte for byte.
    """
    created = admin.create_topic("killed", replication_factor=3)
    leader = created.partitions[0].leader
    assert leader is not None
    produce(cluster, "killed", range(100))
    cluster.kill(leader)
    produce(cluster, "killed", range(100, 200))
    assert numbers_in(cluster, "killed") == list(range(200))
    described = admin.describe_topic("killed").partitions[0]
    assert described.leader != leader
    assert described.leader_epoch > created.partitions[0].leader_epoch
    assert leader not in described.isr
    cluster.start(leader)
    cluster.wait_until_ready()
    assert sorted(admin.describe_topic("killed").partitions[0].isr) == [1, 2, 3]
    replicas_are_identical(cluster, "killed")


def test_stopped_broker_hands_over_its_leaderships(cluster: LocalCluster, admin: Admin) -> None:
    """A broker that stops in order loses nothing, and is the leader again where it is the first replica."""
    created = admin.create_topic("stopped", partitions=3, replication_factor=3)
    leader = created.partitions[0].leader
    assert leader is not None
    with Consumer("stopped", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        produce(cluster, "stopped", range(60))
        cluster.stop(leader)
        produce(cluster, "stopped", range(60, 120))
        cluster.start(leader)
        cluster.wait_until_ready()
        wait_until(
            lambda: all(p.leader == p.replicas[0] for p in admin.describe_topic("stopped").partitions),
            "the preferred leaders lead",
        )
        produce(cluster, "stopped", range(120, 180))
        received: list[int] = []

        def has_all() -> bool:
            received.extend(int(record.value) for record in consumer.poll(1.0))
            return len(received) >= 180

        wait_until(has_all, "all is consumed")
        assert sorted(received) == list(range(180))
    replicas_are_identical(cluster, "stopped")


def test_killed_controller_is_replaced(cluster: LocalCluster, admin: Admin) -> None:
    """Another broker creates topics and elects leaders without waiting for the dead controller's session to end."""
    controller = admin.describe_cluster().controller_id
    assert controller is not None
    cluster.kill(controller)
    created = admin.create_topic("after", partitions=3, replication_factor=3)
    assert controller not in {partition.leader for partition in created.partitions}
    produce(cluster, "after", range(10))
    assert sorted(numbers_in(cluster, "after")) == list(range(10))
    cluster.start(controller)
    cluster.wait_until_ready()
    assert admin.describe_cluster().controller_id != controller


def test_created_topic_is_known_by_every_broker(cluster: LocalCluster, admin: Admin) -> None:
    """Every broker, when asked next, knows a topic that was created a moment ago."""
    for number in range(10):
        admin.create_topic(f"made-{number}", partitions=3)
        for server in cluster.bootstrap_servers.split(","):
            with Admin(server) as other:
                assert len(other.describe_topic(f"made-{number}").partitions) == 3


def test_broker_stops_in_bounded_time_when_all_others_are_frozen(cluster: LocalCluster, admin: Admin) -> None:
    """The broker stops in order although nobody can take its leaderships or answer it."""
    admin.create_topic("frozen", partitions=3, replication_factor=3)
    produce(cluster, "frozen", range(10))
    stopping, *others = cluster.broker_ids
    for other in others:
        cluster.pause(other)
    try:
        cluster.stop(stopping)
    finally:
        for other in others:
            cluster.resume(other)
    said = (cluster.log_dirs(stopping)[0].parent / "broker.out").read_text().splitlines()
    assert said[-1].endswith(f"end broker broker={stopping} complete=True")
    cluster.start(stopping)
    cluster.wait_until_ready()
    assert sorted(numbers_in(cluster, "frozen")) == list(range(10))
