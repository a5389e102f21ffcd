"""A group member over a cluster in memory, and a log of its callbacks."""

from __future__ import annotations

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Deadline
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic

A, B, C = (TopicPartition("t", number) for number in range(3))


class CallbackLog:
    """The callbacks that were called, in order, each with the number of commits so far."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.seen: list[tuple[str, list[TopicPartition]]] = []
        self.commits_seen: list[int] = []

    def subscribe(self, *names: str) -> None:
        self._parts.subscribe(
            *names,
            on_assign=lambda at: self._note("assign", at),
            on_revoke=lambda at: self._note("revoke", at),
            on_lost=lambda at: self._note("lost", at),
        )

    def _note(self, what: str, partitions: list[TopicPartition]) -> None:
        self.seen.append((what, partitions))
        self.commits_seen.append(len(self._parts.cluster.commits))


def made(
    *, partitions: int = 2, share: set[TopicPartition] | None = None, **settings: object
) -> tuple[Parts, CallbackLog]:
    parts = Parts(
        MemoryCluster(make_topic("t", partitions=partitions)),
        **{"group_id": "g", "auto_offset_reset": "earliest", **settings},
    )
    parts.cluster.group.share = share
    callbacks = CallbackLog(parts)
    callbacks.subscribe("t")
    parts.cluster.commits.clear()
    return parts, callbacks


def poll(parts: Parts) -> list[bytes]:
    parts.committer.finish_all()
    return [record.value for record in parts.delivery.poll_records(Deadline(0.0), 500)]
