"""When a cluster counts as ready: `what_is_missing`."""

from __future__ import annotations

from broker_runtime.contract.requests import BrokerInfo, MetadataResponse, PartitionInfo, TopicInfo
from pyspark_log.testing.cluster import what_is_missing


def answer(
    *brokers: int, leader: int | None = 1, isr: tuple[int, ...] = (1, 2, 3), epoch: int = 0, leads: bool = False
) -> MetadataResponse:
    """The answer of a broker that knows ``brokers`` and one partition; ``leads``: it serves it."""
    partition = PartitionInfo(
        partition=0,
        leader=leader,
        leader_epoch=epoch,
        replicas=(1, 2, 3),
        isr=isr,
        log_start=0 if leads else -1,
        high_watermark=7 if leads else -1,
    )
    return MetadataResponse(
        protocol_version=1,
        software_version="",
        cluster_id="",
        controller_id=2,
        brokers=tuple(BrokerInfo(broker_id=broker, host="h", port=1, epoch=1) for broker in brokers),
        topics=(TopicInfo(name="t", topic_id=bytes(16), partitions=(partition,)),),
    )


def test_cluster_is_ready_when_all_agree_and_the_leader_serves() -> None:
    whole = {1: answer(1, 2, 3, leads=True), 2: answer(1, 2, 3), 3: answer(1, 2, 3)}
    assert what_is_missing(whole) is None


def test_cluster_is_ready_without_a_stopped_broker() -> None:
    """Its replicas are not waited for."""
    assert what_is_missing({1: answer(1, 2, isr=(1, 2), leads=True), 2: answer(1, 2, isr=(1, 2))}) is None
    assert what_is_missing({1: answer(1, 2, 3, isr=(1, 2), leads=True), 2: answer(1, 2, isr=(1, 2))}) is None


def test_cluster_is_not_ready_while_a_broker_is_unknown_to_another() -> None:
    missing = what_is_missing({1: answer(1, 2, leads=True), 2: answer(1)})
    assert missing == "broker 2 does not know broker 2"


def test_cluster_is_not_ready_while_the_controller_does_not_run() -> None:
    assert (
        what_is_missing({1: answer(1, leads=True)}) == "broker 1 knows broker 2 as the controller, which is not running"
    )


def test_cluster_is_not_ready_while_a_leader_is_gone_or_does_not_serve() -> None:
    gone = {2: answer(2, 3), 3: answer(2, 3)}
    assert what_is_missing(gone) == "t-0, according to broker 2: its leader is broker 1, which is not running"
    nobody = {2: answer(2, 3, leader=None), 3: answer(2, 3, leader=None)}
    assert what_is_missing(nobody) == "t-0, according to broker 2: it has no leader"
    idle = {1: answer(1, 2), 2: answer(1, 2)}
    assert what_is_missing(idle) == "t-0, according to broker 1: broker 1 is not leading it yet"
    other_epoch = {1: answer(1, 2, leads=True), 2: answer(1, 2, epoch=1)}
    assert what_is_missing(other_epoch) == "t-0, according to broker 2: broker 1 is not leading it yet"


def test_cluster_is_not_ready_while_a_running_replica_is_behind() -> None:
    behind = {1: answer(1, 2, isr=(1,), leads=True), 2: answer(1, 2)}
    assert what_is_missing(behind) == "t-0, according to broker 1: broker 2 is not in sync; in sync are [1]"
