"""A broker that was not stopped in order leaves every in-sync set that has other members, before it registers again.

What was acknowledged while it was in sync may be missing from its disks, so it is in sync again, or leads,
only after it has caught up. Where it is the only member, nobody has more than it has: it stays.

Rule: states change by compare-and-set, each transaction checked against the broker's new epoch, so that only its
newest life does this. A leader's own change in between is read, and the broker leaves what comes of it.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.zookeeper.cluster_state import read_topics
from broker_runtime.zookeeper.session import BadVersionError, Check, NoNodeError, Set, ZooKeeperClient
from broker_runtime.zookeeper.znodes import TOPICS, PartitionState, announcing, partition_state_path, to_json

log = logging.getLogger(__name__)

STATES_PER_WRITE: Final = 200
_ROUNDS: Final = 20


def leave_in_sync_sets(client: ZooKeeperClient, broker_id: int, epoch: Check, *, session: int) -> None:
    """Returns when no partition with other in-sync replicas counts on this broker. ``epoch``: of its new epoch.

    Raises `BadVersionError` of ``epoch``'s path if a later life of the broker has begun, `ZooKeeperUnavailableError`.
    """
    for _ in range(_ROUNDS):
        counted_on = [
            (topic.name, number, present.version, _without(present.state, broker_id))
            for topic in read_topics(client, client.children(TOPICS))
            for number, present in enumerate(topic.partitions)
            if present is not None and broker_id in present.state.isr and len(present.state.isr) > 1
        ]
        if not counted_on:
            return
        for start in range(0, len(counted_on), STATES_PER_WRITE):
            part = counted_on[start : start + STATES_PER_WRITE]
            writes = [Set(partition_state_path(name, p), to_json(state), version) for name, p, version, state in part]
            try:
                client.transaction([epoch, *writes, announcing(name for name, *_ in part)], session=session)
            except (BadVersionError, NoNodeError) as error:
                if error.path == epoch.path:
                    raise
                continue  # it changed meanwhile, and is read again
            log.info("leave in-sync sets after an unclean stop broker=%d partitions=%d", broker_id, len(part))
    raise ZooKeeperUnavailableError(
        f"broker {broker_id} could not leave the in-sync sets it was in before its unclean stop: they keep changing"
    )


def _without(state: PartitionState, broker_id: int) -> PartitionState:
    in_sync = tuple(member for member in state.isr if member != broker_id)
    if state.leader != broker_id:
        return msgspec.structs.replace(state, isr=in_sync)
    return msgspec.structs.replace(
        state, leader=None, leader_epoch=state.leader_epoch + 1, isr=in_sync, leader_broker_epoch=-1
    )
