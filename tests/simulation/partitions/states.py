"""What is written about partitions in ZooKeeper, as an observer reads it from the writes themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker_runtime.contract.model import TopicPartition
from broker_runtime.zookeeper.session import Check, Create, Delete, Operation, Set
from broker_runtime.zookeeper.znodes import (
    BROKER_IDS,
    CONTROLLER_EPOCH,
    BrokerRegistration,
    PartitionState,
    TopicRecord,
    broker_epoch_path,
    broker_path,
    from_json,
    topic_path,
)
from tests.simulation.simulator.zookeeper import SimZooKeeper

_STATE = re.compile(r"/topics/([^/]+)/partitions/(\d+)/state\Z")
_TOPIC = re.compile(r"/topics/([^/]+)\Z")
_BROKER = re.compile(r"/brokers/ids/(\d+)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A partition's state before and after a write. ``key``: topic id and number. ``registered``: of each broker with
    a registration in its newest epoch. ``writer``: the actor that wrote, ``is_decision``: as the controller."""

    key: tuple[bytes, int]
    at: TopicPartition
    replicas: tuple[int, ...]
    before: PartitionState | None
    after: PartitionState
    registered: frozenset[int]
    writer: str
    is_decision: bool
    controller_epoch: int  # of the newest controller
    is_moving: bool = False


class States:
    """Follows all partitions' states, and reports each change when it is made."""

    def __init__(
        self,
        zookeeper: SimZooKeeper,
        on_change: Callable[[StateChange], None],
        on_registration: Callable[[int], None],
        on_claim: Callable[[], None] = lambda: None,
    ) -> None:
        self.topics: dict[str, TopicRecord] = {}
        self.topic_ids: dict[str, list[bytes]] = {}
        """Of each name, all ids it ever had."""
        self.partitions: dict[tuple[bytes, int], PartitionState] = {}
        self._zookeeper = zookeeper
        self._on_change = on_change
        self._on_registration = on_registration
        self._on_claim = on_claim
        zookeeper.on_write = self._written

    def state(self, at: TopicPartition) -> PartitionState | None:
        """A partition's present state."""
        record = self.topics.get(at.topic)
        return None if record is None else self.partitions.get((record.topic_id, at.partition))

    def _written(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Set) and operation.path == CONTROLLER_EPOCH:
                self._on_claim()
            if isinstance(operation, Delete):
                match = _TOPIC.match(operation.path)
                if match:
                    self.topics.pop(match[1], None)
                continue
            if not isinstance(operation, Create | Set):
                continue
            if match := _TOPIC.match(operation.path):
                record = from_json(operation.data, TopicRecord, topic_path(match[1]))
                self.topics[match[1]] = record
                ids = self.topic_ids.setdefault(match[1], [])
                if record.topic_id not in ids:
                    ids.append(record.topic_id)
        for operation in operations:
            if not isinstance(operation, Create | Set):
                continue
            if match := _STATE.match(operation.path):
                is_decision = any(isinstance(o, Check) and o.path == CONTROLLER_EPOCH for o in operations)
                self._state_written(match[1], int(match[2]), operation.data, is_decision)
            elif isinstance(operation, Create) and (match := _BROKER.match(operation.path)):
                self._on_registration(int(match[1]))

    def _state_written(self, topic: str, number: int, data: bytes, is_decision: bool) -> None:
        record = self.topics[topic]
        key = (record.topic_id, number)
        before = self.partitions.get(key)
        after = self.partitions[key] = from_json(data, PartitionState, topic)
        self._on_change(
            StateChange(
                key=key,
                at=TopicPartition(topic, number),
                replicas=record.assignment[number],
                before=before,
                after=after,
                registered=self._registered(),
                writer=self._zookeeper.scheduler.current,
                is_decision=is_decision,
                controller_epoch=self._controller_epoch(),
                is_moving=number in record.reassignments,
            )
        )

    def _controller_epoch(self) -> int:
        node = self._zookeeper.find(CONTROLLER_EPOCH)
        return 0 if node is None else int(node.data)

    def _registered(self) -> frozenset[int]:
        found: set[int] = set()
        for name in self._zookeeper.children(BROKER_IDS):
            node, epoch = (
                self._zookeeper.find(broker_path(int(name))),
                self._zookeeper.find(broker_epoch_path(int(name))),
            )
            assert node is not None
            assert epoch is not None
            if from_json(node.data, BrokerRegistration, name).epoch == epoch.version:
                found.add(int(name))
        return frozenset(found)
