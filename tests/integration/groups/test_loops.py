"""Members that read in loops: an assignment that changes between two records, a member that is removed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from pyspark_log import Admin, Consumer, Producer, TopicPartition
from pyspark_log.testing import LocalCluster
from tests.integration.groups.readers import Reader
from tests.waiting import wait_until

_names = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, settings={"group.min.session.timeout.ms": "1000"}) as made:
        yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as made:
        yield made


@pytest.fixture
def topic(cluster: LocalCluster, admin: Admin) -> str:
    """A topic of two partitions with 400 records each."""
    name = f"loop-{next(_names)}"
    admin.create_topic(name, partitions=2)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(800):
            producer.send(name, b"%d" % number, partition=number % 2)
    return name


def test_loop_with_a_slow_body_gives_up_a_partition_between_two_records(cluster: LocalCluster, topic: str) -> None:
    """W22, W24: the partition is not held for the rest of a batch; the other member continues with the very next
    record.
    """
    seen: list[tuple[int, int]] = []
    revoked: list[TopicPartition] = []
    is_ended = threading.Event()

    def work() -> None:
        with Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,  # a heartbeat every 2 s
        ) as consumer:
            consumer.subscribe([topic], on_revoke=revoked.extend)
            for record in consumer:
                seen.append((record.partition, record.offset))
                time.sleep(0.05)
                if is_ended.is_set():
                    break

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    wait_until(lambda: len(seen) > 5, "the loop runs")
    with Reader(cluster.bootstrap_servers, topic, topic) as other:
        wait_until(lambda: other.held, "the other has its share", 15)  # a batch takes 20 s
        (moved,) = other.held
        wait_until(lambda: len([1 for partition, _ in other.records if partition == moved]) > 5, "and reads it")
        is_ended.set()
        worker.join(30)
        wait_until(lambda: len(set(seen) | set(other.records)) == 800, "all is read")
    assert not set(seen) & set(other.records)
    assert len(seen) + len(other.records) == 800
    assert TopicPartition(topic, moved) in revoked


def test_removed_member_gets_on_lost_and_joins_again(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    """W27, W24: after `Admin.remove_group_members` the partitions are free when the member's lease has ended."""
    with Reader(cluster.bootstrap_servers, topic, topic, session_timeout_ms=2_000) as member:
        wait_until(lambda: member.held == {0, 1}, "it has all")
        before = member.consumer.group_metadata().member_id
        admin.remove_group_members(topic, [before])
        wait_until(lambda: ("lost", [[0], [1]]) in member.callbacks, "on_lost is called")
        wait_until(lambda: member.held == {0, 1}, "it has all again")
        assert member.consumer.group_metadata().member_id not in ("", before)
    assert [what for what, _ in member.callbacks] == ["assign", "lost", "assign", "revoke"]


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_member_can_commit_when_its_partitions_are_revoked(
    cluster: LocalCluster, admin: Admin, topic: str, how: str
) -> None:
    """W18, W19: a commit in ``on_revoke`` works, also during close; the next member continues after it."""
    consumer = Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    with consumer:
        consumer.subscribe([topic], on_revoke=lambda _: consumer.commit())
        records = []
        wait_until(lambda: records.extend(consumer.poll(0.1, max_records=7)) or records, "some records")
        if how == "unsubscribe":
            consumer.unsubscribe()
            assert consumer.group_metadata().member_id == ""
    assert sum(offset.committed for offset in admin.list_group_offsets(topic).values()) == len(records)
    assert admin.describe_group(topic).state == "empty"
