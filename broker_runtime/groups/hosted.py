"""The groups that one broker coordinates: claimed, restored, kept in memory while the claim stands.

    request for a group ──▶ claim it ──▶ read its members ──▶ restore: every lease may last a session and `GRACE_MS`
    every 2 s           ──▶ verify all claims at once; one that does not stand is dropped

Rules: nothing is answered for a group unless its claim was seen to stand within `STANDS_MS`. So a successor that waits
`GRACE_MS` longer than a session gives away nothing that a deposed coordinator still lets a member keep. When a
registration ends, all claims made in it end. A group without members that nobody asks for is forgotten, and claimed
again at the next request. No group's lock is held during a call to ZooKeeper.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    CorruptRecordError,
    NotCoordinatorError,
)
from broker_runtime.contract.events import event
from broker_runtime.groups.claims import Claims, GroupsClaim
from broker_runtime.groups.group import Group, Limits
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import NoNodeError, ZooKeeperClient, require_connection
from broker_runtime.zookeeper.znodes import (
    GroupMembers,
    GroupOffsets,
    from_json,
    group_members_path,
    group_offsets_parent,
    group_offsets_path,
)

_logger = logging.getLogger(__name__)

STANDS_MS: Final = 5_000
GRACE_MS: Final = 5_000
"""At least `STANDS_MS`."""
IDLE_MS: Final = 300_000
MAX_GROUPS: Final = 10_000

_LOADING_LIMIT_S: Final = 5.0
_LOADING_LOCKS: Final = 64


class HostedGroup:
    """One group in memory. ``lock`` guards the group and the flags. The version fields belong to the single writer: the
    coordinator's loop, or `GroupRemoval` while ``is_being_removed``."""

    __slots__ = (
        "claim",
        "claimed_ms",
        "commits_under_way",
        "group",
        "group_id",
        "is_being_removed",
        "is_dropped",
        "lock",
        "members_version",
        "planned_with",
        "used_ms",
        "verified_ms",
    )

    def __init__(self, claim: GroupsClaim, group: Group, members_version: int | None, claimed_ms: int) -> None:
        """``members_version``: of the members' znode; None: there is none. ``claimed_ms``: when the claim was sent."""
        self.lock = threading.Lock()
        self.claim = claim
        self.group_id = claim.group_id
        self.group = group
        self.members_version = members_version
        self.planned_with: object = None  # the topics of its last plan
        self.claimed_ms = self.verified_ms = self.used_ms = claimed_ms
        self.commits_under_way = 0
        self.is_being_removed = False
        self.is_dropped = False  # for good

    def require_standing(self, now_ms: int) -> None:
        """Called for every answer, with ``lock`` held. Raises `NotCoordinatorError`, `CoordinatorNotAvailableError`."""
        if self.is_dropped:
            raise NotCoordinatorError(f"this broker no longer coordinates group {self.group_id!r}")
        if self.is_being_removed:
            raise CoordinatorNotAvailableError(f"group {self.group_id!r} is being removed. Try again")
        if now_ms - self.verified_ms > STANDS_MS:
            raise CoordinatorNotAvailableError(
                f"the broker does not know whether it still coordinates group {self.group_id!r}: ZooKeeper is away"
            )
        self.used_ms = now_ms


class HostedGroups:
    """See the module. Thread-safe."""

    def __init__(
        self,
        client: ZooKeeperClient,
        claims: Claims,
        limits: Limits,
        *,
        membership: Callable[[], Membership | None],
        steady_ms: Callable[[], int],
        max_groups: int = MAX_GROUPS,
    ) -> None:
        """``membership``: the broker's present registration. ``max_groups``: how many are kept in memory."""
        self._client = client
        self._claims = claims
        self._limits = limits
        self._membership = membership
        self._steady_ms = steady_ms
        self._max_groups = max_groups
        self._lock = threading.Lock()  # guards what follows; taken inside a group's lock, never around it
        self._groups: dict[str, HostedGroup] = {}
        self._is_closed = False
        self._loading = [threading.Lock() for _ in range(_LOADING_LOCKS)]

    def all(self) -> list[HostedGroup]:
        """Those in memory that were claimed in the present registration."""
        with self._lock:
            groups = list(self._groups.values())
        membership = self._membership()
        for hosted in groups:
            if hosted.claim.membership != membership:
                self.drop(hosted)
        return [hosted for hosted in groups if hosted.claim.membership == membership]

    def find(self, group_id: str) -> HostedGroup | None:
        """The group, if it is in memory."""
        with self._lock:
            hosted = self._groups.get(group_id)
        if hosted is not None and hosted.claim.membership != self._membership():
            self.drop(hosted)
            return None
        return hosted

    def load(self, group_id: str, *, creates: bool) -> HostedGroup | None:
        """The group; claimed and restored if it is not in memory. ``creates``: a group unknown to ZooKeeper is created;
        without it the answer is None.

        Raises `NotCoordinatorError` if another broker has it, or this one is stopping; `CoordinatorNotAvailableError`
        if it is not available now; `CorruptRecordError` if its members cannot be read; `ZooKeeperUnavailableError`.
        """
        hosted = self.find(group_id)
        if hosted is not None:
            return hosted
        require_connection(self._client, "groups")
        loading = self._loading[hash(group_id) % _LOADING_LOCKS]
        if not loading.acquire(timeout=_LOADING_LIMIT_S):
            raise CoordinatorNotAvailableError(f"group {group_id!r} is being loaded. Try again")
        try:
            return self.find(group_id) or self._load(group_id, creates)
        finally:
            loading.release()

    def verify(self) -> None:
        """Checks that the claims still stand; drops the groups of those that do not. Raises
        `ZooKeeperUnavailableError`."""
        sent_ms = self._steady_ms()
        groups = self.all()
        if not groups:
            return
        standing = set(self._claims.verify([hosted.claim for hosted in groups]))
        for hosted in groups:
            if hosted.claim in standing:
                hosted.verified_ms = sent_ms
            else:
                self.drop(hosted)

    def drop(self, hosted: HostedGroup) -> None:
        """Forgets the group: from now on this broker is not its coordinator, unless it claims it again."""
        with hosted.lock:
            if hosted.is_dropped:
                return
            hosted.is_dropped = True
        with self._lock:
            if self._groups.get(hosted.group_id) is hosted:
                del self._groups[hosted.group_id]
        event(_logger, "drop group", group=hosted.group_id, epoch=hosted.claim.version)

    def forget_idle(self, idle_ms: int = IDLE_MS) -> None:
        """Forgets groups without members that nobody has asked for lately; their claims stay."""
        now_ms = self._steady_ms()
        for hosted in self.all():
            with hosted.lock:
                is_idle = (
                    not hosted.group.size
                    and not hosted.commits_under_way
                    and not hosted.is_being_removed
                    and now_ms - hosted.used_ms >= idle_ms
                )
            if is_idle:
                self.drop(hosted)

    def give_up(self) -> None:
        """Drops all groups for good and releases their claims, so that others need not wait. Raises
        `ZooKeeperUnavailableError`; the claims then end with the registration."""
        with self._lock:
            self._is_closed = True
        groups = self.all()
        for hosted in groups:
            self.drop(hosted)
        self._claims.release([hosted.claim for hosted in groups])

    # --- private ----------------------------------------------------------------------------------------------

    def _load(self, group_id: str, creates: bool) -> HostedGroup | None:
        self._require_room()
        sent_ms = self._steady_ms()
        claim = self._claims.claim(group_id, creates=creates)
        if claim is None:
            return None
        path = group_members_path(group_id)
        node = self._client.find(path)
        if node is None:
            group = Group(group_id, self._limits)
            group.epoch = self._last_epoch(group_id)
        else:
            record = from_json(node.data, GroupMembers, path)
            group = Group.restore(group_id, self._limits, record, self._steady_ms(), GRACE_MS)
            event(_logger, "restore group", group=group_id, epoch=record.epoch, members=len(record.members))
        hosted = HostedGroup(claim, group, None if node is None else node.version, sent_ms)
        with self._lock:
            if not self._is_closed:
                self._groups[group_id] = hosted
                return hosted
        self._claims.release([claim])
        raise NotCoordinatorError("the broker is stopping")

    def _last_epoch(self, group_id: str) -> int:
        """The last epoch of a group without a members' znode. Epochs must never fall, or the group's next commits would
        seem to be old. Such a group has members' offsets only if somebody removed the znode by hand. Damaged offsets
        have no epoch: commits to their topic are refused until the group is deleted."""
        try:
            topics = self._client.children(group_offsets_parent(group_id))
        except NoNodeError:
            return 0
        paths = [group_offsets_path(group_id, topic) for topic in topics]
        epoch = 0
        for path, node in zip(paths, self._client.find_all(paths), strict=True):
            try:
                stored = {} if node is None else from_json(node.data, GroupOffsets, path).offsets
            except CorruptRecordError as error:
                event(_logger, "read offsets", level=logging.ERROR, group=group_id, error=error)
                continue
            epoch = max(epoch, *(offset.member_epoch for offset in stored.values()), 0)
        return epoch

    def _require_room(self) -> None:
        with self._lock:
            if self._is_closed:
                raise NotCoordinatorError("the broker is stopping")
            is_full = len(self._groups) >= self._max_groups
        if not is_full:
            return
        self.forget_idle(0)
        with self._lock:
            if len(self._groups) >= self._max_groups:
                raise CoordinatorNotAvailableError(f"the broker coordinates {self._max_groups} groups already")
