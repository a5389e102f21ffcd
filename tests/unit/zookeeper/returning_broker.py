"""A broker that comes back: its machine's disks, and ZooKeeper's knowledge of it."""

from __future__ import annotations

from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import LogDirectory
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.membership.own_disks import GenerationReport, OwnDisks
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
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, TOPIC_ID, fill

T0 = TopicPartition("t", 0)
OTHER = ROOT.with_name("other")


class Broker:
    """Broker 1: its machine's disks, and ZooKeeper's knowledge of it."""

    def __init__(self):
        self.server = MemoryZooKeeper()
        self.client = self.server.client()
        for path in PERMANENT:
            self.client.ensure_path(path)
        self.files = FaultyFiles()
        self.directories = []

    def start(self, *paths, register_now=True, boot_id="boot", answers=lambda host, port: True):
        """Opens its directories and registers."""
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
            failed = [at for each in self.directories for at in each.failed]
            note_stopped(self.client, 1, OwnDisks(self.directories), failed)
        self.client.close()
        self.client = self.server.client()

    def tick(self):
        """A period: the checkpoints of all directories, and their report to ZooKeeper."""
        for directory in self.directories:
            directory.checkpoint()
        self.report.report(self.membership)

    def copy(self):
        return {name: self.files.content(name) for name in self.files._names}

    @property
    def record(self):
        return from_json(self.client.get(broker_disks_path(1)).data, DiskRecord, "")

    def write(self, directory=None, records=20, flush_mode="ack"):
        settings = topic_settings(flush_mode=flush_mode)
        return fill((directory or self.directories[0]).log("t", 0, TOPIC_ID, settings), records)

    def copy_and_write_more(self):
        """A copy of the disk that lacks the broker's later writes; the broker has stopped again."""
        self.stop()
        copied = self.copy()
        self.start()
        self.write()
        self.stop()
        return copied

    def put_state(self, in_sync=(1,), leader=1, lost=(), unproven=(), eligible=(), last_known=(), flush_mode="ack"):
        state = PartitionState(
            leader=leader, leader_epoch=3, isr=in_sync, controller_epoch=4,
            leader_broker_epoch=-1 if leader is None else 9, lost=lost, unproven=unproven,
            eligible=eligible, last_known_eligible=last_known,
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
        """Returns (leader, leader epoch, in-sync set, members that may lack acknowledged records)."""
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
        """Returns (leader, leader epoch, in-sync set, members that lost their log)."""
        found = from_json(self.client.get(partition_state_path("t", 0)).data, PartitionState, "")
        return found.leader, found.leader_epoch, found.isr, found.lost

    @property
    def eligible(self):
        return from_json(self.client.get(partition_state_path("t", 0)).data, PartitionState, "").eligible

    def take_disk(self, path=ROOT):
        """Removes and returns the disk's content; the disk is empty then."""
        kept = {name: self.files.content(name) for name in list(self.files._names) if path in name.parents}
        self.files.remove_tree(path)
        return kept

    def put_disk(self, kept, path=ROOT):
        if self.files.is_directory(path):
            self.files.remove_tree(path)
        for name, content in kept.items():
            self.files.make_directory(name.parent)
            self.files.overwrite(name, content)
