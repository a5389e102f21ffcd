"""Changes of in-sync sets on their way into ZooKeeper: what is checked, and what the partition learns of each
outcome.
"""

import time
import uuid
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from broker_runtime.contract.errors import LogStorageError, ZooKeeperUnavailableError
from broker_runtime.controller.election import Electorate
from broker_runtime.log import LogDirectory
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.isr_updater import IsrUpdater
from broker_runtime.meters import Meters
from broker_runtime.replication import FollowerFetch, PartitionRegistry
from broker_runtime.replication.in_sync import RETRY_MS
from broker_runtime.replication.partition import BUSY_S
from broker_runtime.zookeeper.cluster_state import ClusterState, read_cluster
from broker_runtime.zookeeper.membership import BrokerIdentity, mark_stopping, register
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import (
    CHANGES,
    PERMANENT,
    ChangeNews,
    DiskTroubles,
    PartitionState,
    TopicRecord,
    from_json,
    partition_state_path,
    to_json,
    topic_path,
)

LAG_MS = 10_000


class Client:
    """Forwards everything; loses the reply of the next transaction, or fails before it, on request."""

    def __init__(self, client):
        self._client = client
        self.loses_reply = self.fails = False
        self.transactions = 0
        self.before = lambda: None

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        self.transactions += 1
        before, self.before = self.before, lambda: None
        before()
        if self.fails:
            self.fails = False
            raise ZooKeeperUnavailableError("no connection")
        versions = self._client.transaction(operations, session=session)
        if self.loses_reply:
            self.loses_reply = False
            raise ZooKeeperUnavailableError("the reply was lost")
        return versions


class Leader:
    """Broker 1, which leads all partitions of t, and its followers 2 and 3, which are registered."""

    def __init__(self, in_sync=(1, 2, 3), partitions=1):
        self.server = MemoryZooKeeper()
        self.client = Client(self.server.client())
        for path in PERMANENT:
            self.client.ensure_path(path)
        self.memberships = {number: self.register(number) for number in (1, 2, 3)}
        record = TopicRecord(topic_id=uuid.UUID(int=7).bytes, assignment=((1, 2, 3),) * partitions)
        self.client.create(topic_path("t"), to_json(record))
        state = PartitionState(leader=1, leader_epoch=0, isr=in_sync, controller_epoch=4, leader_broker_epoch=1)
        for number in range(partitions):
            self.client.ensure_path(partition_state_path("t", number))
            self.client.set(partition_state_path("t", number), to_json(state), version=0)
        self.files = FaultyFiles()
        directory = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=self.files)
        self.registry = PartitionRegistry()
        self.hosting = Hosting(self.registry, [directory], broker_id=1, min_free_bytes=0, now_ms=lambda: 0)
        self.updater = IsrUpdater(self.client, self.registry, lambda: self.memberships.get(1), lag_limit_ms=LAG_MS)
        self.look()

    def register(self, number):
        client = self.client if number == 1 else self.server.client()
        identity = BrokerIdentity(
            broker_id=number,
            host="h",
            port=1,
            instance=str(number),
            pid=1,
            boot_id="",
            software_version="",
            was_clean=True,
        )
        return register(client, identity, now_ms=0)

    def look(self):
        """Does what the member does when it learns of a change."""
        self.hosting.apply(ClusterState(topics=read_cluster(self.client).topics), self.memberships[1].epoch)

    def partition(self, number=0):
        return self.registry.find("t", number)

    def fetch(self, broker_id, *, now_ms=0, broker_epoch=1, number=0):
        partition = self.partition(number)
        partition.follower_fetch(
            FollowerFetch(
                broker_id=broker_id,
                broker_epoch=broker_epoch,
                offset=0,
                durable_end=0,
                leader_epoch=partition.leader_epoch,
                last_fetched_epoch=-1,
            ),
            max_bytes=1,
            now_ms=now_ms,
        )

    def state(self, number=0):
        path = partition_state_path("t", number)
        node = self.client.get(path)
        return from_json(node.data, PartitionState, path)


def test_lagging_replica_is_removed_and_every_broker_learns_of_it():
    leader = Leader()
    leader.fetch(2, now_ms=0)
    leader.updater.step(LAG_MS)
    assert leader.state().isr == (1, 2, 3)
    leader.fetch(2, now_ms=LAG_MS)
    watched = []
    leader.client.get(CHANGES, watch=watched.append)
    leader.updater.step(LAG_MS + 1)
    assert leader.state() == PartitionState(
        leader=1, leader_epoch=0, isr=(1, 2), controller_epoch=4, leader_broker_epoch=1
    )
    assert leader.partition().in_sync == {1, 2}
    assert watched == [CHANGES]
    assert from_json(leader.client.get(CHANGES).data, ChangeNews, "").topics == ("t",)


def test_changes_of_in_sync_sets_are_counted_when_they_are_written():
    """Shrinking and growing apart, as Kafka has them; a write that failed changed nothing."""
    counted = []
    meters = Meters()
    meters.in_sync_changed = lambda **kinds: counted.append(kinds)
    leader = Leader(in_sync=(1, 2))
    leader.updater._meters = meters
    leader.client.loses_reply = True
    leader.fetch(3)
    leader.updater.step(0)
    assert counted == []
    leader.look()
    leader.fetch(3, now_ms=LAG_MS)
    leader.updater.step(LAG_MS + 1)
    assert leader.state().isr == (1, 3)
    assert counted == [{"shrank": True, "grew": False}]
    leader.look()
    leader.fetch(2, now_ms=LAG_MS + 2)
    leader.updater.step(LAG_MS + 2)
    assert leader.state().isr == (1, 2, 3)
    assert counted[1:] == [{"shrank": False, "grew": True}]


@pytest.mark.parametrize(("unproven", "eligible"), [((), (2,)), ((2,), ())])
def test_replica_that_leaves_the_leader_alone_is_eligible_unless_it_is_unproven(unproven, eligible):
    """Its machine lost power: it may lack acknowledged records. The leader does not know that."""
    leader = Leader(in_sync=(1, 2))
    state = msgspec.structs.replace(leader.state(), unproven=unproven)
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    leader.partition().min_in_sync_replicas = 2
    leader.updater.step(0)
    leader.updater.step(LAG_MS + 1)
    left = leader.state()
    assert (left.isr, left.unproven, left.eligible) == ((1,), (), eligible)


def test_replica_that_has_caught_up_is_added():
    leader = Leader(in_sync=(1, 2))
    leader.fetch(3)
    leader.updater.step(0)
    assert leader.state().isr == (1, 2, 3)
    leader.look()
    assert leader.partition().in_sync == {1, 2, 3}
    before = leader.client.transactions
    leader.updater.step(1)
    assert leader.client.transactions == before, "nothing is left to change"


@pytest.mark.parametrize("what", ["registered again", "gone", "stopping"])
def test_replica_with_a_newer_registration_is_not_added_and_others_are(what):
    """Nobody adds a broker's earlier registration, or tries to again: acknowledgements would wait for it meanwhile."""
    leader = Leader(in_sync=(1,), partitions=2)
    leader.fetch(3, number=0)
    leader.fetch(2, number=1)
    if what == "registered again":
        leader.client.delete("/brokers/ids/3")
        leader.register(3)
    elif what == "gone":
        leader.client.delete("/brokers/ids/3")
    else:
        client = leader.server.client()
        client._session = leader.memberships[3].session
        mark_stopping(client, leader.memberships[3])
    leader.updater.step(0)
    assert (leader.state(0).isr, leader.state(1).isr) == ((1,), (1, 2))
    assert leader.partition(0).in_sync == {1}
    before = leader.client.transactions
    leader.fetch(3, number=0, now_ms=RETRY_MS)
    leader.updater.step(RETRY_MS)
    assert leader.client.transactions == before


@pytest.mark.parametrize("when", ["before it is read", "before it is written"])
def test_former_replica_is_not_added_and_others_are(when):
    """A move has ended, and the leader saw the new state's version with the old replicas."""
    leader = Leader(in_sync=(1,), partitions=2)
    leader.fetch(3, number=0)
    leader.fetch(2, number=1)
    record = TopicRecord(topic_id=uuid.UUID(int=7).bytes, assignment=((1, 2), (1, 2, 3)))

    def end_the_move():
        leader.client.set(topic_path("t"), to_json(record), version=-1)

    if when == "before it is read":
        end_the_move()
    else:
        leader.client.before = end_the_move
    leader.updater.step(0)
    leader.fetch(2, number=1, now_ms=RETRY_MS)
    leader.updater.step(RETRY_MS)
    assert (leader.state(0).isr, leader.state(1).isr) == ((1,), (1, 2))
    assert leader.partition(0).in_sync == {1}


def test_leader_that_has_left_the_cluster_changes_nothing_while_its_session_lasts():
    """The broker is stopping: its registration is gone, and others decide."""
    leader = Leader(in_sync=(1, 2))
    leader.fetch(3)
    leader.client.before = lambda: leader.client.delete("/brokers/ids/1")
    leader.updater.step(0)
    assert leader.state().isr == (1, 2)


def test_state_that_the_controller_changed_is_left_and_others_are_written():
    leader = Leader(in_sync=(1, 2), partitions=3)
    for number in range(3):
        leader.fetch(3, number=number)
    elected = PartitionState(leader=2, leader_epoch=1, isr=(2,), controller_epoch=5, leader_broker_epoch=1)
    path = partition_state_path("t", 1)
    leader.client.before = lambda: leader.client.set(path, to_json(elected), version=-1)
    leader.updater.step(0)
    assert leader.state(1) == elected
    assert [leader.state(number).isr for number in (0, 2)] == [(1, 2, 3), (1, 2, 3)]
    leader.look()
    assert not leader.partition(1).is_leader


def test_state_unknown_to_the_leader_is_not_overwritten():
    leader = Leader(in_sync=(1, 2))
    leader.fetch(3)
    elected = PartitionState(leader=2, leader_epoch=1, isr=(2,), controller_epoch=5, leader_broker_epoch=1)
    leader.client.set(partition_state_path("t", 0), to_json(elected), version=-1)
    leader.updater.step(0)
    assert leader.state() == elected


def test_in_sync_set_shrunk_by_the_controller_is_not_widened_by_an_unaware_leader():
    """A broker that was found dead does not return through a change about another replica."""
    leader = Leader(in_sync=(1, 2))
    leader.fetch(3)
    shrunk = PartitionState(leader=1, leader_epoch=0, isr=(1,), controller_epoch=5, leader_broker_epoch=1)
    leader.client.set(partition_state_path("t", 0), to_json(shrunk), version=-1)
    leader.updater.step(0)
    assert leader.state() == shrunk
    leader.look()
    leader.fetch(3, now_ms=RETRY_MS)
    leader.updater.step(RETRY_MS)
    assert leader.state().isr == (1, 3)


@pytest.mark.parametrize("was_written", [True, False])
def test_write_of_unknown_outcome_counts_as_possible_until_it_is_known(was_written):
    """Every replica that may be in the in-sync set holds back the high watermark."""
    leader = Leader(in_sync=(1, 2))
    leader.fetch(2)
    leader.fetch(3)
    leader.client.loses_reply, leader.client.fails = was_written, not was_written
    leader.updater.step(0)
    assert leader.state().isr == ((1, 2, 3) if was_written else (1, 2))
    leader.look()
    leader.fetch(3, now_ms=RETRY_MS)
    leader.updater.step(RETRY_MS)
    leader.look()
    assert leader.state().isr == (1, 2, 3)
    assert leader.partition().in_sync == {1, 2, 3}


def test_nothing_is_proposed_without_a_registration_or_zookeeper():
    leader = Leader(in_sync=(1, 2))
    leader.fetch(3)
    leader.client.suspend()
    leader.updater.step(0)
    leader.client.resume()
    membership = leader.memberships.pop(1)
    leader.updater.step(0)
    assert leader.state().isr == (1, 2)
    leader.memberships[1] = membership
    leader.updater.step(0)
    assert leader.state().isr == (1, 2, 3), "a change that was not tried is tried at once"


@pytest.mark.parametrize("is_registered_again", [False, True])
def test_write_of_an_earlier_session_is_not_sent(is_registered_again):
    """It is not sent after the broker registered again either: its roles belong to the old registration."""
    leader = Leader(in_sync=(1, 2))
    leader.fetch(3)
    leader.client.expire()
    if is_registered_again:
        leader.register(1)
    leader.updater.step(0)
    assert leader.state().isr == (1, 2)


def test_many_partitions_are_written_together():
    """A follower that dies silently is in a thousand in-sync sets."""
    leader = Leader(in_sync=(1, 2), partitions=450)
    leader.updater.step(0)
    before = leader.client.transactions
    leader.updater.step(LAG_MS + 1)
    assert all(leader.state(number).isr == (1,) for number in range(450))
    assert leader.client.transactions - before == 3


def take_offline(log):
    with pytest.raises(LogStorageError):
        log._state.fail("write", OSError(5, "Input/output error"))


def test_leader_whose_log_is_offline_gives_up_its_leadership():
    """An I/O error costs the broker its leadership there, if another can take it."""
    leader = Leader(in_sync=(1, 2))
    take_offline(leader.partition().log)
    leader.updater.step(0)
    state = leader.state()
    assert (state.leader, state.leader_epoch, state.isr) == (None, 1, (2,))
    leader.look()
    assert not leader.partition().is_leader
    leader.updater.step(1)
    assert leader.state() == state


@pytest.mark.parametrize("others", [(2,), (2, 3)])
def test_leader_that_hands_over_is_eligible_until_the_next_one_commits(others):
    """The others may have lost their power a moment before: then it alone has what they had not flushed."""
    leader = Leader(in_sync=(1, *others))
    take_offline(leader.partition().log)
    leader.updater.step(0)
    state = leader.state()
    assert (state.leader, state.isr, state.eligible) == (None, others, (1,))


def test_leader_that_commits_rules_the_last_known_eligible_out():
    """It has all that is committed, and soon more than they."""
    leader = Leader(in_sync=(1,))
    state = msgspec.structs.replace(leader.state(), eligible=(2,), last_known_eligible=(3,))
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    leader.partition().log.extent()  # it is open
    leader.partition().min_in_sync_replicas = 1
    leader.updater.step(0)
    assert leader.state() == msgspec.structs.replace(state, eligible=(), last_known_eligible=())


def test_leader_whose_log_was_never_used_rules_nobody_out():
    """It may be damaged, and the last known eligible is asked then."""
    leader = Leader(in_sync=(1, 2))
    state = msgspec.structs.replace(leader.state(), unproven=(2,), last_known_eligible=(3,))
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    leader.updater.step(0)
    leader.updater.step(LAG_MS + 1)
    assert (leader.state().isr, leader.state().last_known_eligible) == ((1,), (3,))


def test_leader_that_does_not_commit_yet_keeps_the_last_known_eligible():
    """They count until the eligible ones do not count any more: these may lose their power."""
    leader = Leader(in_sync=(1, 2))
    state = msgspec.structs.replace(leader.state(), last_known_eligible=(3,))
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    leader.partition().log.extent()  # it is open
    leader.partition().min_in_sync_replicas = 2
    leader.updater.step(0)
    leader.updater.step(LAG_MS + 1)
    left = leader.state()
    assert (left.isr, left.eligible, left.last_known_eligible) == ((1,), (2,), (3,))


def test_leader_does_not_hand_over_to_last_known_eligible_replicas():
    leader = Leader(in_sync=(1,))
    state = msgspec.structs.replace(leader.state(), last_known_eligible=(2,))
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    take_offline(leader.partition().log)
    leader.updater.step(0)
    assert leader.state() == state


def test_leader_whose_log_is_offline_waits_until_unproven_members_have_left_the_set():
    """It could not become eligible: who leads is decided among the unproven, without it."""
    leader = Leader()
    state = msgspec.structs.replace(leader.state(), unproven=(2,))
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    take_offline(leader.partition().log)
    leader.updater.step(0)
    assert leader.state() == state
    leader.client.set(partition_state_path("t", 0), to_json(state.with_in_sync((1, 3))), version=-1)
    leader.look()
    leader.updater.step(1)
    assert (leader.state().leader, leader.state().isr, leader.state().eligible) == (None, (3,), (1,))


def test_leader_whose_log_is_offline_stays_when_nobody_else_is_in_sync():
    leader = Leader(in_sync=(1,))
    take_offline(leader.partition().log)
    leader.updater.step(0)
    assert leader.state().leader == 1


@pytest.mark.parametrize(("live", "in_sync"), [((1, 2, 3), (2, 3)), ((1, 3), (2, 3)), ((1,), (1,))])
def test_last_in_sync_replica_with_an_offline_log_hands_over_to_eligible_ones(live, in_sync):
    """They have everything committed: nothing is lost, and nobody needs to choose."""
    leader = Leader(in_sync=(1,))
    eligible = msgspec.structs.replace(leader.state(), eligible=(2, 3))
    leader.client.set(partition_state_path("t", 0), to_json(eligible), version=-1)
    leader.look()
    take_offline(leader.partition().log)
    leader.updater.step(0)
    assert leader.state() == eligible
    leader.updater = IsrUpdater(
        leader.client,
        leader.registry,
        lambda: leader.memberships.get(1),
        lag_limit_ms=LAG_MS,
        electorate=lambda: Electorate(dict.fromkeys(live, 1)),
    )
    leader.updater.step(1)
    state = leader.state()
    assert state.isr == in_sync
    if len(live) == 1:
        assert state == eligible
    else:
        assert (state.leader, state.leader_epoch, state.eligible) == (None, 1, (1,))


@pytest.mark.parametrize(("in_sync", "eligible"), [((1,), (2,)), ((1, 2), ())])
@pytest.mark.parametrize("failed", [{"t": (0,)}, None, {"t": (1,)}])
def test_leader_with_an_offline_log_does_not_hand_over_to_one_whose_log_is_offline_as_well(in_sync, eligible, failed):
    """That one would hand over in its turn, and so on."""
    leader = Leader(in_sync=in_sync)
    state = msgspec.structs.replace(leader.state(), eligible=eligible)
    leader.client.set(partition_state_path("t", 0), to_json(state), version=-1)
    leader.look()
    take_offline(leader.partition().log)
    disks = {2: DiskTroubles(epoch=1, failed=failed)}
    leader.updater = IsrUpdater(
        leader.client,
        leader.registry,
        lambda: leader.memberships.get(1),
        lag_limit_ms=LAG_MS,
        electorate=lambda: Electorate(dict.fromkeys((1, 2), 1), disks=disks),
    )
    leader.updater.step(0)
    if failed == {"t": (1,)}:
        assert leader.state().isr == (2,)
    else:
        assert leader.state() == state


def test_log_that_fails_during_the_report_is_handed_over_only_after_the_next_one():
    """Or the broker could be killed, and come back with less, and nobody would know."""
    leader = Leader(in_sync=(1, 2), partitions=2)
    take_offline(leader.partition(0).log)

    class Report:
        def report(self, membership):
            take_offline(leader.partition(1).log)
            return True

    leader.updater = IsrUpdater(
        leader.client, leader.registry, lambda: leader.memberships.get(1), lag_limit_ms=LAG_MS, report=Report()
    )
    leader.updater.step(0)
    assert [leader.state(number).leader for number in (0, 1)] == [None, 1]
    leader.updater.step(1)
    assert leader.state(1).leader is None


def test_last_in_sync_replica_with_a_full_disk_stays_when_others_are_eligible():
    """It has uncommitted records as well, and may have room again."""
    leader = Leader(in_sync=(1,))
    eligible = msgspec.structs.replace(leader.state(), eligible=(2, 3))
    leader.client.set(partition_state_path("t", 0), to_json(eligible), version=-1)
    leader.look()
    leader.updater = IsrUpdater(
        leader.client,
        leader.registry,
        lambda: leader.memberships.get(1),
        lag_limit_ms=LAG_MS,
        electorate=lambda: Electorate(dict.fromkeys((1, 2, 3), 1)),
    )
    with mock.patch.object(type(leader.partition()), "is_fit_to_lead", property(lambda self: False)):
        leader.updater.step(1)
    assert leader.state() == eligible


def test_wait_ends_when_it_was_woken_and_never_blocks_with_zero():
    """Once it was woken, the next wait is a new one."""
    updater = Leader().updater
    updater.wait(0)
    updater.wake()
    assert updater._signal.is_set
    updater.wait(3_600)
    assert not updater._signal.is_set


def test_round_waits_for_one_busy_partition_per_disk_and_proposes_for_the_others():
    """Where a disk is stalled, the round takes no longer for many partitions than for one, and is soon repeated."""
    cluster = Leader(partitions=60)
    busy = [cluster.partition(number) for number in range(59)]
    for partition in busy:
        partition._lock.acquire()
    cluster.updater.step(0)
    cluster.updater.wait(0)
    began_s = time.monotonic()
    cluster.updater.step(LAG_MS + 1)
    assert time.monotonic() - began_s < 59 * BUSY_S / 2
    assert cluster.updater._signal.is_set
    assert cluster.state(59).isr == (1,)
    for partition in busy:
        partition._lock.release()
    cluster.updater.step(2 * LAG_MS + 2)
    cluster.updater.step(3 * LAG_MS + 3)
    assert {cluster.state(number).isr for number in range(60)} == {(1,)}
