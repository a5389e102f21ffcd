"""Who coordinates a group: a broker claims it in ZooKeeper, and the version of the claim's znode is its epoch.

    no claim, or one whose owner is gone ──claim──▶ ours, at a higher version ──release──▶ nobody's, at a higher version

Rules: a claim belongs to one registration (broker id and epoch) and is changed by compare-and-set, in the session of
that registration. Every write about a group checks the claim's version in the same transaction (`Claim.guard`), so what
a deposed coordinator has under way is refused. An owner is gone when it is no longer registered in that epoch, or when
its port refuses connections: the process is dead, though its session may last a while. If that is wrong now and then,
it costs a change of coordinators and nothing else. `find_coordinator` sends all clients to the same broker; any broker
that is asked may claim.

Reads of ZooKeeper may be stale. A read that must be recent comes after a write in the same session; a transaction of
checks alone counts as one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    CorruptRecordError,
    NotCoordinatorError,
)
from broker_runtime.contract.events import event
from broker_runtime.zookeeper.guarded import Claim, Guard, GuardFailedError, barrier, version_over
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import (
    Check,
    Create,
    Operation,
    ZNode,
    ZNodeError,
    ZooKeeperClient,
    require_connection,
)
from broker_runtime.zookeeper.znodes import (
    BrokerRegistration,
    GroupClaim,
    broker_epoch_path,
    broker_path,
    from_json,
    group_claim_path,
    group_path,
    to_json,
)

_logger = logging.getLogger(__name__)

_PROBE_IS_GOOD_MS: Final = 500
_PATIENCE: Final = 10
_NOBODY: Final = GroupClaim(broker_id=-1, broker_epoch=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsClaim(Claim):
    """A group that this broker claimed, and the registration in which it did. The claim's version is its epoch."""

    group_id: str
    membership: Membership


class Claims:
    """One broker's claims. Thread-safe, remembers no groups. Calls block on ZooKeeper and on probes, in bounds, and
    raise `ZooKeeperUnavailableError` where nothing else is said.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        *,
        membership: Callable[[], Membership | None],
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        suspects: Callable[[], Collection[int]] = frozenset,
        refuses: Callable[[str, int], bool] = lambda host, port: False,
        steady_ms: Callable[[], int],
    ) -> None:
        """``membership``: the broker's present registration. ``brokers``: those registered, as last read. ``suspects``:
        those that are probably dead. ``refuses``: whether a port refuses; a time-out is no refusal."""
        self._client = client
        self._membership = membership
        self._brokers = brokers
        self._suspects = suspects
        self._refuses = refuses
        self._steady_ms = steady_ms
        self._probes: dict[tuple[str, int], tuple[int, bool]] = {}  # until when it is good, and whether it refused

    # --- who it is --------------------------------------------------------------------------------------------

    def find_coordinator(self, group_id: str) -> int:
        """The broker that claimed the group, or the one that should. Raises `CoordinatorNotAvailableError` if no broker
        can; `ZooKeeperUnavailableError` at once while ZooKeeper is away: another broker may reach it."""
        require_connection(self._client, "groups")
        node = self._client.find(group_claim_path(group_id))
        present = _NOBODY if node is None else _decoded(group_id, node)
        owner = self._owner(present)
        if owner is not None and not owner.is_stopping and not self._is_dead(present.broker_id, owner):
            return present.broker_id
        return self.candidate(group_id)

    def candidate(self, group_id: str) -> int:
        """The broker that should claim a group that nobody has. All brokers answer the same; groups are spread evenly.

        By rendezvous hashing (Thaler and Ravishankar, 1998). Raises `CoordinatorNotAvailableError`.
        """
        membership, suspects = self._membership(), self._suspects()
        brokers = {
            broker_id: broker
            for broker_id, broker in self._brokers().items()
            if not broker.is_stopping and broker_id not in suspects
        }
        for broker_id in sorted(brokers, key=lambda broker_id: _weight(group_id, broker_id), reverse=True):
            is_self = membership is not None and membership.broker_id == broker_id
            if is_self or not self._is_dead(broker_id, brokers[broker_id]):
                return broker_id
        raise CoordinatorNotAvailableError(f"no broker can coordinate group {group_id!r} at present")

    def owner_in(self, group_id: str, node: ZNode | None) -> int | None:
        """The owner of a claim as it was read, if it is registered in that epoch; None: nobody. Makes no call."""
        present = _NOBODY if node is None else _decoded(group_id, node)
        broker = self._brokers().get(present.broker_id)
        return None if broker is None or broker.epoch != present.broker_epoch else present.broker_id

    # --- claiming ---------------------------------------------------------------------------------------------

    def claim(self, group_id: str, *, creates: bool = True) -> GroupsClaim | None:
        """Claims the group, again if this broker has it already: what was under way under the older claim is refused.

        ``creates``: a group of which ZooKeeper has nothing is claimed, too; without it the answer is None. When it
        returns, reads in this session see all that earlier coordinators wrote.

        Raises `NotCoordinatorError` if another broker has it, `CoordinatorNotAvailableError` if claims of it keep
        changing, or while this broker is not registered.
        """
        membership = self._membership()
        if membership is None:
            raise CoordinatorNotAvailableError("the broker is not registered at present")
        path, epoch = group_claim_path(group_id), _epoch_check(membership)
        holder = to_json(GroupClaim(broker_id=membership.broker_id, broker_epoch=membership.epoch))

        def plan() -> tuple[GroupsClaim, list[Operation]] | None:
            parent, node = self._client.find_all([group_path(group_id), path])
            if parent is None and not creates:
                barrier(self._client, session=membership.session)
                parent, node = self._client.find_all([group_path(group_id), path])
                if parent is None:
                    return None
            if node is not None:
                self._require_free(group_id, node, membership)
            beside: list[Operation] = [epoch] if parent is not None else [epoch, Create(group_path(group_id))]
            claim = GroupsClaim(
                path=path,
                holder=holder,
                version=version_over(node),
                session=membership.session,
                group_id=group_id,
                membership=membership,
            )
            return claim, beside

        def on_conflict(refusal: ZNodeError) -> None:
            if refusal.path == epoch.path:
                raise CoordinatorNotAvailableError("the broker registered again. Try again") from None

        claim = Claim.acquire(
            self._client,
            plan,
            session=membership.session,
            what=f"the claim of group {group_id!r}",
            on_conflict=on_conflict,
            exhausted=CoordinatorNotAvailableError,
        )
        if claim is not None:
            event(_logger, "claim group", group=group_id, epoch=claim.version, broker=membership.broker_id)
        return claim

    def verify(self, claims: Sequence[GroupsClaim]) -> list[GroupsClaim]:
        """Those that still stand, taking into account all that was claimed before the call. Costs one write, which
        changes nothing, and one read."""
        membership = self._membership()
        own = [claim for claim in claims if claim.membership == membership]
        if membership is None or not own:
            return []
        try:
            return Claim.verify(self._client, own, guard=Guard(_epoch_check(membership), membership.session))
        except GuardFailedError:
            return []  # registered again

    def release(self, claims: Sequence[GroupsClaim]) -> None:
        """Gives claims up, so that others need not wait; those that no longer stand are left alone."""
        for claim in Claim.release(self._client, claims, to_json(_NOBODY)):
            event(_logger, "leave claim alone", group=claim.group_id, epoch=claim.version)

    # --- private ----------------------------------------------------------------------------------------------

    def _owner(self, present: GroupClaim) -> BrokerRegistration | None:
        """The owner's registration, if it is the one in which it made the claim. Read from ZooKeeper, so that it is as
        recent as the claim; what this broker knows of the cluster may be older."""
        if present.broker_id < 0:
            return None
        path = broker_path(present.broker_id)
        node = self._client.find(path)
        broker = None if node is None else from_json(node.data, BrokerRegistration, path)
        return None if broker is None or broker.epoch != present.broker_epoch else broker

    def _is_dead(self, broker_id: int, broker: BrokerRegistration) -> bool:
        membership = self._membership()
        if membership is not None and membership.broker_id == broker_id:
            return False
        at, now_ms = (broker.host, broker.port), self._steady_ms()
        good_until_ms, refused = self._probes.get(at, (now_ms, False))
        if now_ms >= good_until_ms:
            refused = self._refuses(*at)
            ended_ms = self._steady_ms()
            # A silent host costs a second: it is not probed for each of many groups.
            self._probes[at] = ended_ms + _PROBE_IS_GOOD_MS + _PATIENCE * (ended_ms - now_ms), refused
        return refused

    def _require_free(self, group_id: str, node: ZNode, membership: Membership) -> None:
        present = _decoded(group_id, node)
        if present == GroupClaim(broker_id=membership.broker_id, broker_epoch=membership.epoch):
            return
        owner = self._owner(present)
        if owner is not None and not self._is_dead(present.broker_id, owner):
            raise NotCoordinatorError(f"broker {present.broker_id} coordinates group {group_id!r}")


def _epoch_check(membership: Membership) -> Check:
    return Check(broker_epoch_path(membership.broker_id), membership.epoch)


def _decoded(group_id: str, node: ZNode) -> GroupClaim:
    """A damaged claim is nobody's: the next one replaces it."""
    try:
        return from_json(node.data, GroupClaim, group_claim_path(group_id))
    except CorruptRecordError as error:
        event(_logger, "read claim", level=logging.ERROR, error=error)
        return _NOBODY


def _weight(group_id: str, broker_id: int) -> bytes:
    return hashlib.blake2b(f"{broker_id}/{group_id}".encode(), digest_size=8).digest()
