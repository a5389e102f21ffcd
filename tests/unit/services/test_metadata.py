"""What a broker reports about partitions' offsets: only what it knows as their leader."""

from __future__ import annotations

import time
import tracemalloc

from broker_runtime.contract.requests import MOST_ENTRIES, MetadataRequest, PartitionInfo
from broker_runtime.services.metadata import MetadataService
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import PartitionState, TopicRecord
from tests.callers import CLIENT
from tests.unit.replication.partitions import TOPIC_ID, Hosted, leadership, reports


def _described(hosted: Hosted, *, leader: int = 1, epoch: int) -> PartitionInfo:
    state = PartitionState(leader=leader, leader_epoch=epoch, isr=(1, 2), controller_epoch=1)
    topic = TopicState(
        name="t",
        record=TopicRecord(topic_id=TOPIC_ID.bytes, assignment=((1, 2),)),
        version=0,
        partitions=(VersionedState(state=state, version=0),),
    )
    cluster = ClusterState(topics={"t": topic})
    service = MetadataService(
        hosted.registry,
        lambda: cluster,
        cluster_id="c",
        broker_id=1,
        directories=(),
        is_zookeeper_connected=lambda: True,
    )
    (info,) = service.metadata(CLIENT, MetadataRequest(with_offsets=True)).topics
    return info.partitions[0]


def test_new_leader_reports_no_end_before_it_knows_what_is_committed():
    """KIP-207: its high watermark may be below the earlier leader's report, and a query would take that for loss."""
    hosted = Hosted()
    hosted.append(b"a")
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)), 0)
    hosted.only.log.set_high_watermark(0)
    assert _described(hosted, epoch=2).high_watermark == -1
    reports(hosted.only, 2, 1)
    assert (_described(hosted, epoch=2).log_start, _described(hosted, epoch=2).high_watermark) == (0, 1)


def test_leader_of_an_older_epoch_reports_no_end():
    """Its offsets would appear beside the newer leader's id and epoch."""
    hosted = Hosted()
    hosted.append(b"a")
    assert _described(hosted, epoch=1).high_watermark == 1
    described = _described(hosted, leader=2, epoch=2)
    assert (described.leader, described.leader_epoch, described.high_watermark) == (2, 2, -1)


def test_answer_waits_for_one_busy_partition_per_disk_and_reports_the_others():
    """While a disk is stalled, an answer about many of its partitions takes no longer than about one."""
    hosted = Hosted(count=30)
    for partition in hosted.partitions[:29]:
        partition._lock.acquire()
    states = PartitionState(leader=1, leader_epoch=1, isr=(1,), controller_epoch=1)
    topic = TopicState(
        name="t",
        record=TopicRecord(topic_id=TOPIC_ID.bytes, assignment=((1,),) * 30),
        version=0,
        partitions=(VersionedState(state=states, version=0),) * 30,
    )
    cluster = ClusterState(topics={"t": topic})
    service = MetadataService(
        hosted.registry,
        lambda: cluster,
        cluster_id="c",
        broker_id=1,
        directories=(),
        is_zookeeper_connected=lambda: True,
    )
    began_s = time.monotonic()
    (info,) = service.metadata(CLIENT, MetadataRequest(with_offsets=True)).topics
    assert time.monotonic() - began_s < 10
    assert [each.high_watermark for each in info.partitions] == [-1] * 29 + [0]


def test_answer_about_unknown_topics_costs_little_more_than_its_size():
    """There are as many as a request may have."""
    service = MetadataService(
        Hosted().registry,
        ClusterState,
        cluster_id="c",
        broker_id=1,
        directories=(),
        is_zookeeper_connected=lambda: True,
    )
    request = MetadataRequest(topics=tuple(f"{number:0249d}" for number in range(MOST_ENTRIES)))
    tracemalloc.start()
    try:
        answer = service.metadata(CLIENT, request)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.topics == ()
    assert {each.code for each in answer.errors.values()} == {"UNKNOWN_TOPIC_OR_PARTITION"}
    said_bytes = sum(len(each.message) for each in answer.errors.values())
    assert peak_bytes < 2 * said_bytes
