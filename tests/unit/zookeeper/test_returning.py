"""A broker that comes back with other disks, older ones, or without a log: what it does to the in-sync sets."""

from __future__ import annotations

import contextlib
import json
import random

import crc32c
import pytest

from broker_runtime.contract.errors import SetupError, ZooKeeperUnavailableError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.controller.own_disks import GenerationReport, OwnDisks
from broker_runtime.log import LogConfig, LogDirectory
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.zookeeper.membership import BrokerIdentity, note_stopped, register
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import (
    PERMANENT,
    DiskRecord,
    PartitionState,
    TopicConfig,
    TopicRecord,
    broker_disks_path,
    from_json,
    partition_state_path,
    to_json,
    topic_config_path,
    topic_path,
)
from tests.unit.log.log_samples import ROOT, TOPIC_ID, fill

T0 = TopicPartition("t", 0)
OTHER = ROOT.with_name("other")


class Broker:
    """Broker 1: its machine's disks, and what ZooKeeper knows of it."""

    def __init__(self):
        self.server = MemoryZooKeeper()
        self.client = self.server.client()
        for path in PERMANENT:
            self.client.ensure_path(path)
        self.files = FaultyFiles()
        self.directories = []

    def start(self, *paths, register_now=True, boot_id="boot", answers=lambda host, port: True):
        """Its directories are opened, and it registers."""
        self.directories = [
            LogDirectory.open(path, cluster_id="c", broker_id=1, files=self.files) for path in paths or (ROOT,)
        ]
        disks = OwnDisks(self.directories)
        self.report = GenerationReport(self.client, disks)
        if register_now:
            identity = BrokerIdentity(
                broker_id=1, host="h", port=1, instance="data", pid=1, boot_id=boot_id, software_version="",
                was_clean=all(each.was_clean for each in self.directories), disks=disks,
            )  # fmt: skip
            self.membership = register(self.client, identity, now_ms=0, answers=answers)
            disks.settled()
        return self.directories[0]

    def stop(self, *, clean=True, is_noted=True):
        for directory in self.directories:
            directory.close(clean=clean)
        if not clean:
            self.files.kill()
        elif is_noted:
            note_stopped(self.client, 1, OwnDisks(self.directories).stopped())
        self.client.close()
        self.client = self.server.client()

    def tick(self):
        """A period: the checkpoints of all directories, and what ZooKeeper is told of them."""
        for directory in self.directories:
            directory.checkpoint()
        self.report.tell(self.membership)

    def copy(self):
        return {name: self.files.content(name) for name in self.files._names}

    @property
    def record(self):
        return from_json(self.client.get(broker_disks_path(1)).data, DiskRecord, "")

    def write(self, directory=None, records=20):
        return fill((directory or self.directories[0]).log("t", 0, TOPIC_ID, LogConfig()), records)

    def put_state(self, in_sync=(1,), leader=1, lost=(), unproven=(), eligible=(), flush_mode="ack"):
        state = PartitionState(
            leader=leader, leader_epoch=3, isr=in_sync, controller_epoch=4,
            leader_broker_epoch=-1 if leader is None else 9, lost=lost, unproven=unproven,
            eligible=eligible,
        )  # fmt: skip
        path = partition_state_path("t", 0)
        if self.client.find(path) is None:
            record = TopicRecord(topic_id=TOPIC_ID.bytes, assignment=((1, 2, 3),))
            self.client.create(topic_path("t"), to_json(record))
            self.client.ensure_path(path)
            self.client.create(
                topic_config_path("t"),
                to_json(TopicConfig(topic_id=TOPIC_ID.bytes, config={"flush.mode": flush_mode})),
            )
        self.client.set(path, to_json(state), version=-1)

    @property
    def unproven(self):
        """(leader, leader epoch, in-sync set, those that may lack what was acknowledged)."""
        found = from_json(self.client.get(partition_state_path("t", 0)).data, PartitionState, "")
        return found.leader, found.leader_epoch, found.isr, found.unproven

    def register_other(self, broker_id, port=1):
        client = self.server.client()
        identity = BrokerIdentity(
            broker_id=broker_id, host="h", port=port, instance=f"data {broker_id}", pid=1, boot_id="boot",
            software_version="", was_clean=True,
        )  # fmt: skip
        register(client, identity, now_ms=0)

    @property
    def state(self):
        """(leader, leader epoch, in-sync set, those that lost their log)."""
        found = from_json(self.client.get(partition_state_path("t", 0)).data, PartitionState, "")
        return found.leader, found.leader_epoch, found.isr, found.lost

    @property
    def eligible(self):
        return from_json(self.client.get(partition_state_path("t", 0)).data, PartitionState, "").eligible

    def take_disk(self, path=ROOT):
        """What is on the disk; it is empty then."""
        kept = {name: self.files.content(name) for name in list(self.files._names) if path in name.parents}
        self.files.remove_tree(path)
        return kept

    def put_disk(self, kept, path=ROOT):
        if self.files.is_directory(path):
            self.files.remove_tree(path)
        for name, content in kept.items():
            self.files.make_directory(name.parent)
            self.files.overwrite(name, content)


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


def test_right_disk_that_comes_back_can_be_elected_again(broker):
    broker.stop()
    kept = broker.take_disk()
    broker.start()
    broker.stop()
    broker.put_disk(kept)
    broker.start()
    assert broker.state == (None, 4, (1,), ())
    assert list(broker.record.directories) == [broker.directories[0].disk.disk_id]
    assert len(broker.record.missing) == 1


def test_older_copy_of_the_disk_is_not_taken_for_it(broker):
    """A backup that was put back lacks what was acknowledged since."""
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
    assert broker.directories[0].partitions == [T0], "it stays, in case it is to be elected as it is"


@pytest.mark.parametrize("other_starts", [0, 1])
def test_copy_made_while_the_broker_was_running_is_older_than_its_orderly_stop(broker, other_starts):
    """ZooKeeper knows that the stop was in order, and the copy does not say so; nor after a start without it."""
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
def test_copy_made_while_the_broker_was_running_is_older_than_what_it_wrote_before_it_was_killed(
    broker, has_ticked_before
):
    """ZooKeeper knows of a newer generation, as soon as two periods after the copy."""
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
    """What is known of a disk stays known while it is away."""
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
    """It has its old epoch still, and the generation in that."""
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


def test_copy_of_a_disk_to_which_nothing_was_written_since_is_as_good_as_the_disk(broker):
    broker.tick()
    copy = broker.copy()
    for _ in range(3):
        broker.tick()
    broker.stop(clean=False)
    broker.put_disk(copy)
    broker.start()
    assert broker.state == (1, 3, (1,), ())
    assert broker.directories[0].log("t", 0, TOPIC_ID, LogConfig()).log_end_offset == 20


@pytest.mark.parametrize("loses_power", [True, False])
@pytest.mark.parametrize("moment", range(16))
def test_broker_that_dies_at_any_moment_of_a_period_has_no_older_disk(broker, moment, loses_power):
    """ZooKeeper is told of what is durable only."""

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
    assert broker.directories[0].log("t", 0, TOPIC_ID, LogConfig()).log_end_offset == 40


@pytest.mark.parametrize("is_written", [True, False])
def test_zookeeper_that_is_away_holds_up_no_checkpoint_and_is_told_later(broker, is_written):
    """Whether or not what was sent to it has arrived."""
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


def test_one_znode_is_written_in_a_period_however_many_disks_there_are_and_none_when_nothing_was_written(broker):
    broker.stop()
    broker.start(ROOT, OTHER)
    other = broker.directories[1].log("u", 0, TOPIC_ID, LogConfig())
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


def test_generations_of_an_earlier_life_or_another_disk_are_not_told(broker):
    """Only the newest life of a broker speaks of its disks, and of those that it has."""
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
    report.tell(earlier)
    assert broker.record == before
    session.close()


def test_generation_rises_with_the_appends_of_a_registration_and_begins_anew_with_the_next(broker):
    """What is written while one is made durable asks for the next one; a failed write is tried again."""
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
    """Only a directory that was registered says at its close that it was stopped in order."""
    copy = {name: broker.files.content(name) for name in broker.files._names}
    broker.stop()
    broker.put_disk(copy)
    broker.start(register_now=False)
    broker.stop()
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "zookeeper away"])
@pytest.mark.parametrize("clean", [True, False])
def test_start_that_ended_before_it_registered_makes_no_good_disk_an_older_one(broker, clean, is_noted):
    """The mark of the orderly stop stays on the disk until the next registration."""
    broker.stop(is_noted=is_noted)
    for _ in range(2):
        broker.start(register_now=False)
        broker.stop(clean=clean, is_noted=is_noted)
    broker.start()
    assert broker.state == (1, 3, (1,), ())
    broker.stop(clean=clean)
    broker.start()
    assert broker.state == (1, 3, (1,), ())


def test_stop_that_ends_late_does_not_speak_of_a_later_registration(broker):
    """Another start has registered meanwhile: what is known of its disks stays."""
    stopped = {broker.directories[0].disk.disk_id: broker.directories[0].disk.epoch}
    broker.stop(is_noted=False)
    broker.start()
    note_stopped(broker.client, 1, stopped)
    assert from_json(broker.client.get(broker_disks_path(1)).data, DiskRecord, "").stopped == {}


@pytest.mark.parametrize("clean", [True, False])
def test_log_whose_directory_is_gone_is_missed_until_it_is_put_back(broker, clean):
    """The checkpoints name it, and go on doing so."""
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
    assert broker.directories[0].log("t", 0, TOPIC_ID, LogConfig()).log_end_offset == 20


def test_others_stay_known_to_have_all_that_is_committed_where_the_log_of_the_only_one_in_sync_is_gone(broker):
    """An operator's choice among them loses nothing; and the disk may come back."""
    broker.put_state(in_sync=(1,), eligible=(2, 3))
    broker.stop()
    broker.take_disk()
    broker.start()
    assert (broker.state, broker.eligible) == ((None, 4, (1,), (1,)), (2, 3))


@pytest.mark.parametrize("clean", [True, False])
def test_eligible_replica_that_comes_back_without_its_log_is_so_no_more(broker, clean):
    broker.put_state(in_sync=(2,), leader=2, eligible=(1, 3))
    broker.stop(clean=clean)
    broker.take_disk()
    broker.start()
    assert (broker.state, broker.eligible) == ((2, 3, (2,), ()), (3,))


def test_log_that_was_never_used_is_not_missed(broker):
    """A broker that died before it made a new partition's directory acknowledged nothing there."""
    broker.directories[0].delete(T0)
    broker.stop(clean=False)
    broker.start()
    assert broker.state == (1, 3, (1,), ())


def test_log_that_is_not_there_is_missed_where_the_checkpoints_are_gone_too(broker):
    """A registered directory has checkpoints: without them it does not know which logs it had."""
    broker.stop(clean=False)
    broker.files.remove_tree(ROOT / "t-0")
    for name in ("recovery-point-checkpoint", "high-watermark-checkpoint", "log-start-offset-checkpoint"):
        broker.files.unlink(ROOT / name)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


def test_lost_disk_takes_only_the_logs_that_are_on_no_other(broker):
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
    """A cluster of an older version: the first registration writes what the next one compares with."""
    broker.stop()
    broker.files.unlink(ROOT / "disk.json")
    broker.client.delete(broker_disks_path(1))
    broker.start()
    assert broker.state == (1, 3, (1,), ())


def test_partition_in_two_directories_refuses_the_start_and_names_both(broker):
    """Which of the two counts, nobody can tell."""
    broker.stop()
    kept = {OTHER / name.relative_to(ROOT): broker.files.content(name) for name in broker.files._names}
    broker.put_disk({name: data for name, data in kept.items() if "t-0" in str(name)}, OTHER)
    with pytest.raises(SetupError, match=f"{ROOT / 't-0'} and {OTHER / 't-0'}"):
        broker.start(ROOT, OTHER)


class _DiesError(BaseException):
    pass


def _start_and_die(broker, moment):
    """A start that ends before its so-many-th write to ZooKeeper, if it has that many."""
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
def test_death_while_it_registers_with_an_empty_disk_changes_nothing_of_what_is_found(broker, moment):
    """However far it came, the next start finds the disk lost, or has dealt with it."""
    broker.stop()
    broker.take_disk()
    _start_and_die(broker, moment)
    broker.start()
    assert broker.state == (None, 4, (1,), (1,))


@pytest.mark.parametrize("deaths", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("moment", range(8))
def test_disk_that_is_back_after_a_death_while_it_registered_without_it_can_be_elected(broker, moment, clean, deaths):
    """However far it came: nothing else would ever take the mark away."""
    broker.stop(clean=clean)
    kept = broker.take_disk()
    for _ in range(deaths):
        _start_and_die(broker, moment)
    broker.put_disk(kept)
    broker.start()
    assert broker.state[2:] == ((1,), ())


@pytest.mark.parametrize("moment", range(8))
def test_older_copy_that_is_there_after_a_death_without_the_disk_is_not_taken_for_it(broker, moment):
    broker.stop()
    backup = broker.copy()
    broker.start()
    broker.write()
    broker.stop()
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
def test_log_that_is_put_back_after_a_death_while_it_registered_without_it_can_be_elected(broker, moment):
    broker.stop()
    kept = broker.take_disk(ROOT / "t-0")
    _start_and_die(broker, moment)
    broker.put_disk(kept, ROOT / "t-0")
    broker.start()
    assert broker.state[2:] == ((1,), ())


def test_older_copy_that_was_away_for_a_start_is_not_taken_for_the_disk_either(broker):
    broker.stop()
    backup = broker.copy()
    broker.start()
    broker.write()
    broker.stop()
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
def test_older_copy_that_became_whole_again_counts_as_any_other_disk(broker, moment):
    """Its broker was elected with it, or has fetched what it lacked: it is the one that is missed when it is lost."""
    broker.stop()
    backup = broker.copy()
    broker.start()
    broker.write()
    broker.stop()
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


@pytest.fixture
def unflushed():
    """Broker 1, in sync with 2 and 3, of a topic that is not flushed before records are acknowledged."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state((1, 2, 3), flush_mode="interval")
    broker.stop(clean=False)
    return broker


def test_power_loss_of_all_leaves_who_comes_back_in_the_set_and_marked(unflushed):
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (None, 4, (1, 2, 3), (1,))


def test_mark_stays_through_further_restarts_until_there_is_a_leader(unflushed):
    unflushed.start(boot_id="another boot")
    for clean in (True, False):
        unflushed.stop(clean=clean)
        unflushed.start(boot_id="another boot")
        assert unflushed.unproven == (None, 4, (1, 2, 3), (1,))


def test_death_of_all_processes_marks_nobody(unflushed):
    unflushed.start()
    assert unflushed.unproven == (1, 3, (1, 2, 3), ())


def test_power_loss_marks_nobody_where_records_are_flushed_before_they_are_acknowledged(broker):
    broker.put_state((1, 2, 3))
    broker.stop(clean=False)
    broker.start(boot_id="another boot")
    assert broker.unproven == (1, 3, (1, 2, 3), ())


@pytest.mark.parametrize(("flush_mode", "eligible"), [("ack", (1,)), ("interval", ()), ("os", ())])
def test_eligible_replica_whose_machine_lost_power_is_so_only_with_what_was_flushed(flush_mode, eligible):
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(2,), leader=2, eligible=(1,), flush_mode=flush_mode)
    broker.stop(clean=False)
    broker.start(boot_id="boot 2")
    assert (broker.state, broker.eligible) == ((2, 3, (2,), ()), eligible)


@pytest.mark.parametrize(("boot_id", "eligible"), [("boot", (1,)), ("boot 2", ())])
def test_member_that_leaves_the_set_to_one_alone_is_eligible_but_after_a_power_loss(boot_id, eligible):
    """After the death of a process alone its log has all that it acknowledged."""
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state(in_sync=(1, 2), leader=2, flush_mode="interval")
    broker.register_other(2)
    broker.stop(clean=False)
    broker.start(boot_id=boot_id)
    assert (broker.state, broker.eligible) == ((2, 3, (2,), ()), eligible)


def test_unproven_member_whose_process_dies_once_more_is_not_eligible(unflushed):
    """What its log lost with the power is not back."""
    unflushed.start(boot_id="boot 2")
    assert unflushed.unproven == (None, 4, (1, 2, 3), (1,))
    unflushed.put_state((1, 2), leader=2, unproven=(1,))
    unflushed.register_other(2)
    unflushed.stop(clean=False)
    unflushed.start(boot_id="boot 2")
    assert (unflushed.unproven, unflushed.eligible) == ((2, 3, (2,), ()), ())


def test_only_member_in_sync_that_lost_power_leads_only_where_the_eligible_do_not(unflushed):
    """They have all that is committed; its own disk may lack some."""
    unflushed.put_state((1,), eligible=(2, 3))
    unflushed.start(boot_id="boot 2")
    assert (unflushed.unproven, unflushed.eligible) == ((None, 4, (1, 2, 3), (1,)), ())


def test_power_loss_marks_nobody_after_an_orderly_stop():
    broker = Broker()
    broker.start()
    broker.write()
    broker.put_state((1, 2, 3), flush_mode="interval")
    broker.stop(clean=True)
    broker.start(boot_id="another boot")
    assert broker.unproven == (1, 3, (1, 2, 3), ())


def test_only_member_is_not_marked(unflushed):
    """Nobody can have more."""
    unflushed.put_state((1,))
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (1, 3, (1,), ())


@pytest.mark.parametrize("unproven", [(), (3,), (1, 3)])
def test_power_loss_leaves_the_set_to_one_that_serves_and_is_not_marked_itself(unflushed, unproven):
    unflushed.put_state((1, 2, 3), leader=2, unproven=unproven)
    unflushed.register_other(2)
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (2, 3, (2, 3), tuple(each for each in unproven if each != 1))


def test_power_loss_does_not_leave_the_set_to_one_that_is_marked(unflushed):
    unflushed.put_state((1, 2, 3), leader=None, unproven=(2,))
    unflushed.register_other(2)
    unflushed.start(boot_id="another boot")
    assert unflushed.unproven == (None, 3, (1, 2, 3), (1, 2))


def test_power_loss_does_not_leave_the_set_to_a_registration_that_nobody_answers_for(unflushed):
    """It may be from before the power loss, its session not timed out yet."""
    unflushed.put_state((1, 2, 3), leader=2)
    unflushed.register_other(2, port=13)
    unflushed.start(boot_id="another boot", answers=lambda host, port: port != 13)
    assert unflushed.unproven == (2, 3, (1, 2, 3), (1,))


def test_death_of_a_process_does_not_leave_the_set_to_one_that_lost_power(unflushed):
    """This one has all that was acknowledged."""
    unflushed.put_state((1, 2), leader=None, unproven=(2,))
    unflushed.register_other(2)
    unflushed.start()
    assert unflushed.unproven == (None, 3, (1, 2), (2,))


def test_mark_goes_with_a_log_that_is_lost(unflushed):
    unflushed.put_state((1, 2), leader=None, unproven=(1, 2))
    unflushed.take_disk()
    unflushed.start(boot_id="another boot")
    assert (unflushed.unproven, unflushed.state[3]) == ((None, 3, (2,), (2,)), (1,))
