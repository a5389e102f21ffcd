"""A broker whose log of a partition is damaged leaves that partition's in-sync set, so that others can make it whole.

    damage is found → it leaves the in-sync set, and gives up its leadership → another leads → hosting sets the log
    aside and begins an empty one → it follows, fetches everything, and joins when it has caught up

Rules: the only replica in sync stays, damaged as it is, unless another is known to have all that is committed
(`PartitionState.eligible`). One whose log has failed does not count, even if its broker is away: the log may have less
when it is opened again. States change by compare-and-set, checked against the broker's own epoch. A log that was in use
has reported to its leader how far it goes, and such a fetch may still be under way, in the buffers of a leader that
stands still. So the leader epoch rises with the state, and that fetch counts nowhere. Only then is the log released. (A
log that was found damaged by its first use has reported nothing in this registration.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.replication import Partition
from broker_runtime.zookeeper import guarded
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import Set, ZNode, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    DiskTroubles,
    PartitionState,
    Record,
    announcing,
    broker_unwritable_path,
    from_json,
    partition_state_path,
    to_json,
)

_R = TypeVar("_R", bound=Record)

_logger = logging.getLogger(__name__)


class DamagedReplicas:
    """The damaged replicas of one broker. Not thread-safe: used by the cluster member."""

    def __init__(self, client: ZooKeeperClient, release: Callable[[Partition, int], None]) -> None:
        """``release(partition, version)``: its log may be set aside once the state has that version or a newer one, and
        says that others hold the partition without this broker."""
        self._client = client
        self._release = release

    def leave(self, damaged: Sequence[Partition], membership: Membership) -> bool:
        """Leaves the in-sync sets of those ``damaged`` that others can lead; returns whether nothing is left to do
        until the states change. Raises `ZooKeeperUnavailableError`, or `GuardFailedError` if a later life of the broker
        has begun; some sets may have been left even so."""
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
        nodes = self._client.find_all(paths, are_small=True)
        states = [_decoded(node, PartitionState, path) for node, path in zip(nodes, paths, strict=True)]
        disks = self._disks({each for state in states if state is not None for each in (*state.isr, *state.eligible)})
        writes: list[tuple[Partition, Set]] = []
        for partition, path, node, present in zip(damaged, paths, nodes, states, strict=True):
            if node is None or present is None:
                continue
            failed = {each for each, of in disks.items() if of.has_failed(partition.topic, partition.partition)}
            state = _without(present, own_id, failed, was_used=partition.log.is_loaded)
            if state is not None:
                writes.append((partition, Set(path, to_json(state), node.version)))
        return writes

    def _disks(self, broker_ids: Collection[int]) -> Mapping[int, DiskTroubles]:
        """What these brokers last reported; those that are away, before they went."""
        paths = {broker_id: broker_unwritable_path(broker_id) for broker_id in sorted(broker_ids)}
        found = zip(paths.items(), self._client.find_all(list(paths.values())), strict=True)
        reports = {broker_id: _decoded(node, DiskTroubles, path) for (broker_id, path), node in found}
        return {broker_id: report for broker_id, report in reports.items() if report is not None}


def _decoded(node: ZNode | None, kind: type[_R], path: str) -> _R | None:
    if node is None:
        return None
    try:
        return from_json(node.data, kind, path)
    except CorruptRecordError as error:
        event(_logger, "read partition state", level=logging.ERROR, error=error)
        return None


def _without(present: PartitionState, own_id: int, failed: Collection[int], *, was_used: bool) -> PartitionState | None:
    """The state without this broker; None if nothing has to be written: no other has all that is committed, or the
    broker left earlier, with a log that has reported nothing since."""
    left = present.without_damaged(own_id, failed=failed)
    if left is None or not (was_used or own_id in (*present.isr, *present.eligible)):
        return None
    return msgspec.structs.replace(left, leader_epoch=present.leader_epoch + (present.leader == own_id or was_used))
