"""A broker that comes back with other disks, older ones, or without a log: its effect on the in-sync sets."""

from __future__ import annotations

import contextlib
import json
import random

import crc32c
import pytest

from broker_runtime.contract.errors import SetupError, ZooKeeperUnavailableError
from broker_runtime.log.faulty_files import Fault
from broker_runtime.membership.own_disks import OwnDisks
from broker_runtime.zookeeper.membership import BrokerIdentity, note_stopped, register
from broker_runtime.zookeeper.znodes import (
    DiskRecord,
    broker_disks_path,
    broker_unwritable_path,
    from_json,
)
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, TOPIC_ID, fill
from tests.unit.zookeeper.returning_broker import OTHER, T0, Broker


@pytest.fixture
def broker():
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state()
    return broker


@pytest.mark.parametrize("clean", [True, False])
def test_empty_disk_leaves_an_in_sync_set_whether_or_not_the_others_are_up(broker, clean):
    """They have everything; this broker has nothing."""
    broker.put_state((1, 2))
    broker.stop(clean=clean)
    broker.take_disk()
    broker.start()
    assert broker.state == (None, 4, (2,), (1,))


@pytest.mark.parametrize("clean", [True, False])
def test_partition_whose_only_in_sync_member_has_an_empty_disk_has_no_leader(broker, clean):
    broker.stop(clean=clean)
    broker.take_disk()
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))
    broker.stop()
    broker.start()
    assert broker.state == (None, 4, (1,), (1,)), "as long as nothing has changed"


def test_original_disk_that_comes_back_can_be_elected_again(broker):
    broker.stop()
    kept = broker.take_disk()
    broker.start()
    broker.stop()
    broker.put_disk(kept)
    broker.start()
    assert broker.state == (None, 4, (1,), ())
    assert list(broker.record.directories) == [broker.directories[0].disk.disk_id]
    assert len(broker.record.missing) == 1


def test_older_copy_of_the_disk_is_recognised(broker):
    """A restored backup lacks the records acknowledged since."""
    broker.stop()
    backup = {name: broker.files.content(name) for name in broker.files._names}
    broker.start()
    broker.write()
    broker.stop()
    broker.put_disk(backup)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))
    broker.stop()
    broker.start()
    assert broker.state == (None, 4, (1,), (1,)), "nor at the start after that"
    assert broker.directories[0].partitions == [T0], "it stays, in case it is elected as it is"


@pytest.mark.parametrize("other_starts", [0, 1])
def test_copy_of_a_running_brokers_disk_is_older_than_its_orderly_stop(broker, other_starts):
    """ZooKeeper knows that the stop was in order, but the copy does not say so, nor after a start without it."""
    copy = {name: broker.files.content(name) for name in broker.files._names}
    broker.write()
    broker.stop()
    for _ in range(other_starts):
        broker.take_disk()
        broker.start()
        broker.stop()
    broker.put_disk(copy)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


@pytest.mark.parametrize("has_ticked_before", [True, False])
def test_copy_of_a_running_brokers_disk_is_older_than_its_later_writes(broker, has_ticked_before):
    """ZooKeeper knows of a newer generation at most two periods after the copy."""
    if has_ticked_before:
        broker.tick()
    copy = broker.copy()
    broker.write()
    broker.tick()
    broker.stop(clean=False)
    broker.put_disk(copy)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))
    broker.stop()
    broker.start()
    assert broker.state == (None, 4, (1,), (1,)), "nor at the start after that"


@pytest.mark.parametrize("clean", [True, False])
def test_copy_of_a_disk_that_was_missing_for_a_start_is_older_too(broker, clean):
    """ZooKeeper's knowledge of a disk survives the disk's absence."""
    copy = broker.copy()
    broker.write()
    broker.tick()
    broker.stop(clean=False)
    broker.take_disk()
    broker.start()
    broker.stop(clean=clean)
    broker.put_disk(copy)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


def test_copy_of_a_disk_that_could_not_be_written_at_a_registration_is_older_too(broker):
    """It still has its old epoch, and the generation in that."""
    copy = broker.copy()
    broker.write()
    broker.tick()
    broker.stop(clean=False)
    broker.files.faults = [Fault("write", matches=lambda path: path.name.startswith("disk.json"))]
    broker.start()
    broker.files.faults = []
    broker.stop(clean=False)
    broker.put_disk(copy)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


def test_copy_of_an_unchanged_disk_is_as_good_as_the_disk(broker):
    broker.tick()
    copy = broker.copy()
    for _ in range(3):
        broker.tick()
    broker.stop(clean=False)
    broker.put_disk(copy)
    broker.start()
    assert broker.state == (1, 3, (1,), ())
    assert broker.directories[0].log("t", 0, TOPIC_ID, topic_settings()).log_end_offset == 20


@pytest.mark.parametrize("loses_power", [True, False])
@pytest.mark.parametrize("moment", range(16))
def test_broker_that_dies_at_any_moment_of_a_period_has_no_older_disk(broker, moment, loses_power):
    """ZooKeeper learns only of durable generations."""

    class Dies(BaseException):
        pass

    left = [moment]

    def count():
        if not left[0]:
            raise Dies
        left[0] -= 1

    real_call, real_apply = broker.files._call, broker.server._apply

    def call(operation, path):
        count()
        real_call(operation, path)

    def apply(operations, session):
        count()
        return real_apply(operations, session)

    broker.tick()
    broker.write()
    broker.files._call, broker.server._apply = call, apply
    with contextlib.suppress(Dies):
        broker.tick()
    broker.files._call, broker.server._apply = real_call, real_apply
    if loses_power:
        broker.files.lose_power(random.Random(moment))
    else:
        broker.files.kill()
    broker.client.close()
    broker.client = broker.server.client()
    broker.start()
    assert broker.state == (1, 3, (1,), ())
    assert broker.directories[0].log("t", 0, TOPIC_ID, topic_settings()).log_end_offset == 40


@pytest.mark.parametrize("is_written", [True, False])
def test_absent_zookeeper_delays_no_checkpoint_and_is_updated_later(broker, is_written):
    """This holds whether or not the request has reached it."""
    real = broker.server._apply

    def apply(operations, session):
        if is_written:
            real(operations, session)
        raise ZooKeeperUnavailableError("away")

    disk_id = broker.directories[0].disk.disk_id
    broker.server._apply = apply
    for _ in range(3):
        broker.write()
        broker.tick()
    assert broker.directories[0].disk.generation == 3
    broker.server._apply = real
    broker.tick()
    assert broker.record.generations == {disk_id: 3}
    broker.stop(clean=False)
    broker.start()
    assert broker.state == (1, 3, (1,), ())


def test_one_znode_is_written_per_period_for_all_disks_and_none_without_changes(broker):
    broker.stop()
    broker.start(ROOT, OTHER)
    other = broker.directories[1].log("u", 0, TOPIC_ID, topic_settings())
    real, written = broker.server._apply, []

    def apply(operations, session):
        written.append(operations)
        return real(operations, session)

    broker.server._apply = apply
    broker.tick()
    assert not written
    for period in range(1, 4):
        broker.write()
        fill(other, 1)
        broker.tick()
        broker.tick()
        assert len(written) == period
    assert broker.record.generations == {each.disk.disk_id: 3 for each in broker.directories}


def test_generations_of_an_earlier_registration_or_another_disk_are_not_reported(broker):
    """Only the newest registration of a broker reports its disks, and only those it has."""
    earlier = broker.membership
    broker.write()
    broker.directories[0].checkpoint()
    report, session = broker.report, broker.client
    newest = broker.server.client()
    broker.client = newest
    identity = BrokerIdentity(
        broker_id=1, host="h", port=1, instance="data", pid=2, boot_id="boot", software_version="", was_clean=True,
        disks=OwnDisks([]),
    )  # fmt: skip
    register(newest, identity, now_ms=0)
    before = broker.record
    report.report(earlier)
    assert broker.record == before
    session.close()


def test_generation_rises_with_the_appends_of_a_registration_and_restarts_with_the_next(broker):
    """A write during the sync of one generation requests the next; a failed report is repeated."""
    directory = broker.directories[0]
    directory.checkpoint()
    directory.checkpoint()
    assert directory.disk.generation == 1
    real = broker.files.rename

    def rename(source, target):
        real(source, target)
        if target.name == "disk.json":
            broker.files.rename = real
            broker.write(records=1)

    broker.write(records=1)
    broker.files.rename = rename
    directory.checkpoint()
    directory.checkpoint()
    assert directory.disk.generation == 3
    broker.write(records=1)
    broker.files.faults = [Fault("write", matches=lambda path: path.name.startswith("disk.json"))]
    with pytest.raises(OSError):
        directory.checkpoint()
    assert directory.disk.generation == 3
    broker.files.faults = []
    directory.checkpoint()
    assert directory.disk.generation == 4
    broker.stop()
    directory = broker.start(register_now=False)
    broker.write()
    directory.checkpoint()
    assert directory.disk.generation == 4, "nobody is registered"
    broker.stop()
    assert broker.start().disk.generation == 0


def test_disk_and_record_of_a_version_without_generations_count_as_before(broker):
    epoch = broker.directories[0].disk.epoch
    broker.stop(clean=False)
    path = ROOT / "disk.json"
    older = json.loads(broker.files.content(path))["content"]
    del older["generation"]
    crc = crc32c.crc32c(json.dumps(older, sort_keys=True, separators=(",", ":")).encode())
    broker.files.overwrite(path, json.dumps({"content": older, "crc32c": f"{crc:08x}"}).encode())
    record = json.loads(broker.client.get(broker_disks_path(1)).data)
    del record["generations"]
    broker.client.set(broker_disks_path(1), json.dumps(record).encode(), version=-1)
    broker.start()
    assert broker.state == (1, 3, (1,), ())
    assert broker.directories[0].disk.epoch == epoch + 1


def test_copy_is_older_even_if_a_tool_has_opened_it_or_a_start_has_failed(broker):
    """Only a registered directory is marked as stopped in order when it is closed."""
    copy = {name: broker.files.content(name) for name in broker.files._names}
    broker.stop()
    broker.put_disk(copy)
    broker.start(register_now=False)
    broker.stop()
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "zookeeper away"])
@pytest.mark.parametrize("clean", [True, False])
def test_start_that_ended_before_it_registered_does_not_make_a_disk_outdated(broker, clean, is_noted):
    """The mark of the orderly stop stays on disk until the next registration."""
    broker.stop(is_noted=is_noted)
    for _ in range(2):
        broker.start(register_now=False)
        broker.stop(clean=clean, is_noted=is_noted)
    broker.start()
    assert broker.state == (1, 3, (1,), ())
    broker.stop(clean=clean)
    broker.start()
    assert broker.state == (1, 3, (1,), ())


def test_late_stop_does_not_affect_a_later_registration(broker):
    """Another start has registered meanwhile: the knowledge of its disks stays."""
    disks = OwnDisks(broker.directories)
    broker.stop(is_noted=False)
    broker.start()
    note_stopped(broker.client, 1, disks, [T0])
    assert broker.client.find(broker_unwritable_path(1)) is None
    assert from_json(broker.client.get(broker_disks_path(1)).data, DiskRecord, "").stopped == {}


@pytest.mark.parametrize("clean", [True, False])
def test_log_whose_directory_is_gone_is_missed_until_it_is_put_back(broker, clean):
    """The checkpoints name the log, and continue to do so."""
    broker.stop(clean=clean)
    kept = broker.take_disk(ROOT / "t-0")
    for _ in range(2):
        directory = broker.start()
        assert directory.missing == {T0}
        assert broker.state == (None, 4, (1,), (1,))
        broker.stop()
    broker.put_disk(kept, ROOT / "t-0")
    directory = broker.start()
    assert (directory.missing, broker.state) == (frozenset(), (None, 4, (1,), ()))
    assert broker.directories[0].log("t", 0, TOPIC_ID, topic_settings()).log_end_offset == 20


def test_others_stay_eligible_when_the_log_of_the_only_in_sync_replica_is_gone(broker):
    """An operator's choice among them loses nothing, and the disk may come back."""
    broker.put_state(in_sync=(1,), eligible=(2, 3))
    broker.stop()
    broker.take_disk()
    broker.start()
    assert (broker.state, broker.eligible) == ((None, 4, (1,), (1,)), (2, 3))


@pytest.mark.parametrize("clean", [True, False])
def test_eligible_replica_that_comes_back_without_its_log_is_no_longer_eligible(broker, clean):
    broker.put_state(in_sync=(2,), leader=2, eligible=(1, 3))
    broker.stop(clean=clean)
    broker.take_disk()
    broker.start()
    assert (broker.state, broker.eligible) == ((2, 3, (2,), ()), (3,))


def test_log_that_was_never_used_is_not_missed(broker):
    """A broker that died before it created a new partition's directory acknowledged nothing there."""
    broker.directories[0].delete(T0)
    broker.stop(clean=False)
    broker.start()
    assert broker.state == (1, 3, (1,), ())


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("earlier_starts", [0, 2])
def test_absent_log_is_missed_when_the_checkpoints_are_gone_too(broker, earlier_starts, clean):
    """A registered directory has checkpoints: without them it does not know which logs it had, nor does a start that
    ends before it registers change that.
    """
    broker.stop(clean=False)
    broker.files.remove_tree(ROOT / "t-0")
    for name in ("recovery-point-checkpoint", "high-watermark-checkpoint", "log-start-offset-checkpoint"):
        broker.files.unlink(ROOT / name)
    for _ in range(earlier_starts):
        broker.start(register_now=False)
        broker.stop(clean=clean)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))
    broker.stop(clean=clean)
    assert not broker.start().has_lost_names
    assert broker.state == (None, 4, (1,), (1,))


def test_lost_disk_costs_only_the_logs_that_are_on_no_other(broker):
    broker.stop()
    broker.start(ROOT, OTHER)
    broker.stop()
    broker.take_disk(OTHER)
    broker.start(ROOT, OTHER)
    assert broker.state == (1, 3, (1,), ())
    broker.stop()
    broker.take_disk()
    broker.start(ROOT, OTHER)
    assert broker.state == (None, 4, (1,), (1,))


def test_directories_without_an_identity_open_as_before(broker):
    """In a cluster of an older version the first registration writes what the next one compares with."""
    broker.stop()
    broker.files.unlink(ROOT / "disk.json")
    broker.client.delete(broker_disks_path(1))
    broker.start()
    assert broker.state == (1, 3, (1,), ())


def test_partition_in_two_directories_refuses_the_start_and_names_both(broker):
    """Nobody can tell which of the two counts."""
    broker.stop()
    kept = {OTHER / name.relative_to(ROOT): broker.files.content(name) for name in broker.files._names}
    broker.put_disk({name: data for name, data in kept.items() if "t-0" in str(name)}, OTHER)
    with pytest.raises(SetupError, match=f"{ROOT / 't-0'} and {OTHER / 't-0'}"):
        broker.start(ROOT, OTHER)


class _DiesError(BaseException):
    pass


def _start_and_die(broker, moment):
    """A start that ends before its n-th write to ZooKeeper, if it makes that many."""
    real, left = broker.server._apply, [moment]

    def apply(operations, session):
        if not left[0]:
            raise _DiesError
        left[0] -= 1
        return real(operations, session)

    broker.server._apply = apply
    with contextlib.suppress(_DiesError):
        broker.start()
    broker.server._apply = real
    broker.stop(clean=False)


@pytest.mark.parametrize("moment", range(8))
def test_death_during_the_registration_with_an_empty_disk_changes_no_finding(broker, moment):
    """However far it got, the next start finds the disk lost, or has handled that."""
    broker.stop()
    broker.take_disk()
    _start_and_die(broker, moment)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


@pytest.mark.parametrize("deaths", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("moment", range(8))
def test_disk_that_is_back_after_a_death_during_the_registration_without_it_can_be_elected(
    broker, moment, clean, deaths
):
    """This holds however far it got: nothing else would ever remove the mark."""
    broker.stop(clean=clean)
    kept = broker.take_disk()
    for _ in range(deaths):
        _start_and_die(broker, moment)
    broker.put_disk(kept)
    broker.start()
    assert broker.state[2:] == ((1,), ())


@pytest.mark.parametrize("moment", range(8))
def test_older_copy_found_after_a_death_without_the_disk_is_recognised(broker, moment):
    backup = broker.copy_and_write_more()
    kept = broker.take_disk()
    _start_and_die(broker, moment)
    broker.put_disk(backup)
    _start_and_die(broker, moment)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))
    broker.stop()
    broker.put_disk(kept)
    broker.start()
    assert broker.state == (None, 4, (1,), ())


@pytest.mark.parametrize("moment", range(8))
def test_log_that_is_put_back_after_a_death_during_the_registration_without_it_can_be_elected(broker, moment):
    broker.stop()
    kept = broker.take_disk(ROOT / "t-0")
    _start_and_die(broker, moment)
    broker.put_disk(kept, ROOT / "t-0")
    broker.start()
    assert broker.state[2:] == ((1,), ())


def test_older_copy_that_was_absent_for_a_start_is_recognised_too(broker):
    backup = broker.copy_and_write_more()
    broker.put_disk(backup)
    broker.start()
    broker.stop()
    kept = broker.take_disk()
    broker.start()
    broker.stop()
    broker.put_disk(kept)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


@pytest.mark.parametrize("moment", range(8))
def test_older_copy_that_became_complete_counts_like_any_other_disk(broker, moment):
    """Its broker was elected with it, or has fetched the missing records: now it is the disk that is missed when it
    is lost.
    """
    backup = broker.copy_and_write_more()
    broker.put_disk(backup)
    broker.start()
    assert broker.record.older == (broker.directories[0].disk.disk_id,)
    broker.put_state()
    broker.stop()
    kept = broker.take_disk()
    _start_and_die(broker, moment)
    broker.put_disk(kept)
    broker.start()
    assert broker.state[2:] == ((1,), ())
    assert not broker.record.older


def test_set_is_not_left_to_a_member_whose_log_is_missing(broker):
    """It is there, and has nothing."""
    broker.write()
    broker.put_state((1, 2), leader=None, lost=(2,))
    broker.register_other(2)
    broker.stop(clean=False)
    broker.start()
    assert broker.state[2:] == ((1, 2), (2,))
