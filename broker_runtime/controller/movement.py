"""Writes moves of partitions, leaders chosen by name, and brokers that are being emptied, through the controller.

Rule: nothing is decided here that `reassignment` and `election` could decide. A topic's record and the states that
change with it are one transaction, so no reader ever sees a leader or an in-sync replica outside the assignment.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from broker_runtime.contract.events import event
from broker_runtime.controller.controller import Controller
from broker_runtime.controller.reassignment import ReassignmentStep
from broker_runtime.zookeeper.cluster_state import TopicState
from broker_runtime.zookeeper.session import Create, Delete, NodeExistsError, NoNodeError, Operation, Set
from broker_runtime.zookeeper.znodes import (
    DrainingBroker,
    PartitionState,
    announcing,
    draining_path,
    partition_state_path,
    to_json,
    topic_path,
)

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class MovementWriter:
    """Carries out what was decided about replicas and leaders. The caller lets one change through at a time."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def write(self, topic: TopicState, step: ReassignmentStep) -> None:
        """Writes a step. Raises as `Controller.write`; `BadVersionError` if the topic or a state changed meanwhile."""
        self._controller.write(_step_writes(topic, step))
        _log_step(topic, step)

    def move(
        self,
        topic: TopicState,
        plan: Callable[[TopicState], ReassignmentStep],
        *,
        refreshed: Callable[[], TopicState],
    ) -> None:
        """Writes the step that ``plan`` makes. Raises as `Controller.change_topic`."""

        def planned(present: TopicState) -> tuple[list[Operation], tuple[TopicState, ReassignmentStep]]:
            step = plan(present)
            return _step_writes(present, step), (present, step)

        _log_step(*self._controller.change_topic(topic, planned, refreshed=refreshed))

    def elect(
        self,
        topic: TopicState,
        plan: Callable[[TopicState], tuple[Mapping[int, PartitionState], _T]],
        *,
        refreshed: Callable[[], TopicState],
    ) -> tuple[Mapping[int, PartitionState], _T]:
        """Writes the states that ``plan`` makes, and returns its answer. Raises as `Controller.change_topic`."""

        def planned(present: TopicState) -> tuple[list[Operation], tuple[Mapping[int, PartitionState], _T]]:
            states, beside = plan(present)
            writes = _state_writes(present, states)
            return [*writes, announcing([present.name])] if writes else [], (states, beside)

        return self._controller.change_topic(topic, planned, refreshed=refreshed)

    def set_draining(self, broker_id: int, is_draining: bool, *, since_ms: int = 0) -> None:
        """From now on the broker gets no new replicas, or gets them again. Raises as `Controller.write`."""
        path = draining_path(broker_id)
        change: Operation = Create(path, to_json(DrainingBroker(since_ms=since_ms))) if is_draining else Delete(path)
        operations = [change, announcing(())]
        with contextlib.suppress(NodeExistsError, NoNodeError):  # already so
            self._controller.write(operations)


def _step_writes(topic: TopicState, step: ReassignmentStep) -> list[Operation]:
    record = Set(topic_path(topic.name), to_json(step.record), topic.version)
    return [record, *_state_writes(topic, step.states), announcing([topic.name])]


def _log_step(topic: TopicState, step: ReassignmentStep) -> None:
    for number, state in sorted(step.states.items()):
        event(
            _logger,
            "move partition",
            topic=topic.name,
            partition=number,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
        )
    event(
        _logger,
        "reassign partitions",
        topic=topic.name,
        version=topic.version,
        moving=sorted(step.record.reassignments),
    )


def _state_writes(topic: TopicState, states: Mapping[int, PartitionState]) -> list[Operation]:
    operations: list[Operation] = []
    for number, state in sorted(states.items()):
        present = topic.partitions[number]
        assert present is not None, f"{topic.name}-{number} has no state yet, so none is changed"
        operations.append(Set(partition_state_path(topic.name, number), to_json(state), present.version))
    return operations
