"""A broker whose log of a partition is damaged leaves that partition's in-sync set, so that others can make it whole.

    damage is found → it leaves the in-sync set, and what it leads is given up → another leads → hosting sets the log
    aside and begins another, empty → it follows, fetches everything, and joins when it has caught up

Rules: the only replica in sync stays, damaged as it is, where no other is known to have all that is committed
(`PartitionState.eligible`). States change by compare-and-set, checked against the broker's own epoch. A log that was in
use told its leader how far it goes, and such a fetch may be under way still, in the buffers of a leader that stands
still: the leader epoch rises with the state, so that the fetch counts nowhere. Only then is the log released. (One that
was found damaged by its first use never told anything in this registration.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.replication import Partition
from broker_runtime.zookeeper import guarded
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import Set, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    PartitionState,
    announcing,
    from_json,
    partition_state_path,
    to_json,
)

_logger = logging.getLogger(__name__)


class DamagedReplicas:
    """Those of one broker. Not thread-safe: the cluster member's."""

    def __init__(self, client: ZooKeeperClient, release: Callable[[Partition, int], None]) -> None:
        """``release(partition, version)``: its log may be set aside as soon as the state is of that version or newer,
        and says that others hold the partition without this broker."""
        self._client = client
        self._release = release

    def leave(self, damaged: Sequence[Partition], membership: Membership) -> bool:
        """Leaves the in-sync sets of ``damaged`` that others can lead; returns whether nothing is left to be done until
        the states change. Raises `ZooKeeperUnavailableError`, or `GuardFailedError` if a later life of the broker has
        begun; then some were left, perhaps."""
        writes = self._writes(damaged, membership.broker_id)
        is_done = True

        def send(some: Sequence[tuple[Partition, Set]]) -> list[int]:
            announcement = announcing(partition.topic for partition, _ in some)
            operations = [*(write for _, write in some), announcement]
            return guarded.write(self._client, operations, guard=membership.guard)[:-1]

        def leave_out(some: Sequence[tuple[Partition, Set]], refusal: ZNodeError) -> None:
            nonlocal is_done
            event(_logger, "leave in-sync sets later", znode=refusal.path, partitions=len(some))
            is_done = False

        for part in guarded.in_parts(writes):
            for (partition, _), version in guarded.write_most(
                part, send, concerns=lambda each, path: each[1].path == path, leave_out=leave_out
            ):
                event(
                    _logger,
                    "leave in-sync set of a damaged log",
                    level=logging.WARNING,
                    topic=partition.topic,
                    partition=partition.partition,
                    version=version,
                )
                self._release(partition, version)
        return is_done

    def _writes(self, damaged: Sequence[Partition], own_id: int) -> list[tuple[Partition, Set]]:
        paths = [partition_state_path(partition.topic, partition.partition) for partition in damaged]
        writes: list[tuple[Partition, Set]] = []
        for partition, path, node in zip(damaged, paths, self._client.find_all(paths, are_small=True), strict=True):
            present = None if node is None else _understood(node.data, path)
            state = None if present is None else _without(present, own_id, was_used=partition.log.is_loaded)
            if node is not None and state is not None:
                writes.append((partition, Set(path, to_json(state), node.version)))
        return writes


def _understood(data: bytes, path: str) -> PartitionState | None:
    try:
        return from_json(data, PartitionState, path)
    except CorruptRecordError as error:
        event(_logger, "read partition state", level=logging.ERROR, error=error)
        return None


def _without(present: PartitionState, own_id: int, *, was_used: bool) -> PartitionState | None:
    """The state without this broker; None where nothing is to be written: nobody else has all that is committed, or the
    broker left before, with a log that has told nothing since."""
    left = present.without_damaged(own_id)
    if left is None or not (was_used or own_id in (*present.isr, *present.eligible)):
        return None
    return msgspec.structs.replace(left, leader_epoch=present.leader_epoch + (present.leader == own_id or was_used))
