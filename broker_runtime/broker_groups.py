"""The objects with which a broker coordinates groups, created and connected here, and the steps of its two loops.

Rule: as in `broker_services`, nothing is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import BrokerSettings
from broker_runtime.contract.waiting import Worker
from broker_runtime.groups.claims import Claims
from broker_runtime.groups.coordinator import GroupCoordinator
from broker_runtime.groups.group import Limits
from broker_runtime.groups.hosted import HostedGroups
from broker_runtime.groups.offsets import REFRESH_MS, OffsetStore
from broker_runtime.groups.positions import GroupPositions
from broker_runtime.groups.removal import GroupRemoval
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.services.groups import GroupService
from broker_runtime.zookeeper.session import ZooKeeperClient

_logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.03  # members that join at the same time are planned for together
_REMOVAL_S: Final = 60.0


class BrokerGroups:
    """The groups of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        client: ZooKeeperClient,
        member: ClusterMember,
        refuses: Callable[[str, int], bool],
        steady_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        believed_ms: Callable[[], int],
    ) -> None:
        """``refuses``: whether a port refuses. ``steady_ms``: a clock that never jumps. ``believed_ms``: the time of
        `BelievedClock`."""
        retention_ms = settings.offsets_retention_minutes * 60_000
        claims = Claims(
            client,
            membership=lambda: member.membership,
            brokers=lambda: member.state.brokers,
            suspects=lambda: member.electorate.suspects,
            refuses=refuses,
            steady_ms=steady_ms,
        )
        limits = Limits(
            min_session_ms=settings.group_min_session_timeout_ms,
            max_session_ms=settings.group_max_session_timeout_ms,
            max_members=settings.group_max_size,
        )
        store = OffsetStore(client, refresh_ms=min(REFRESH_MS, retention_ms // 4))
        self._hosted = HostedGroups(client, claims, limits, membership=lambda: member.membership, steady_ms=steady_ms)
        self.positions = GroupPositions(
            client, lambda: member.state, broker_id=settings.broker_id, claims=claims, store=store
        )
        self._coordinator = GroupCoordinator(
            client,
            self._hosted,
            lambda: member.state,
            broker_id=settings.broker_id,
            steady_ms=steady_ms,
            wall_ms=wall_ms,
        )
        self._removal = GroupRemoval(
            client,
            claims,
            self._hosted,
            store,
            broker_id=settings.broker_id,
            retention_ms=retention_ms,
            steady_ms=steady_ms,
            believed_ms=believed_ms,
        )
        self.service = GroupService(
            client,
            lambda: member.state,
            claims=claims,
            coordinator=self._coordinator,
            removal=self._removal,
            store=store,
            wall_ms=wall_ms,
        )
        self.wake = self._coordinator.wake

    def step(self) -> float:
        """One round of the coordinator's loop. Blocks until there is something to do, or until `wake`; returns the
        pause after it in seconds."""
        self._coordinator.wait()
        self._coordinator.step()
        return _PAUSE_S

    def step_removal(self, worker: Worker) -> None:
        """Rests on the thread of ``worker`` for a minute, then removes what is old."""
        if not worker.rest(_REMOVAL_S):
            self._removal.step()

    def give_up(self) -> None:
        """Gives the groups up for good while the broker is still registered: others take them over. Idempotent."""
        try:
            self._hosted.give_up()
        except PylogError as error:
            # The end of the registration does the same a little later.
            event(_logger, "give groups up", level=logging.WARNING, error=error)
