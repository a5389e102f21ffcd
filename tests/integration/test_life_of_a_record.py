"""One record from `Producer.send` to the group's offset in ZooKeeper, stop by stop as the page about it has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from broker_runtime.contract.frame import verify_frame
from broker_runtime.log.inspect import verify_directory
from pyspark_log import Admin, Consumer, Producer, TopicPartition, read
from pyspark_log.testing import LocalCluster
from tests.waiting import take


@pytest.fixture(autouse=True)
def bootstrap(pylog_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", pylog_cluster.bootstrap_servers)


def partition_directory(cluster: LocalCluster, at: TopicPartition) -> Path:
    (found,) = [directory / str(at) for directory in cluster.log_dirs(1) if (directory / str(at)).is_dir()]
    return found


def znode(cluster: LocalCluster, path: str) -> dict[str, Any]:
    client = KazooClient(cluster.zookeeper_connect)
    client.start(timeout=10)
    try:
        return json.loads(client.get(path)[0])
    finally:
        client.stop()
        client.close()


def test_life_of_a_record(pylog_cluster: LocalCluster) -> None:
    """W1, W2, W15, W18, W25: the bytes are the same from memory over the wire, the log and the reader to the group's
    offset.
    """
    at = TopicPartition("life", 0)
    with Admin() as admin:
        described = admin.create_topic("life")
        assert len(described.partitions) == 1  # one partition, by default
    topic = znode(pylog_cluster, "/topics/life")
    assert topic["topic_id"]
    assert znode(pylog_cluster, "/topics/life/partitions/0/state")["leader"] == 1

    with Producer() as producer:  # rows 1 to 10: acknowledged, so on disk
        metadata = producer.send("life", b"value", key=b"key", headers=[("h", b"1"), ("h", b"2")]).result(30)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("life", 0, 0)

    directory = partition_directory(pylog_cluster, at)
    segment = (directory / f"{0:020}.log").read_bytes()
    header = verify_frame(segment, topic_id=described.topic_id.bytes, partition=0)
    assert (header.base_offset, header.record_count, header.leader_epoch) == (0, 1, 0)
    assert b"value" in segment

    with Consumer("life", group_id="life", auto_offset_reset="earliest") as consumer:  # rows 11 to 13
        (record,) = take(consumer, 1, 30)
        assert (record.key, record.value, record.offset) == (b"key", b"value", 0)
        assert record.headers == (("h", b"1"), ("h", b"2"))
        consumer.commit(record)

    # The group's offset is in ZooKeeper, and no other state of the reader is anywhere.
    assert znode(pylog_cluster, "/consumers/life/offsets/life")["offsets"]["0"][0] == 1
    with Admin() as admin:
        assert admin.list_group_offsets("life")[at].committed == 1
    assert (directory / f"{0:020}.log").read_bytes() == segment


def test_cluster_holds_the_disjoint_union_of_its_partitions(pylog_cluster: LocalCluster) -> None:
    """W4: every record is in the files of exactly one partition, and together they are what was produced."""
    with Admin() as admin:
        admin.create_topic("union", partitions=3)
    sent = [b"%d" % number for number in range(3_000)]
    with Producer() as producer:
        for value in sent:
            producer.send("union", value)
    held: dict[int, list[bytes]] = {}
    for partition in range(3):
        rows = read("union", partitions=[partition]).read_all()
        held[partition] = rows["value"].to_pylist()
        reports = verify_directory(partition_directory(pylog_cluster, TopicPartition("union", partition)))
        assert sum(report.records for report in reports) == len(held[partition]) == 1_000
        assert not any(report.damage for report in reports)
    everything = held[0] + held[1] + held[2]
    assert sorted(everything) == sorted(sent)
    assert len(set(everything)) == len(sent)
