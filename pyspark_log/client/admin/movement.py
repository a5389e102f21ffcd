"""Moving partitions between brokers, electing leaders, decommissioning a broker: requests to the controller.

Rule: the controller answers when it has started a move; the move continues by itself, even if the client ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from broker_runtime.contract.errors import NoReassignmentInProgressError, PylogError
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import Reassignment, TopicPartition
from broker_runtime.contract.requests import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Empty,
    ListReassignmentsRequest,
    ListReassignmentsResponse,
    PartitionMove,
    PartitionProgress,
    ReassignPartitionsRequest,
    portions,
)
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.leaders import ask_leaders

Election = Literal["preferred", "unclean"]

_PROGRESS_LIMIT_S = 5.0


def reassign(cluster: Cluster, moves: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Starts to move each partition to the brokers named, or cancels its move (None). All are checked first; the broker
    refuses more than `MOST_IN_ONE` in one call.

    Raises `InvalidReplicaAssignmentError`, `UnknownTopicOrPartitionError`, `NoReassignmentInProgressError`.
    """
    request = ReassignPartitionsRequest(
        moves=tuple(
            PartitionMove(
                topic=at.topic, partition=at.partition, replicas=None if replicas is None else tuple(replicas)
            )
            for at, replicas in moves.items()
        )
    )
    # Topics are changed one after the other, so an earlier attempt may have reached only some of them.
    is_one = len({at.topic for at in moves}) == 1
    cluster.call(
        "reassign_partitions",
        request,
        Empty,
        to="controller",
        done_if=NoReassignmentInProgressError if is_one else None,
    )


def reassignments(cluster: Cluster, *, timeout_s: float | None = None) -> dict[TopicPartition, Reassignment]:
    """The partitions being moved, and their progress as their leaders know it. ``timeout_s``: for the list of them."""
    response = cluster.call(
        "list_reassignments",
        ListReassignmentsRequest(),
        ListReassignmentsResponse,
        to="controller",
        timeout_s=timeout_s,
    )
    moving = {TopicPartition(each.topic, each.partition): each for each in response.moves}
    progress = _progress(cluster, moving)
    found = {}
    for at, each in moving.items():
        plain = Reassignment(target=each.target, original=each.original)
        found[at] = Reassignment(target=each.target, original=each.original, lag=_lag(progress.get(at), plain.adding))
    return found


def draining(cluster: Cluster, *, timeout_s: float | None = None) -> tuple[int, ...]:
    """The brokers that are being decommissioned."""
    response = cluster.call(
        "list_reassignments",
        ListReassignmentsRequest(),
        ListReassignmentsResponse,
        to="controller",
        timeout_s=timeout_s,
    )
    return response.draining


def elect(
    cluster: Cluster, partitions: Collection[TopicPartition] | None, election: Election
) -> dict[TopicPartition, int]:
    """Elects leaders; returns those that changed, by partition. Raises the first refusal among those named."""
    responses = [
        cluster.call(
            "elect_leaders",
            ElectLeadersRequest(partitions=named, election=election),
            ElectLeadersResponse,
            to="controller",
        )
        for named in ([None] if partitions is None else portions((at.topic, at.partition) for at in partitions))
    ]
    for refusal in (refusal for each in responses for refusal in each.errors.values()):
        raise error_of(refusal)
    return {TopicPartition(topic, partition): leader for each in responses for topic, partition, leader in each.elected}


def decommission(cluster: Cluster, broker_id: int, *, cancel: bool) -> int:
    """Starts to decommission a broker, or cancels that; returns how many partitions start to move.

    Raises `InvalidReplicaAssignmentError` if the others cannot take its replicas.
    """
    request = DecommissionBrokerRequest(broker_id=broker_id, cancel=cancel)
    return cluster.call("decommission_broker", request, DecommissionBrokerResponse, to="controller").moves


def _progress(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionProgress]:
    """What the leaders say, asked once; partitions whose leader does not answer in time are left out."""

    def find_leaders(found: Mapping[TopicPartition, PartitionProgress]) -> dict[TopicPartition, int | None]:
        return {at: cluster.topic(at.topic).partition(at.partition).leader for at in partitions}

    def ask(leader: int, led: list[TopicPartition]) -> Iterator[tuple[TopicPartition, PartitionProgress]]:
        for some in portions(led):
            request = DescribeReplicasRequest(
                partitions=tuple(cluster.topic(at.topic).partition_key(at.partition) for at in some)
            )
            try:
                response = cluster.call(
                    "describe_replicas", request, DescribeReplicasResponse, to=leader, timeout_s=_PROGRESS_LIMIT_S
                )
            except PylogError:
                return  # a description without its progress is better than none
            yield from ((TopicPartition(each.topic, each.partition), each) for each in response.partitions)

    found, _ = ask_leaders(find_leaders, ask, cluster.deadline(0.0))
    return found


def _lag(progress: PartitionProgress | None, adding: Collection[int]) -> int:
    if progress is None or progress.error is not None:
        return -1
    ends = {replica.broker_id: replica.replicated_end for replica in progress.replicas}
    if any(ends.get(broker_id, -1) < 0 for broker_id in adding):
        return progress.log_end - progress.log_start
    return max((progress.log_end - ends[broker_id] for broker_id in adding), default=0)
