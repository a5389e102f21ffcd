"""A cluster grows, moves its partitions and shrinks while clients write and read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from broker_runtime.contract.model import TopicDescription
from pyspark_log import Admin, Consumer, Producer, RecordMetadata, TopicPartition
from pyspark_log.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import numbers_in, produce
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster of two brokers that a third joins. A paused broker stays a member for the whole test."""
    with LocalCluster(brokers=2, settings={"zookeeper.session.timeout.ms": "60000"}) as made:
        yield made


class Traffic:
    """A producer and a consumer that run until they are stopped."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._ending, self._all_sent = threading.Event(), threading.Event()
        self._cluster, self._topic = cluster, topic
        self.sent: list[int] = []
        self.received: list[int] = []
        self.errors: list[PylogError] = []
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._send, self._receive)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        sending, receiving = self._threads
        self._ending.set()
        sending.join(60)
        self._all_sent.set()
        receiving.join(60)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PylogError as error:
            self.errors.append(error)

    def _send(self) -> None:
        with Producer(self._cluster.bootstrap_servers) as producer:
            number = 0
            while not self._ending.is_set():
                for _ in range(20):
                    producer.send(self._topic, b"%d" % number, on_delivery=self._delivered(number))
                    number += 1
                self._ending.wait(0.02)

    def _delivered(self, number: int) -> Callable[[RecordMetadata | None, PylogError | None], None]:
        return lambda metadata, error: self.sent.append(number) if error is None else self.errors.append(error)

    def _receive(self) -> None:
        with Consumer(
            self._topic, bootstrap_servers=self._cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            while not (self._all_sent.is_set() and len(self.received) >= len(self.sent)):
                self.received += [int(record.value or b"-1") for record in consumer.poll(0.2)]


def test_broker_joins_and_takes_partitions_while_clients_continue(cluster: LocalCluster, admin: Admin) -> None:
    """W14: a cluster grows without downtime, and shrinks in the same way."""
    admin.create_topic("growing", partitions=4, replication_factor=2)
    cluster.wait_until_ready()
    with Traffic(cluster, "growing") as traffic:
        wait_until(lambda: len(traffic.received) > 200, "records flow")
        added = cluster.add_broker()
        cluster.wait_until_ready()  # it serves before the controller knows of it
        assert all(added not in p.replicas for p in admin.describe_topic("growing").partitions)
        admin.reassign_partitions({("growing", 0): [added, 1], ("growing", 1): [added, 2], ("growing", 2): [1, added]})
        wait_until(lambda: not admin.list_reassignments(), "all is moved")
        # Any broker answers with the state it last learned.
        wait_until(
            lambda: _places(admin, "growing")[:3] == [(added, 1), (added, 2), (1, added)],
            "all brokers have heard of it",
        )
        wait_until(
            lambda: [p.leader for p in admin.describe_topic("growing").partitions[:2]] == [added, added], "it leads"
        )
        before = len(traffic.received)
        wait_until(lambda: len(traffic.received) > before + 200, "records flow on")
        assert admin.decommission_broker(2) > 0
        wait_until(lambda: not admin.list_reassignments(), "broker 2 is empty")
        wait_until(lambda: all(2 not in place for place in _places(admin, "growing")), "all brokers have heard of it")
        before = len(traffic.received)
        wait_until(lambda: len(traffic.received) > before + 200, "records flow on without broker 2")
    assert traffic.errors == []
    assert sorted(traffic.sent) == sorted(traffic.received) == list(range(len(traffic.sent)))
    assert sorted(numbers_in(cluster, "growing")) == sorted(traffic.sent)
    wait_until(
        lambda: not [path for directory in cluster.log_dirs(2) for path in directory.glob("growing-*[0-9]")],
        "what was moved away is removed",
    )
    admin.decommission_broker(2, cancel=True)


def test_new_topic_avoids_a_broker_that_is_being_decommissioned(cluster: LocalCluster, admin: Admin) -> None:
    """A decommissioned broker gets no new replicas until that is cancelled; both are known a moment later."""
    names = (f"elsewhere-{number}" for number in count())
    admin.decommission_broker(2)
    try:
        wait_until(lambda: 2 not in _replicas(admin.create_topic(next(names), partitions=3)), "it is known")
    finally:
        admin.decommission_broker(2, cancel=True)
    wait_until(lambda: 2 in _replicas(admin.create_topic(next(names), partitions=3)), "the end of it is known")


def _places(admin: Admin, topic: str) -> list[tuple[int, ...]]:
    return [tuple(partition.replicas) for partition in admin.describe_topic(topic).partitions]


def _replicas(topic: TopicDescription) -> set[int]:
    return {replica for partition in topic.partitions for replica in partition.replicas}


def test_move_is_cancelled(cluster: LocalCluster, admin: Admin) -> None:
    """The partition keeps its replicas: the target is frozen, so the move cannot finish first."""
    controller = admin.describe_cluster().controller_id
    target = next(broker_id for broker_id in cluster.broker_ids if broker_id != controller)
    home = next(broker_id for broker_id in cluster.broker_ids if broker_id != target)
    admin.create_topic("staying", replica_assignment=[[home]])
    produce(cluster, "staying", range(10))
    cluster.pause(target)
    try:
        admin.reassign_partitions({("staying", 0): [target]})
        moving = admin.list_reassignments()[TopicPartition("staying", 0)]
        assert (moving.original, moving.target) == ((home,), (target,))
        assert (moving.adding, moving.removing) == ((target,), (home,))
        assert moving.lag == 10
        admin.reassign_partitions({("staying", 0): None})
        assert admin.list_reassignments() == {}
    finally:
        cluster.resume(target)
    wait_until(lambda: _places(admin, "staying") == [(home,)], "all brokers have heard of it")
    assert numbers_in(cluster, "staying") == list(range(10))


def test_leadership_returns_to_the_first_replica_on_request(cluster: LocalCluster, admin: Admin) -> None:
    """`elect_leaders` refuses by name where no election is needed."""
    admin.create_topic("elected", replica_assignment=[[1, 3]])
    cluster.wait_until_ready()
    with pytest.raises(ElectionNotNeededError, match="elected-0 is led by its first replica, broker 1, already"):
        admin.elect_leaders([("elected", 0)])
    admin.reassign_partitions({("elected", 0): [3, 1]})
    led = admin.elect_leaders()
    wait_until(lambda: admin.describe_topic("elected").partitions[0].leader == 3, "broker 3 leads")
    assert set(led.values()) <= {3}


def test_first_replica_that_is_away_cannot_be_elected(cluster: LocalCluster, admin: Admin) -> None:
    """Bad input: the error names the in-sync replicas."""
    admin.create_topic("away", replica_assignment=[[2, 1]])
    cluster.wait_until_ready()
    cluster.kill(2)
    wait_until(lambda: admin.describe_topic("away").partitions[0].leader == 1, "broker 1 leads")
    with pytest.raises(PreferredLeaderNotAvailableError, match="broker 2: it must be live and in sync"):
        admin.elect_leaders([("away", 0)])
    cluster.start(2)
    cluster.wait_until_ready()


def test_impossible_moves_are_refused_as_a_whole(admin: Admin) -> None:
    """Bad input: each is one clear error, and nothing is half done."""
    admin.create_topic("refused", partitions=2)
    before = admin.describe_topic("refused").partitions
    with pytest.raises(InvalidReplicaAssignmentError, match=r"refused-1 cannot be moved to \[99\]: live brokers are"):
        admin.reassign_partitions({("refused", 0): [3], ("refused", 1): [99]})
    with pytest.raises(InvalidReplicaAssignmentError, match="two replicas on one broker"):
        admin.reassign_partitions({("refused", 0): [1, 1]})
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 9, only 0 to 1"):
        admin.reassign_partitions({("refused", 9): [1]})
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'nowhere'"):
        admin.reassign_partitions({("nowhere", 0): [1]})
    with pytest.raises(NoReassignmentInProgressError, match="refused-0 is not being moved"):
        admin.reassign_partitions({("refused", 0): None})
    with pytest.raises(InvalidReplicaAssignmentError, match="there is no broker 99"):
        admin.decommission_broker(99)
    assert [p.replicas for p in admin.describe_topic("refused").partitions] == [p.replicas for p in before]
