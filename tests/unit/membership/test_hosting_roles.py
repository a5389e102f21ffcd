"""What a broker follows, leads and gives up according to the cluster's state; directories are in memory."""

import uuid
from pathlib import Path

import pytest

from broker_runtime.contract.errors import CorruptRecordError, NotLeaderOrFollowerError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import LogDirectory
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.membership.hosting import Hosting
from broker_runtime.replication import PartitionRegistry, Role
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import PartitionState, ReassignmentRecord, TopicRecord

EPOCH = 5
T0 = TopicPartition("t", 0)


def topic(
    leader,
    *,
    leader_epoch=0,
    version=0,
    in_sync=(1, 2, 3),
    replicas=(1, 2, 3),
    broker_epoch=EPOCH,
    config=None,
    moving=None,
    topic_id=1,
):
    """A topic of one partition."""
    state = PartitionState(
        leader=leader, leader_epoch=leader_epoch, isr=in_sync, controller_epoch=1, leader_broker_epoch=broker_epoch
    )
    record = TopicRecord(
        topic_id=uuid.UUID(int=topic_id).bytes, assignment=(replicas,), reassignments={0: moving} if moving else {}
    )
    return TopicState(
        name="t",
        record=record,
        version=0,
        partitions=(VersionedState(state=state, version=version),),
        config=config or {},
    )


class RecordingPlan:
    """Records what it is to follow."""

    def __init__(self):
        self.followed = {}
        self.calls = 0

    def follow(self, partition, leadership):
        self.calls += 1
        self.followed[TopicPartition(partition.topic, partition.partition)] = (
            leadership.leader,
            leadership.leader_epoch,
        )

    def unfollow(self, at):
        self.followed.pop(at, None)


@pytest.fixture
def registry():
    return PartitionRegistry()


@pytest.fixture
def plan():
    return RecordingPlan()


@pytest.fixture
def directory():
    return LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=FaultyFiles())


@pytest.fixture
def wakeups():
    return []


@pytest.fixture
def hosting(registry, plan, directory, wakeups):
    return Hosting(
        registry,
        [directory],
        broker_id=1,
        min_free_bytes=0,
        followers=plan,
        now_ms=lambda: 1_000,
        on_in_sync_news=lambda: wakeups.append(1),
    )


def apply(hosting, *topics):
    hosting.apply(ClusterState(topics={each.name: each for each in topics}), EPOCH)


def test_replica_follows_its_leader_and_serves_nobody(hosting, registry, plan):
    """W12: a follower serves nobody; it pulls from the leader."""
    apply(hosting, topic(2, leader_epoch=4))
    partition = registry.find("t", 0)
    assert partition.role is Role.FOLLOWER
    assert plan.followed == {T0: (2, 4)}
    with pytest.raises(NotLeaderOrFollowerError):
        partition.require_leader()


def test_elected_follower_leads_and_stops_following(hosting, registry, plan):
    """W13: an in-sync follower becomes leader."""
    apply(hosting, topic(2, leader_epoch=4))
    apply(hosting, topic(1, leader_epoch=5, version=1, in_sync=(1, 3)))
    partition = registry.find("t", 0)
    assert partition.require_leader() == 5
    assert partition.in_sync == {1, 3}
    assert plan.followed == {}


def test_deposed_leader_follows_its_successor(hosting, registry, plan):
    apply(hosting, topic(1))
    apply(hosting, topic(3, leader_epoch=1, version=1))
    assert registry.find("t", 0).role is Role.FOLLOWER
    assert plan.followed == {T0: (3, 1)}


def test_changes_within_an_epoch_reach_the_leader_with_the_states_version(hosting, registry):
    apply(hosting, topic(1))
    apply(hosting, topic(1, version=1, in_sync=(1, 2)))
    leadership = registry.find("t", 0).leadership
    assert (leadership.in_sync, leadership.version) == ({1, 2}, 1)


def test_follower_is_updated_only_when_its_state_changed(hosting, plan):
    apply(hosting, topic(2))
    apply(hosting, topic(2, config={"retention.ms": "1d"}))
    assert plan.calls == 1
    apply(hosting, topic(2, version=1, in_sync=(2, 3)))
    assert plan.calls == 2


@pytest.mark.parametrize("leader", [None, 1], ids=["nobody leads", "its own earlier registration leads"])
def test_replica_without_a_leader_has_no_role(hosting, registry, plan, leader):
    apply(hosting, topic(2))
    apply(hosting, topic(leader, leader_epoch=1, version=1, broker_epoch=EPOCH - 1))
    assert registry.find("t", 0).role is Role.NONE
    assert plan.followed == {}


def test_stepping_down_ends_following_too_until_the_next_look(hosting, registry, plan):
    apply(hosting, topic(2))
    hosting.step_down_all()
    assert registry.find("t", 0).role is Role.NONE
    assert plan.followed == {}
    apply(hosting, topic(2))
    assert plan.followed == {T0: (2, 0)}


def test_moved_replica_is_removed_with_its_log(hosting, registry, plan, directory):
    """W14: partitions move to another broker."""
    apply(hosting, topic(2))
    apply(hosting, topic(2, version=1, replicas=(2, 3), in_sync=(2, 3)))
    with pytest.raises(NotLeaderOrFollowerError, match="not on this broker"):
        registry.find("t", 0)
    assert plan.followed == {}
    assert directory.partitions == []
    apply(hosting, topic(2, version=2))
    assert plan.followed == {T0: (2, 0)}, "and comes back"


def test_replica_moved_while_the_broker_was_down_is_removed_at_its_start(registry, plan):
    files = FaultyFiles()
    directory = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=files)
    hosting = Hosting(registry, [directory], broker_id=1, min_free_bytes=0, followers=plan)
    apply(hosting, topic(1))
    assert registry.find("t", 0).high_watermark == 0  # its first use makes the log durable
    directory.close()
    directory = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=files)
    hosting = Hosting(PartitionRegistry(), [directory], broker_id=1, min_free_bytes=0, followers=plan)
    apply(hosting, topic(2, replicas=(2, 3), in_sync=(2, 3), topic_id=9))
    assert directory.partitions == [T0], "another topic's log of that name is not touched"
    apply(hosting, topic(2, version=1, replicas=(2, 3), in_sync=(2, 3)))
    assert directory.partitions == []


def test_deleted_topic_is_not_followed(hosting, plan):
    apply(hosting, topic(2))
    apply(hosting)
    assert plan.followed == {}


def test_removing_an_earlier_topics_logs_leaves_the_new_one_of_the_name_alone(hosting, registry, directory):
    apply(hosting, topic(1, topic_id=2))
    hosting.remove_logs("t", uuid.UUID(int=1).bytes)
    assert registry.find("t", 0).is_leader
    assert directory.partitions == [T0]


@pytest.mark.parametrize(
    ("case", "least", "changed"),
    [
        ("a majority from three on", 2, {}),
        ("as set", 1, {"config": {"min.insync.replicas": "1"}}),
        ("two replicas", 1, {"replicas": (1, 2), "in_sync": (1, 2)}),
        (
            "a moving partition counts what it is to have",
            1,
            {"moving": ReassignmentRecord(target=(1, 2), original=(1, 3))},
        ),
    ],
)
def test_partition_knows_how_many_replicas_must_be_in_sync(hosting, registry, case, least, changed):
    """``min.insync.replicas``."""
    apply(hosting, topic(1))
    apply(hosting, topic(1, version=1, **changed))
    assert registry.find("t", 0).min_in_sync_replicas == least, case


def test_partition_wakes_the_in_sync_set_updater(hosting, registry, wakeups):
    apply(hosting, topic(1))
    registry.find("t", 0).on_in_sync_news()
    assert wakeups == [1]


def test_damaged_log_is_set_aside_and_fetched_again_once_nothing_relies_on_it(registry, plan):
    """Damage is fetched again from another replica; while this one is in sync, nobody knows that the other has
    everything.

    A follower's records carry the leader's high watermark, so a tail torn by a power failure looks like damage.
    """
    files = FaultyFiles()
    directory = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=files)
    hosting = Hosting(registry, [directory], broker_id=1, min_free_bytes=0, followers=plan)
    apply(hosting, topic(2))
    damaged = registry.find("t", 0).log
    damaged._state.go_offline(CorruptRecordError("found by its first use"))
    hosting.retry_failed(ClusterState(topics={"t": topic(2)}), EPOCH)
    assert registry.find("t", 0).log is damaged, "in sync"
    apply(hosting, topic(None, leader_epoch=1, version=1, in_sync=(2, 3)))
    assert registry.find("t", 0).log is damaged, "nobody leads"
    plan.followed.clear()
    apply(hosting, topic(2, leader_epoch=2, version=2, in_sync=(2, 3)))
    recreated = registry.find("t", 0)
    assert recreated.log.log_end_offset == 0
    assert recreated.role is Role.FOLLOWER
    assert plan.followed == {T0: (2, 2)}
    assert [name for name in files.list(Path("/data")) if name.endswith(".damaged")] != []


def test_damaged_log_that_was_in_use_is_set_aside_only_when_its_reports_count_no_more(hosting, registry):
    """A fetch that it sent may still be under way, and the leader may take this broker into the in-sync set for it."""
    apply(hosting, topic(2, in_sync=(2, 3)))
    partition = registry.find("t", 0)
    partition.log.extent()  # it is in use
    partition.log._state.go_offline(CorruptRecordError("found by a read"))
    apply(hosting, topic(2, leader_epoch=1, version=1, in_sync=(2, 3)))
    assert registry.find("t", 0).log is partition.log, "it has not reported that it leaves"
    hosting.release(partition, 3)
    apply(hosting, topic(2, leader_epoch=1, version=2, in_sync=(2, 3)))
    assert registry.find("t", 0).log is partition.log, "that state is older than the report"
    apply(hosting, topic(2, leader_epoch=2, version=3, in_sync=(2, 3)))
    assert not registry.find("t", 0).log.is_damaged


def test_damaged_log_that_is_to_lead_leaves_again(hosting, registry):
    """It was released for another leader, and could not be set aside before this broker was elected."""
    apply(hosting, topic(2, in_sync=(2, 3)))
    partition = registry.find("t", 0)
    partition.log._state.go_offline(CorruptRecordError("found by a read"))
    assert hosting.damaged_replicas() == [partition]
    hosting.release(partition, 1)
    assert hosting.damaged_replicas() == []
    apply(hosting, topic(1, leader_epoch=1, version=1))
    assert registry.find("t", 0).log is partition.log
    assert hosting.damaged_replicas() == [partition]


def test_log_found_damaged_between_two_changes_is_fetched_again_at_the_next_look(hosting, registry):
    state = topic(2, in_sync=(2, 3))
    apply(hosting, state)
    damaged = registry.find("t", 0).log
    damaged._state.go_offline(CorruptRecordError("found by its first use"))
    hosting.retry_failed(ClusterState(topics={"t": state}), EPOCH)
    assert not registry.find("t", 0).log.is_damaged
