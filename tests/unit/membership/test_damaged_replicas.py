"""Damaged logs in a cluster: they leave the in-sync set, are set aside and fetched again, and no commit relies on
them meanwhile.
"""

import contextlib

import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.requests import ElectLeadersRequest
from broker_runtime.contract.streams import FetchPartition, FetchRequest
from broker_runtime.log.faulty_files import Fault
from broker_runtime.services.metadata import topic_info
from broker_runtime.services.movement import MovementService
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import PartitionState
from tests.callers import CLIENT
from tests.unit.membership.members import put_in_sync
from tests.unit.membership.replicated import ReplicatedBroker, live_on

VALUES = [b"%d" % number * 100 for number in range(60)]


@pytest.fixture
def clock():
    return [0]


@pytest.fixture
def brokers(clock):
    """Three brokers; broker 1 leads t-0, which has several segments, and all are in sync."""
    server = MemoryZooKeeper()
    made = {number: ReplicatedBroker(server, number, clock) for number in (1, 2, 3)}
    live_on(made, clock, 3)
    made[1].create("t", replication_factor=3, config={"segment.bytes": "8KiB", "max.message.bytes": "8KiB"})
    live_on(made, clock, 3)
    made[1].append(*VALUES)
    live_on(made, clock)
    assert made[1].state("t") == (1, 0, (1, 2, 3))
    assert made[1].partition.high_watermark == len(VALUES)
    assert len(made[3].segments()) > 3
    return made


def is_whole(brokers):
    """Whether all replicas are in sync and identical, with everything committed."""
    leader = next(each for each in brokers.values() if each.partition.is_leader)
    frames = leader.frames()
    return (
        sorted(leader.partition.in_sync) == sorted(brokers)
        and leader.partition.high_watermark == leader.log.log_end_offset >= len(VALUES)
        and all(each.frames() == frames for each in brokers.values())
    )


def consume(broker, offset):
    """The answer to a consumer that asks for ``offset``."""
    wanted = FetchPartition(
        topic="t", partition=0, topic_id=broker.partition.topic_id, offset=offset, leader_epoch=-1, max_bytes=1 << 20
    )
    request = FetchRequest(request_id=1, partitions=(wanted,), max_wait_ms=0, max_bytes=1 << 20)
    (answer,) = broker.answer(request, CLIENT).response.partitions
    return answer


def restart_damaged(broker, *, clean, segment=-1, position=68):
    """Stops the broker, flips a bit of its log, and starts it again."""
    broker.stop(clean=clean)
    broker.flip(broker.segments()[segment], position)
    broker.start()


@pytest.mark.parametrize("clean", [True, False])
def test_follower_with_a_log_found_damaged_at_its_start_is_repaired_from_its_leader(brokers, clock, clean):
    """Its records below the high watermark are fetched again; the damaged log is set aside."""
    restart_damaged(brokers[3], clean=clean)
    live_on(brokers, clock)
    assert is_whole(brokers)
    assert len(brokers[3].set_aside()) == 1
    assert brokers[1].state("t")[:2] == (1, 0), "a log that reported nothing needs no new leader epoch"
    assert not brokers[1].member.state.disks


def test_damage_is_reported_to_the_cluster_until_the_log_is_set_aside(brokers, clock):
    """The reporter is woken when there is nothing to report any more. Elections ignore it."""
    restart_damaged(brokers[3], clean=True)
    with pytest.raises(CorruptRecordError):
        brokers[3].log.log_end_offset  # noqa: B018
    brokers[3].updater.step(clock[0])
    brokers[1].member.step(0)
    disks = brokers[1].member.state.disks[3]
    assert (disks.damaged, disks.directories, disks.concerns("t", 0)) == ({"t": (0,)}, {}, False)
    (info,) = topic_info(brokers[1].member.state.topics["t"], brokers[1].member.state.disks).partitions
    assert info.damaged == (3,)
    brokers[3].member.step(0)  # leaves the in-sync set
    brokers[3].wakeups.clear()
    brokers[3].member.step(0)
    assert (len(brokers[3].set_aside()), bool(brokers[3].wakeups)) == (1, True)
    brokers[3].updater.step(clock[0])
    brokers[1].member.step(0)
    assert not brokers[1].member.state.disks
    live_on(brokers, clock)
    assert is_whole(brokers)


def test_damage_of_a_deleted_topic_is_no_longer_reported(brokers, clock):
    """Otherwise a new topic of that name would be taken for damaged."""
    restart_damaged(brokers[3], clean=True)
    with pytest.raises(CorruptRecordError):
        brokers[3].log.log_end_offset  # noqa: B018
    assert len(brokers[3].hosting.damaged_logs()) == 1
    brokers[3].wakeups.clear()
    brokers[3].hosting.forget_topic("t")
    assert (brokers[3].hosting.damaged_logs(), bool(brokers[3].wakeups)) == ([], True)


def test_damaged_follower_leaves_the_in_sync_set_before_its_log_is_set_aside(brokers, clock):
    """Otherwise it could be elected with an empty log when its leader dies."""
    restart_damaged(brokers[3], clean=True)
    assert 3 in brokers[1].state("t")[2]
    with pytest.raises(CorruptRecordError):
        brokers[3].log.log_end_offset  # noqa: B018
    renamed = []
    rename = brokers[3].files.rename

    def noting(source, target):
        if target.name.endswith(".damaged"):
            brokers[1].member.step(0)
            renamed.append(brokers[1].state("t")[2])
        rename(source, target)

    brokers[3].files.rename = noting
    live_on(brokers, clock)
    assert renamed == [(1, 2)]
    assert is_whole(brokers)


def test_damaged_leader_gives_up_its_leadership_and_is_repaired(brokers, clock):
    """Damage in a closed segment of a cleanly closed log is found when it is read; clients ask the next leader."""
    for each in brokers.values():
        each.stop()
    brokers[1].flip(brokers[1].segments()[1], 300)
    for each in brokers.values():
        each.start()
    live_on(brokers, clock)
    assert brokers[1].partition.is_leader
    assert not brokers[1].log.is_damaged
    second = int(brokers[1].segments()[1].stem)
    assert consume(brokers[1], 0).next_offset == second
    answer = consume(brokers[1], second)
    assert (answer.row, answer.error.code) == (-1, "NOT_LEADER_OR_FOLLOWER")
    assert "gives it up to another" in answer.error.message
    with pytest.raises(NotLeaderOrFollowerError, match="gives it up to another"), brokers[1].partition.refusing():
        brokers[1].frames()
    epoch = brokers[1].partition.leader_epoch
    live_on(brokers, clock, 2)
    leader, leader_epoch, in_sync = brokers[1].state("t")
    assert leader in {2, 3}
    assert leader_epoch > epoch
    assert in_sync == (2, 3)
    live_on(brokers, clock)
    assert is_whole(brokers)
    assert len(brokers[1].set_aside()) == 1


def test_leader_with_a_log_found_damaged_by_its_first_use_gives_up_its_leadership(brokers, clock):
    restart_damaged(brokers[1], clean=True)
    brokers[1].member.step(0)
    assert brokers[1].partition.is_leader
    live_on(brokers, clock)
    assert is_whole(brokers)
    assert len(brokers[1].set_aside()) == 1


def test_only_in_sync_replica_stays_damaged(brokers, clock):
    """Nobody has more, so it neither leaves nor is set aside, whatever other replicas exist."""
    put_in_sync(brokers[1], "t", (1,))
    for each in brokers.values():
        each.stop()
    before = {path: bytes(brokers[1].files._names[path].content) for path in brokers[1].segments()}
    brokers[1].flip(brokers[1].segments()[-1], 68)
    brokers[1].start()
    alone = {1: brokers[1]}
    live_on(alone, clock)
    for number in (2, 3):
        brokers[number].start()
    live_on(brokers, clock)
    assert brokers[1].state("t")[2] == (1,)
    assert brokers[1].set_aside() == []
    assert consume(brokers[1], 0).error.code == "CORRUPT_MESSAGE"
    with pytest.raises(CorruptRecordError):
        brokers[1].log.log_end_offset  # noqa: B018
    assert {path: len(brokers[1].files._names[path].content) for path in before} == {
        path: len(content) for path, content in before.items()
    }


def test_leader_that_dies_before_its_damaged_follower_has_left_is_waited_for(brokers, clock):
    """No committed record is lost: when elected, the damaged replica yields to the dead one, which has everything
    committed; it never leads with an empty log.
    """
    brokers.pop(2).stop()
    live_on(brokers, clock, 3)
    restart_damaged(brokers[3], clean=True)
    assert brokers[1].state("t")[2] == (1, 3)
    with pytest.raises(CorruptRecordError):
        brokers[3].log.log_end_offset  # noqa: B018
    brokers[1].stop(clean=False)
    live_on({3: brokers[3]}, clock)
    assert brokers[3].state("t")[0] is None
    assert brokers[3].state("t")[2] == (1,)
    assert brokers[3].log.is_damaged
    assert brokers[3].set_aside() == []
    brokers[1].start()
    live_on(brokers, clock)
    assert brokers[1].partition.is_leader
    assert sorted(brokers[1].partition.in_sync) == [1, 3]
    assert brokers[3].frames() == brokers[1].frames()


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_log_of_the_first_to_come_back_is_repaired_from_the_others(brokers, clock, clean):
    """It leads alone until its log is found damaged; the others have everything committed, and lead then."""
    for each in brokers.values():
        each.stop(clean=clean)
    brokers[1].flip(brokers[1].segments()[-1], 68)
    brokers[1].start()
    live_on({1: brokers[1]}, clock)
    for number in (2, 3):
        brokers[number].start()
    live_on(brokers, clock)
    assert is_whole(brokers)
    assert len(brokers[1].set_aside()) == 1


@pytest.mark.parametrize("are_away", [False, True])
def test_damaged_log_is_not_left_to_others_whose_logs_have_failed(brokers, clock, are_away):
    """They are offline. Once restarted, they have all that is committed, as it was flushed first."""
    for number in (2, 3):
        brokers[number].files.faults = [Fault("sync")]
    with contextlib.suppress(RequestTimedOutError):
        brokers[1].append(b"more")
    live_on(brokers, clock)
    state = brokers[1].full_state("t")
    assert (state.leader, state.isr, state.eligible) == (1, (1,), (2, 3))
    if are_away:
        for number in (2, 3):
            brokers[number].stop(clean=False)
    restart_damaged(brokers[1], clean=True)
    there = {1: brokers[1]} if are_away else brokers
    live_on(there, clock)
    with pytest.raises(CorruptRecordError):
        brokers[1].log.log_end_offset  # noqa: B018
    live_on(there, clock)
    state = brokers[1].full_state("t")
    assert (state.isr, state.eligible, brokers[1].set_aside()) == ((1,), (2, 3), [])
    for number in (2, 3):
        brokers[number].files.faults = []
        if not are_away:
            brokers[number].stop()
        brokers[number].start()
    live_on(brokers, clock)
    assert is_whole(brokers)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (((1, 2), ()), None),
        (((1, 2, 3), ()), ((2, 3), ())),
        (((1,), (2,)), None),
        (((1,), (2, 3)), ((3,), (2,))),
        (((1, 2), (3,)), ((3,), (2,))),
    ],
)
def test_damaged_log_is_left_only_to_some_that_have_not_failed(before, after):
    """Broker 2's log has."""
    in_sync, eligible = before
    state = PartitionState(leader=1, leader_epoch=4, isr=in_sync, controller_epoch=1, eligible=eligible)
    left = state.without_damaged(1, failed={2})
    assert (left and (left.isr, left.eligible)) == after


def test_leader_with_the_only_sound_log_rules_out_the_others_before_it_commits_more(clock):
    """With ``min.insync.replicas`` of 1 it commits records that the others lack: they are not eligible any more."""
    server = MemoryZooKeeper()
    brokers = {number: ReplicatedBroker(server, number, clock) for number in (1, 2)}
    live_on(brokers, clock, 3)
    brokers[1].create("t", replication_factor=2)
    live_on(brokers, clock, 3)
    brokers[1].append(*VALUES)
    live_on(brokers, clock)
    other = brokers.pop(2)
    other.stop()
    brokers[1].member.step(0)
    assert (brokers[1].state("t"), brokers[1].full_state("t").eligible) == ((1, 0, (1,)), (2,))
    brokers[1].append(b"more")
    assert brokers[1].partition.high_watermark == len(VALUES), "the other may still be needed"
    live_on(brokers, clock, 2)
    assert brokers[1].full_state("t").eligible == ()
    assert brokers[1].partition.high_watermark == len(VALUES) + 1
    brokers[2] = other
    other.start()
    live_on(brokers, clock)
    assert other.frames() == brokers[1].frames()


def test_damaged_log_stops_being_eligible_before_it_is_set_aside(brokers, clock):
    """Otherwise an empty one could join the in-sync set when the leader's is damaged, too."""
    for number in (2, 3):
        brokers[number].stop()
    live_on({1: brokers[1]}, clock, 3)
    assert brokers[1].full_state("t").eligible == (2, 3)
    brokers[3].flip(brokers[3].segments()[-1], 68)
    brokers[3].start()
    seen = []
    rename = brokers[3].files.rename

    def noting(source, target):
        if target.name.endswith(".damaged"):
            seen.append(brokers[1].full_state("t").eligible)
        rename(source, target)

    brokers[3].files.rename = noting
    live_on({1: brokers[1], 3: brokers[3]}, clock)
    assert seen == [(2,)]
    assert brokers[1].state("t")[2] == (1, 3)
    assert brokers[1].full_state("t").eligible == ()


def test_fetch_sent_before_a_damaged_log_was_set_aside_does_not_count(brokers, clock):
    """A frozen leader reads the fetch later: it must not add the empty log to the in-sync set because of it."""
    follower = brokers[3]
    put_in_sync(brokers[1], "t", (1, 2))
    live_on({number: brokers[number] for number in (1, 2)}, clock, 2)
    follower.member.step(0)
    late, caller = follower.request(1)
    assert late.partitions[0].offset == len(VALUES)
    follower.log._state.note_damage(CorruptRecordError("found by a read"))
    for _ in range(3):
        follower.member.step(0)
    assert follower.log.log_end_offset == 0
    assert len(follower.set_aside()) == 1
    brokers[1].answer(late, caller)
    brokers[1].updater.step(clock[0])
    assert 3 not in brokers[1].partition.in_sync
    brokers[2].member.step(0)
    assert brokers[2].state("t") == (1, 1, (1, 2))
    live_on(brokers, clock)
    assert is_whole(brokers)


@pytest.mark.parametrize("is_written", [True, False])
def test_leave_whose_outcome_is_unknown_is_retried(brokers, clock, is_written):
    restart_damaged(brokers[3], clean=True)
    transaction = brokers[3].client.transaction
    tries = []

    def losing(operations, *, session=None):
        tries.append(1)
        if len(tries) > 1:
            return transaction(operations, session=session)
        if is_written:
            transaction(operations, session=session)
        raise ZooKeeperUnavailableError("the answer is lost")

    brokers[3].client.transaction = losing
    live_on(brokers, clock)
    assert tries
    assert is_whole(brokers)


def test_damaged_eligible_log_is_kept_while_zookeeper_accepts_no_writes(brokers, clock):
    """Nobody knows yet that the log is not eligible any more."""
    for number in (2, 3):
        brokers[number].stop()
    live_on({1: brokers[1]}, clock, 3)
    brokers[3].flip(brokers[3].segments()[-1], 68)
    brokers[3].start()
    transaction = brokers[3].client.transaction

    def refusing(operations, *, session=None):
        raise ZooKeeperUnavailableError("no connection")

    brokers[3].client.transaction = refusing
    live_on({1: brokers[1], 3: brokers[3]}, clock)
    assert brokers[3].log.is_damaged
    assert (brokers[3].set_aside(), brokers[1].full_state("t").eligible) == ([], (2, 3))
    brokers[3].client.transaction = transaction
    live_on({1: brokers[1], 3: brokers[3]}, clock)
    assert len(brokers[3].set_aside()) == 1
    assert brokers[1].state("t")[2] == (1, 3)


def test_state_that_changes_meanwhile_is_read_again(brokers, clock):
    restart_damaged(brokers[3], clean=True)
    transaction = brokers[3].client.transaction

    def overtaken(operations, *, session=None):
        brokers[3].client.transaction = transaction
        put_in_sync(brokers[1], "t", (1, 3))
        return transaction(operations, session=session)

    brokers[3].client.transaction = overtaken
    live_on(brokers, clock)
    assert is_whole(brokers)


def test_log_that_cannot_be_set_aside_is_set_aside_later(brokers, clock):
    """Until then the broker hosts nothing for the partition."""
    restart_damaged(brokers[3], clean=True)
    rename = brokers[3].files.rename
    failures = []

    def failing(source, target):
        if target.name.endswith(".damaged") and len(failures) < 3:
            failures.append(1)
            raise OSError("no")
        rename(source, target)

    brokers[3].files.rename = failing
    live_on(brokers, clock)
    assert len(failures) == 3
    assert is_whole(brokers)


def test_partition_whose_only_in_sync_replica_is_damaged_can_be_restored_from_another_by_hand(brokers, clock):
    """The last broker to stop in order is alone in sync. The others hold what was acknowledged before they left: the
    damaged one is stopped, one of them is elected uncleanly and repairs it.
    """
    put_in_sync(brokers[1], "t", (1,))
    for each in brokers.values():
        each.stop()
    brokers[1].flip(brokers[1].segments()[-1], 68)
    for each in brokers.values():
        each.start()
    live_on(brokers, clock)
    assert brokers[2].state("t")[2] == (1,)
    assert brokers[2].member.state.disks[1].damaged == {"t": (0,)}
    damaged = brokers.pop(1)
    damaged.stop()
    live_on(brokers, clock)
    controller = next(each for each in brokers.values() if each.member.controller.is_active)
    movements = MovementService(controller.member, controller.registry, now_ms=lambda: clock[0])
    answer = movements.elect_leaders(CLIENT, ElectLeadersRequest(partitions=(("t", 0),), election="unclean"))
    assert [elected[:2] for elected in answer.elected] == [("t", 0)]
    live_on(brokers, clock)
    assert sorted(brokers[2].state("t")[2]) == [2, 3]
    brokers[1] = damaged
    damaged.start()
    live_on(brokers, clock)
    assert is_whole(brokers)
