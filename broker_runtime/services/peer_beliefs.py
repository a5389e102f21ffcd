"""Waits until the other brokers know of a change of a topic, so that the client that made it may turn to any of them.

Each broker learns of changes from ZooKeeper by itself, some milliseconds after they were written. A client that creates
a topic and then asks another broker for it must not get the answer that there is none.

Rule: a courtesy in bounded time, never a condition: a broker that does not answer is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import MetadataRequest, MetadataResponse, TopicInfo
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import CLOCK, Backoff, Clock, Deadline
from broker_runtime.following.peers import Peers
from broker_runtime.services.metadata import topic_info
from broker_runtime.zookeeper.cluster_state import ClusterState

LIMIT_S: Final = 2.0
_ANSWER_LIMIT_S: Final = 1.0
_LEAST_ANSWER_S: Final = 0.01
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.05

_logger = logging.getLogger(__name__)


class PeerBeliefs:
    """Compares what other brokers believe with ``state``, what this broker believes. Thread-safe."""

    def __init__(self, peers: Peers, state: Callable[[], ClusterState], *, clock: Clock = CLOCK) -> None:
        self._peers = peers
        self._state = state
        self._clock = clock

    def wait_until_heard(self, name: str, limit_s: float = LIMIT_S) -> None:
        """Returns when every other broker that answers believes of the topic what this one does, or after
        ``limit_s``. Raises nothing."""
        deadline = Deadline(limit_s, clock=self._clock)
        for broker_id, broker in sorted(self._state().brokers.items()):
            if broker_id == self._peers.broker_id:
                continue
            address = Address(broker.host, broker.port)
            backoff = Backoff(first_s=_FIRST_PAUSE_S, limit_s=_LONGEST_PAUSE_S)
            try:
                while not self._agrees(address, name, deadline):
                    if deadline.expired:
                        event(_logger, "leave peer that has not heard", topic=name, broker=broker_id, waited_s=limit_s)
                        return
                    deadline.sleep(backoff.next_s())
            except PylogError as error:
                event(_logger, "ask peer", topic=name, broker=broker_id, error=error)

    def _agrees(self, address: Address, name: str, deadline: Deadline) -> bool:
        left_s = max(_LEAST_ANSWER_S, deadline.remaining_s(_ANSWER_LIMIT_S))
        request = MetadataRequest(topics=(name,))
        answer = self._peers.call(address, "metadata", request, MetadataResponse, timeout_s=left_s)
        known = self._state().topics.get(name)
        theirs = next(iter(answer.topics), None)
        if known is None or theirs is None:
            return known is None and theirs is None
        return _has_all_of(theirs, topic_info(known))


def _has_all_of(theirs: TopicInfo, ours: TopicInfo) -> bool:
    """Theirs may be newer; leaders are not compared, as they change all the time."""
    return (
        theirs.topic_id == ours.topic_id
        and len(theirs.partitions) >= len(ours.partitions)
        and all(partition.leader_epoch >= 0 for partition in theirs.partitions)
        and len(theirs.schemas) >= len(ours.schemas)
        and theirs.config == ours.config
    )
