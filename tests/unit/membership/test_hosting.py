"""A broker hosts what the cluster's state says; data directories are in a temporary directory."""

import contextlib
import threading
import time
import uuid
from dataclasses import replace

import pytest

from broker_runtime.contract.errors import LogStorageError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import LogEnd, PartitionKey
from broker_runtime.log import LogDirectory
from broker_runtime.log.log_state import maybe_roll
from broker_runtime.membership.hosting import Hosting
from broker_runtime.replication import PartitionRegistry
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import PartitionState, TopicRecord
from tests.unit.replication.partitions import NOW_MS, frame

EPOCH = 5


def topic(name="t", leaders=(1,), *, number=1, leader_epoch=0, broker_epoch=EPOCH, config=None):
    states = [
        VersionedState(
            state=PartitionState(
                leader=leader,
                leader_epoch=leader_epoch,
                isr=(leader,),
                controller_epoch=1,
                leader_broker_epoch=broker_epoch,
            ),
            version=leader_epoch,
        )
        for leader in leaders
    ]
    return TopicState(
        name=name,
        record=TopicRecord(topic_id=uuid.UUID(int=number).bytes, assignment=tuple((leader,) for leader in leaders)),
        version=0,
        partitions=tuple(states),
        config=config or {},
    )


def cluster(*topics):
    return ClusterState(topics={each.name: each for each in topics})


@pytest.fixture
def directories(tmp_path):
    opened = [LogDirectory.open(tmp_path / name, cluster_id="c", broker_id=1) for name in ("a", "b")]
    yield opened
    for directory in opened:
        directory.close()


@pytest.fixture
def registry():
    return PartitionRegistry()


@pytest.fixture
def hosting(registry, directories):
    return Hosting(registry, directories, broker_id=1, min_free_bytes=0)


def test_broker_leads_its_own_partitions_and_refuses_others(hosting, registry):
    """W12: only the leader serves."""
    hosting.apply(cluster(topic(leaders=(1, 2))), EPOCH)
    assert registry.find("t", 0).require_leader() == 0
    with pytest.raises(NotLeaderOrFollowerError):
        registry.find("t", 1)


def test_log_ends_have_the_last_records_epoch_and_omit_logs_not_open_here(hosting, registry):
    """Log ends are reported whether or not the broker leads; without records the epoch is -1."""
    hosting.apply(cluster(topic(leaders=(1, 1, 2), leader_epoch=3)), EPOCH)
    registry.find("t", 0).append([frame(b"a", b"b", b"c", b"d")], acks=1, leader_epoch=3, now_ms=NOW_MS)
    hosting.step_down_all()
    keys = [PartitionKey(topic="t", partition=number) for number in range(3)]
    other = PartitionKey(topic="t", partition=0, topic_id=uuid.UUID(int=9).bytes)
    assert hosting.log_ends([*keys, other, PartitionKey(topic="u", partition=0)]) == (
        LogEnd(topic="t", partition=0, leader_epoch=3, log_end=4),
        LogEnd(topic="t", partition=1, leader_epoch=-1, log_end=0),
    )


def test_log_end_of_a_log_whose_records_are_all_deleted_has_their_epoch(hosting, registry):
    """Otherwise an old copy of the log, with records of an earlier epoch, would seem to go further."""
    hosting.apply(cluster(topic(leader_epoch=3)), EPOCH)
    partition = registry.find("t", 0)
    partition.append([frame(b"a", b"b", b"c", b"d")], acks=1, leader_epoch=3, now_ms=NOW_MS)
    partition.log.set_high_watermark(4)
    assert partition.delete_records(4, timeout_s=0) == 4
    assert hosting.log_ends([PartitionKey(topic="t", partition=0)]) == (
        LogEnd(topic="t", partition=0, leader_epoch=3, log_end=4, log_start=4),
    )


def test_log_ends_are_loaded_by_one_call_at_a_time_and_reported_where_known(hosting, registry, directories):
    """Callers give up soon and ask again: a slow disk must not gather threads."""
    hosting.apply(cluster(topic(leaders=(1, 1, 1))), EPOCH)
    keys = [PartitionKey(topic="t", partition=number) for number in range(3)]
    first = registry.find("t", 0)
    assert first.log.log_end_offset == 0
    for loading in hosting._loading.values():
        loading.acquire()
    assert [end.partition for end in hosting.log_ends(keys)] == [0]
    for loading in hosting._loading.values():
        loading.release()
    assert [end.partition for end in hosting.log_ends(keys)] == [0, 1, 2]
    assert not any(loading.locked() for loading in hosting._loading.values())


def test_log_ends_omit_logs_that_stay_locked(hosting, registry):
    """A disk may be stalled; log ends on other disks are reported."""
    hosting.apply(cluster(topic(leaders=(1, 1))), EPOCH)
    keys = [PartitionKey(topic="t", partition=number) for number in range(2)]
    assert len(hosting.log_ends(keys)) == 2
    has_it, lets_go = threading.Event(), threading.Event()

    def hold():
        with registry.find("t", 0).log._state.lock:
            has_it.set()
            lets_go.wait(20)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert has_it.wait(20)
    try:
        assert [end.partition for end in hosting.log_ends(keys)] == [1]
    finally:
        lets_go.set()
        holder.join(20)


def test_leader_of_an_earlier_registration_does_not_lead(hosting, registry):
    hosting.apply(cluster(topic(broker_epoch=EPOCH - 1)), EPOCH)
    with pytest.raises(NotLeaderOrFollowerError):
        registry.find("t", 0).require_leader()


def test_new_epoch_of_the_same_leader_is_adopted(hosting, registry):
    hosting.apply(cluster(topic()), EPOCH)
    partition = registry.find("t", 0)
    hosting.apply(cluster(topic(leader_epoch=3, broker_epoch=EPOCH + 1)), EPOCH + 1)
    assert registry.find("t", 0) is partition
    assert partition.require_leader() == 3


def test_nothing_is_loaded_by_hosting(hosting, registry):
    """Start is lazy: nothing is loaded."""
    hosting.apply(cluster(topic(leaders=(1,) * 20)), EPOCH)
    assert not any(partition.log.is_loaded for partition in registry.hosted())


def test_partitions_are_spread_over_the_directories(hosting, directories):
    hosting.apply(cluster(topic(leaders=(1,) * 6)), EPOCH)
    assert [len(directory.partitions) for directory in directories] == [3, 3]
    assert hosting.directory_of(TopicPartition("t", 5)) in directories


def test_deleted_topic_is_not_served_and_its_logs_stay_until_they_are_removed(hosting, registry, directories):
    hosting.apply(cluster(topic(), topic("u", number=2)), EPOCH)
    hosting.apply(cluster(topic("u", number=2)), EPOCH)
    with pytest.raises(UnknownTopicOrPartitionError):
        registry.find("t", 0)
    held = {at for directory in directories for at in directory.partitions}
    assert held == {TopicPartition("t", 0), TopicPartition("u", 0)}
    hosting.remove_logs("t", uuid.UUID(int=1).bytes)
    assert {at for directory in directories for at in directory.partitions} == {TopicPartition("u", 0)}


def test_logs_of_another_topic_id_are_not_removed(hosting, directories):
    hosting.apply(cluster(topic(number=2)), EPOCH)
    hosting.remove_logs("t", uuid.UUID(int=1).bytes)
    assert {at for directory in directories for at in directory.partitions} == {TopicPartition("t", 0)}


def test_log_of_an_earlier_topic_of_the_name_is_set_aside(hosting, registry, directories):
    """A directory whose topic id does not match is set aside, never read."""
    hosting.apply(cluster(topic()), EPOCH)
    hosting.apply(cluster(topic(number=2)), EPOCH)
    assert registry.find("t", 0).topic_id == uuid.UUID(int=2).bytes
    assert len(list(directories[0].path.glob("t-0.*.stray"))) == 1


def test_changed_settings_apply_to_the_open_log(hosting, registry):
    hosting.apply(cluster(topic()), EPOCH)
    hosting.apply(cluster(topic(config={"segment.bytes": "64KiB"})), EPOCH)
    config = registry.find("t", 0).log.config
    assert (config.segment_bytes, config.max_message_bytes) == (65_536, 65_536)


def test_stepping_down_ends_all_leaderships_until_the_next_look(hosting, registry):
    state = cluster(topic())
    hosting.apply(state, EPOCH)
    hosting.step_down_all()
    assert not registry.find("t", 0).is_leader
    hosting.apply(state, EPOCH)
    assert registry.find("t", 0).is_leader


def test_partition_that_cannot_be_opened_affects_no_other(hosting, registry, monkeypatch, directories):
    for directory in directories:
        real = directory.log

        def fails_for_zero(name, number, *rest, real=real):
            if number == 0:
                raise OSError(5, "Input/output error")
            return real(name, number, *rest)

        monkeypatch.setattr(directory, "log", fails_for_zero)
    hosting.apply(cluster(topic(leaders=(1, 1))), EPOCH)
    assert registry.find("t", 1).is_leader
    with pytest.raises(NotLeaderOrFollowerError):
        registry.find("t", 0)


def test_partition_that_could_not_be_opened_is_opened_at_the_next_attempt(
    hosting, registry, monkeypatch, directories, caplog
):
    """A full disk has room again, which ZooKeeper does not report."""
    state = cluster(topic(leaders=(1, 1)))

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        for directory in directories:
            patched.setattr(directory, "log", refuse)
        hosting.apply(state, EPOCH)
        assert list(hosting.failures("t")) == [0, 1]
        hosting.retry_failed(state, EPOCH)
        hosting.retry_failed(state, EPOCH)
    assert len([record for record in caplog.records if "host partition" in record.getMessage()]) == 2, (
        "each logged once"
    )
    hosting.retry_failed(state, EPOCH)
    assert hosting.failures("t") == {}
    assert registry.find("t", 0).require_leader() == registry.find("t", 1).require_leader() == 0


def test_deleted_topic_is_not_tried_again(hosting, registry, monkeypatch, directories):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        for directory in directories:
            patched.setattr(directory, "log", refuse)
        hosting.apply(cluster(topic()), EPOCH)
    hosting.retry_failed(cluster(), EPOCH)
    hosting.apply(cluster(), EPOCH)
    hosting.retry_failed(cluster(topic()), EPOCH)
    assert registry.hosted() == []


def test_leading_many_partitions_is_logged_in_one_line(hosting, caplog):
    with caplog.at_level("INFO"):
        hosting.apply(cluster(topic(leaders=(1,) * 40)), EPOCH)
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("lead ")] == [
        "lead partitions topic=t leader_epoch=0 partitions=0-39"
    ]


def test_directory_without_room_refuses_appends_until_there_is_room(registry, directories, monkeypatch):
    usable = [100]
    monkeypatch.setattr(LogDirectory, "usable_bytes", property(lambda self: usable[0]))
    hosting = Hosting(registry, directories, broker_id=1, min_free_bytes=1 << 20)
    hosting.apply(cluster(topic()), EPOCH)
    partition = registry.find("t", 0)
    with pytest.raises(LogStorageError, match=r"has 100 bytes left, log\.dir\.min\.free\.bytes is 1MiB"):
        partition.append([], acks=-1, leader_epoch=-1, now_ms=0)
    for usable[0], is_enough in ((1 << 18, True), ((1 << 18) - 1, False)):
        for directory in directories:
            hosting.look_at_disk(directory)
        with pytest.raises(LogStorageError):
            partition.disk.require_room()
        with contextlib.nullcontext() if is_enough else pytest.raises(LogStorageError):
            partition.disk.require_room(is_urgent=True)  # what ends a transaction, which holds retention back
    usable[0] = 2 << 20
    for directory in directories:
        hosting.look_at_disk(directory)
    with pytest.raises(AssertionError, match="at least one frame"):
        partition.append([], acks=-1, leader_epoch=-1, now_ms=0)


def test_new_partition_is_created_where_that_works(hosting, registry, directories, monkeypatch):
    """One disk is full; the others continue, with new partitions, too."""
    full = directories[0]

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(full.files, "make_directory", refuse)
        hosting.apply(cluster(topic(leaders=(1, 1))), EPOCH)
    assert registry.find("t", 0).require_leader() == registry.find("t", 1).require_leader() == 0
    assert {hosting.directory_of(TopicPartition("t", number)) for number in (0, 1)} == {directories[1]}
    assert full.partitions == []


def test_new_partition_avoids_a_directory_without_room(registry, directories, monkeypatch):
    """``log.dir.min.free.bytes``: the directory would refuse every append."""
    monkeypatch.setattr(type(directories[0]), "usable_bytes", property(lambda each: 9 if each is directories[1] else 0))
    hosting = Hosting(registry, directories, broker_id=1, min_free_bytes=1)
    hosting.apply(cluster(topic(leaders=(1, 1))), EPOCH)
    assert {hosting.directory_of(TopicPartition("t", number)) for number in (0, 1)} == {directories[1]}


def test_clock_that_jumps_ahead_deletes_nothing(hosting, registry):
    """Retention uses the time that passed since the broker's start, whatever its clock says."""
    hosting.apply(cluster(topic(config={"retention.ms": "60000"})), EPOCH)
    partition = registry.find("t", 0)
    now_ms = time.time_ns() // 1_000_000
    for age_ms in (90_000, 10_000):
        partition.append([frame(b"a")], acks=1, leader_epoch=-1, now_ms=now_ms - age_ms)
        maybe_roll(partition.log._state, 1 << 60)
    partition.log.flush()
    assert partition.high_watermark == 2
    hosting.apply_retention(now_ms + 10 * 86_400_000)
    assert partition.log_start == 1


def test_partition_whose_last_in_sync_log_is_missing_here_is_not_recreated_without_a_decision(
    hosting, registry, directories
):
    """Nothing takes the lost log's place until it is put back, or this broker is elected without it."""
    decided = topic()
    missed = PartitionState(leader=None, leader_epoch=0, isr=(1,), controller_epoch=1, lost=(1,))
    waiting = replace(decided, partitions=(VersionedState(state=missed, version=0),))
    hosting.apply(cluster(waiting), EPOCH)
    assert "was in sync with a log that is not on its disks any more" in hosting.failures("t")[0]
    assert not any(directory.partitions for directory in directories)
    hosting.apply(cluster(topic(leader_epoch=1)), EPOCH)
    assert registry.find("t", 0).require_leader() == 1
    assert not hosting.failures("t")
