"""The offsets of all groups that one broker speaks for, read from ZooKeeper at once.

Rule: each group has one broker that speaks for it, whether or not anybody is a member: the one that has its claim, and
without one the controller. What is read may be a moment old; nothing is decided by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.events import event
from broker_runtime.groups.claims import Claims
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.zookeeper.cluster_state import ClusterState
from broker_runtime.zookeeper.session import NoNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    CONSUMERS,
    GroupOffsets,
    from_json,
    group_claim_path,
    group_offsets_path,
)

_logger = logging.getLogger(__name__)

Positions = Mapping[str, Mapping[str, GroupOffsets]]
"""By group and topic; the topic may be another of the same name by now."""


class GroupPositions:
    """See the module. Thread-safe."""

    def __init__(
        self,
        client: ZooKeeperClient,
        cluster: Callable[[], ClusterState],
        *,
        broker_id: int,
        claims: Claims,
        store: OffsetStore,
    ) -> None:
        """``cluster``: as this broker knows it."""
        self._client = client
        self._cluster = cluster
        self._broker_id = broker_id
        self._claims = claims
        self._store = store

    def read(self) -> Positions:
        """What the groups that this broker speaks for have committed. Blocks on ZooKeeper, for two requests a group.
        Raises `ZooKeeperUnavailableError`."""
        try:
            names = self._client.children(CONSUMERS)
        except NoNodeError:
            return {}
        controller = self._cluster().controller
        is_controller = controller is not None and controller.broker_id == self._broker_id
        claims = self._client.find_all([group_claim_path(name) for name in names], are_small=True)
        owners = {name: self._claims.owner_in(name, node) for name, node in zip(names, claims, strict=True)}
        own = [name for name, owner in owners.items() if owner == self._broker_id or (owner is None and is_controller)]
        at = [(name, topic) for name in own for topic in self._store.topics_of(name)]
        paths = [group_offsets_path(name, topic) for name, topic in at]
        found: dict[str, dict[str, GroupOffsets]] = {name: {} for name in own}
        for (name, topic), path, node in zip(at, paths, self._client.find_all(paths), strict=True):
            try:
                if node is not None:
                    found[name][topic] = from_json(node.data, GroupOffsets, path)
            except CorruptRecordError as error:  # those of its other topics are sound
                event(_logger, "read offsets", level=logging.ERROR, group=name, topic=topic, error=error)
        return found
