"""Moving partitions, choosing leaders, emptying brokers, as requests to the controller; how far replicas are, as a
request to a leader.

Rule: a request is checked as a whole before anything is written, and is written through the controller. From then on
it proceeds by itself: the controller's loop finishes a move when its target is in sync, whichever broker it is by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from broker_runtime.contract.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    PreferredLeaderNotAvailableError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Empty,
    ErrorInfo,
    ListReassignmentsRequest,
    ListReassignmentsResponse,
    PartitionKey,
    PartitionProgress,
    ReassignmentInfo,
    ReassignPartitionsRequest,
    ReplicaProgress,
)
from broker_runtime.controller import reassignment
from broker_runtime.controller.assignment import loads
from broker_runtime.controller.election import elect, prefer
from broker_runtime.controller.reassignment import ReassignmentStep
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.caller import Caller, logged_change, some_of
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState
from broker_runtime.zookeeper.znodes import PartitionState

_logger = logging.getLogger(__name__)

_Moves = Mapping[int, tuple[int, ...] | None]  # by partition; None: end the move


class MovementService:
    """Replicas and leaders, where this broker is the controller. Thread-safe; calls block for ZooKeeper, in bounds.

    Methods that change something raise `NotControllerError` where another broker is it, `ZooKeeperUnavailableError`.
    """

    def __init__(self, member: ClusterMember, registry: PartitionRegistry, *, now_ms: Callable[[], int]) -> None:
        self._member = member
        self._writer = member.movements
        self._registry = registry
        self._now_ms = now_ms

    def reassign_partitions(self, caller: Caller, request: ReassignPartitionsRequest) -> Empty:
        """Begins or ends moves. Raises as `reassignment.begin` and `cancel`, `UnknownTopicOrPartitionError`."""
        by_topic: dict[str, dict[int, tuple[int, ...] | None]] = {}
        for move in request.moves:
            by_topic.setdefault(move.topic, {})[move.partition] = move.replicas
        wanted = some_of(f"{each.topic}-{each.partition}:{_target(each.replicas)}" for each in request.moves)
        with logged_change(_logger, "reassign partitions", caller, to=wanted), self._member.changing() as cluster:
            self._begin(cluster, by_topic)
        return Empty()

    def list_reassignments(self, caller: Caller, request: ListReassignmentsRequest) -> ListReassignmentsResponse:
        """The partitions that move, and the brokers that are being emptied, as last read."""
        state = self._member.state
        return ListReassignmentsResponse(
            moves=tuple(
                ReassignmentInfo(topic=name, partition=number, target=record.target, original=record.original)
                for name, topic in sorted(state.topics.items())
                for number, record in sorted(topic.record.reassignments.items())
            ),
            draining=tuple(sorted(state.draining)),
        )

    def elect_leaders(self, caller: Caller, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elects leaders. Named partitions that cannot be led as requested get an error; others are not affected."""
        elected: list[tuple[str, int, int]] = []
        errors: dict[str, ErrorInfo] = {}
        named: dict[str, set[int]] | None = None
        if request.partitions is not None:
            named = {}
            for topic, number in request.partitions:
                named.setdefault(topic, set()).add(number)
        asked_for = (
            None if named is None else some_of(f"{topic}-{number}" for topic, number in request.partitions or ())
        )
        with (
            logged_change(_logger, "elect leaders", caller, election=request.election, of=asked_for) as failed,
            self._member.changing() as cluster,
        ):
            for name in sorted(cluster.topics) if named is None else sorted(named):
                wanted = None if named is None else named[name]
                try:
                    chosen, refused = self._elect(_existing(cluster, name), wanted, request.election == "unclean")
                except UnknownTopicOrPartitionError as error:
                    chosen, refused = {}, dict.fromkeys(wanted or (), error)
                elected += [(name, number, leader) for number, leader in sorted(chosen.items())]
                errors.update({str(TopicPartition(name, n)): ErrorInfo.of(error) for n, error in refused.items()})
            failed += errors.values()
        return ElectLeadersResponse(elected=tuple(elected), errors=errors)

    def decommission_broker(self, caller: Caller, request: DecommissionBrokerRequest) -> DecommissionBrokerResponse:
        """Begins to empty a broker. Raises `InvalidReplicaAssignmentError` where others cannot take its replicas."""
        broker_id = request.broker_id
        what = "end decommissioning" if request.cancel else "decommission broker"
        with logged_change(_logger, what, caller, broker=broker_id), self._member.changing() as cluster:
            holds = any(broker_id in replicas for t in cluster.topics.values() for replicas in t.record.assignment)
            if broker_id not in cluster.brokers and not holds:
                raise InvalidReplicaAssignmentError(
                    f"there is no broker {broker_id}: live brokers are {sorted(cluster.brokers)}"
                )
            if request.cancel:
                self._writer.set_draining(broker_id, False)
                self._member.wake()
                return DecommissionBrokerResponse(moves=0)
            takers = [candidate for candidate in cluster.placeable if candidate != broker_id]
            load = loads(takers, (topic.record.assignment for topic in cluster.topics.values()))
            suspects = self._member.electorate.suspects
            moves = reassignment.plan_decommission(broker_id, cluster.topics, load, suspects=suspects)
            self._writer.set_draining(broker_id, True, since_ms=self._now_ms())
            by_topic: dict[str, dict[int, tuple[int, ...] | None]] = {}
            for at, target in moves.items():
                by_topic.setdefault(at.topic, {})[at.partition] = target
            self._begin(cluster, by_topic)
            self._member.wake()  # which brokers are being emptied is read again
        return DecommissionBrokerResponse(moves=len(moves))

    def describe_replicas(self, caller: Caller, request: DescribeReplicasRequest) -> DescribeReplicasResponse:
        """How far the replicas of partitions led here have got."""
        return DescribeReplicasResponse(partitions=tuple(self._progress(key) for key in request.partitions))

    # --- private ----------------------------------------------------------------------------------------------

    def _begin(self, cluster: ClusterState, by_topic: Mapping[str, _Moves]) -> None:
        for name, moves in by_topic.items():
            self._plan(_existing(cluster, name), moves)
        for name, moves in by_topic.items():
            topic = _existing(cluster, name)
            self._writer.move(topic, partial(self._plan, moves=moves), refreshed=partial(self._refreshed, name))
            self._refreshed(name)

    def _plan(self, topic: TopicState, moves: _Moves) -> ReassignmentStep:
        brokers = self._member.electorate
        epoch = self._member.controller.require_claim().epoch
        ended = [number for number, replicas in moves.items() if replicas is None]
        begun = {number: replicas for number, replicas in moves.items() if replicas is not None}
        step = reassignment.cancel(topic, ended, brokers, epoch)
        return reassignment.begin(topic, begun, brokers, epoch, after=step)

    def _elect(
        self, topic: TopicState, wanted: set[int] | None, is_unclean: bool
    ) -> tuple[dict[int, int], dict[int, PylogError]]:
        states, refused = self._writer.elect(
            topic,
            partial(self._choose, wanted=wanted, is_unclean=is_unclean),
            refreshed=partial(self._refreshed, topic.name),
        )
        if states:
            self._refreshed(topic.name)
        return {n: state.leader for n, state in states.items() if state.leader is not None}, refused

    def _choose(
        self, topic: TopicState, wanted: set[int] | None, is_unclean: bool
    ) -> tuple[dict[int, PartitionState], dict[int, PylogError]]:
        states: dict[int, PartitionState] = {}
        refused: dict[int, PylogError] = {}
        brokers = self._member.electorate
        epoch = self._member.controller.require_claim().epoch
        count = len(topic.record.assignment)
        for number in range(count) if wanted is None else sorted(wanted):
            if number >= count:
                refused[number] = UnknownTopicOrPartitionError(
                    f"{topic.name} has no partition {number}, only 0 to {count - 1}"
                )
                continue
            present, replicas = topic.partitions[number], topic.record.assignment[number]
            state = None if present is None else present.state
            if is_unclean:
                is_led = state is not None and state.leader is not None and brokers.is_led(state)
                new = (
                    None
                    if is_led
                    else elect(state, replicas, brokers, epoch, is_unclean_allowed=True, is_loss_accepted=True)
                )
            else:
                new = prefer(state, replicas, brokers, epoch)
            if new is not None and new.leader is not None:
                states[number] = new
            elif wanted is not None:
                refused[number] = _refusal(TopicPartition(topic.name, number), state, replicas, is_unclean)
        return states, refused

    def _refreshed(self, name: str) -> TopicState:
        topic = self._member.refresh_topic(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}: it was deleted meanwhile")
        return topic

    def _progress(self, key: PartitionKey) -> PartitionProgress:
        try:
            partition = self._registry.find(key.topic, key.partition, key.topic_id)
            partition.require_leader()
            ends = partition.replica_ends()
            return PartitionProgress(
                topic=key.topic,
                partition=key.partition,
                log_start=partition.log_start,
                log_end=partition.log.log_end_offset,
                replicas=tuple(
                    ReplicaProgress(broker_id=each, replicated_end=end, is_in_sync=each in partition.in_sync)
                    for each, end in sorted(ends.items())
                ),
            )
        except PylogError as error:
            return PartitionProgress(topic=key.topic, partition=key.partition, error=ErrorInfo.of(error))


def _target(replicas: tuple[int, ...] | None) -> str:
    return "cancel" if replicas is None else "/".join(map(str, replicas))


def _existing(cluster: ClusterState, name: str) -> TopicState:
    topic = cluster.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"no topic {name!r}")
    return topic


def _refusal(
    at: TopicPartition, state: PartitionState | None, replicas: tuple[int, ...], is_unclean: bool
) -> PylogError:
    if is_unclean:
        if state is not None and state.leader is not None:
            return ElectionNotNeededError(
                f"{at} is led by broker {state.leader}; unclean is for those without a leader"
            )
        return PreferredLeaderNotAvailableError(f"{at} cannot be led: none of its replicas {list(replicas)} is live")
    if state is not None and state.leader == replicas[0]:
        return ElectionNotNeededError(f"{at} is led by its first replica, broker {replicas[0]}, already")
    in_sync = [] if state is None else sorted(state.isr)
    return PreferredLeaderNotAvailableError(
        f"{at} cannot be led by its first replica, broker {replicas[0]}: it must be live and in sync ({in_sync})"
    )
