"""Removes groups without members, and their offsets, from ZooKeeper: on request, or because they are old.

Each broker looks after the groups it has claimed, and after those without a coordinator for which it is the candidate:
only the coordinator knows whether somebody joins or commits meanwhile, and so the work is spread. A group whose
coordinator died unnoticed is taken over here at the latest, and its members' sessions end.

Rules: nothing is removed except under the claim, and nothing while there are members or commits. Offsets are removed
when there was neither a commit nor a member for ``offsets.retention.minutes``. The claim is removed last, and only when
it is so old that nothing of an earlier coordinator can be under way: the next claim of that group counts from 0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    NonEmptyGroupError,
    NotCoordinatorError,
    PylogError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import check_group_id
from broker_runtime.groups.claims import Claims
from broker_runtime.groups.hosted import HostedGroup, HostedGroups
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.zookeeper.guarded import barrier, in_parts, write
from broker_runtime.zookeeper.session import Delete, NotEmptyError, ZNode, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    CONSUMERS,
    GroupMembers,
    GroupOffsets,
    from_json,
    group_claim_path,
    group_members_path,
    group_offsets_parent,
    group_offsets_path,
    group_path,
)

_logger = logging.getLogger(__name__)

CLAIM_AGE_MS: Final = 30_000
_LEAVING_LIMIT_S: Final = 3.0  # how long members that have left may take to be gone
_POLL_S: Final = 0.02
_GROUPS_AT_ONCE: Final = 200
_DELETES_PER_WRITE: Final = 400
_LOADS_PER_STEP: Final = 2_000  # far fewer than fit in memory: a group that is forgotten in between never gets old


class GroupRemoval:
    """See the module. `delete` on any thread, `step` on one; both block on ZooKeeper for a bounded time."""

    def __init__(
        self,
        client: ZooKeeperClient,
        claims: Claims,
        groups: HostedGroups,
        store: OffsetStore,
        *,
        broker_id: int,
        retention_ms: int,
        steady_ms: Callable[[], int],
        believed_ms: Callable[[], int],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``retention_ms``: ``offsets.retention.minutes``. ``believed_ms``: the clock of commits, as far as
        `BelievedClock` goes."""
        self._client = client
        self._claims = claims
        self._groups = groups
        self._store = store
        self._broker_id = broker_id
        self._retention_ms = retention_ms
        self._steady_ms = steady_ms
        self._believed_ms = believed_ms
        self._sleep = sleep
        # Used by `step` alone.
        self._not_before: dict[str, int] = {}  # the earliest time at which a group's offsets are too old
        self._loads_left = 0

    def delete(self, group_id: str) -> None:
        """Removes the group's offsets and what is left of its members.

        Raises `GroupIdNotFoundError`, `NonEmptyGroupError`, `NotCoordinatorError`, `CoordinatorNotAvailableError`,
        `ZooKeeperUnavailableError` (unknown whether it was removed).
        """
        hosted = self._groups.load(group_id, creates=False)
        if hosted is None:
            raise GroupIdNotFoundError(f"no group {group_id!r}")
        self._wait_for_leaving(hosted)
        with self._removing(hosted):
            offsets = self._offsets(hosted)
            if not offsets and hosted.members_version is None:
                raise GroupIdNotFoundError(f"no group {group_id!r}")
            self._remove(hosted, offsets)  # including damaged ones
        self._groups.drop(hosted)
        event(_logger, "delete group", group=group_id, topics=len(offsets))

    def step(self) -> None:
        """Checks all groups of the cluster that this broker looks after. What fails is left to the next step."""
        if not self._client.is_connected:
            return
        self._loads_left = _LOADS_PER_STEP
        try:
            names = self._client.children(CONSUMERS)
            for some in in_parts(names, _GROUPS_AT_ONCE):
                self._look_at(some)
            present = set(names)
            self._not_before = {name: at_ms for name, at_ms in self._not_before.items() if name in present}
        except (ZooKeeperUnavailableError, ZNodeError) as error:
            event(_logger, "read ages of groups", level=logging.WARNING, error=error)

    # --- private ----------------------------------------------------------------------------------------------

    def _look_at(self, names: Sequence[str]) -> None:
        claims = self._client.find_all([group_claim_path(name) for name in names], are_small=True)
        members = self._client.find_all([group_members_path(name) for name in names])
        for name, claim, node in zip(names, claims, members, strict=True):
            try:
                check_group_id(name)
                owner = self._claims.owner_in(name, claim)
                if (self._claims.candidate(name) if owner is None else owner) == self._broker_id:
                    self._look(name, node, is_ours=owner is not None)
            except ZooKeeperUnavailableError:
                raise
            except PylogError as error:
                event(_logger, "look at group", group=name, error=error)

    def _look(self, name: str, node: ZNode | None, *, is_ours: bool) -> None:
        record = None if node is None else from_json(node.data, GroupMembers, group_members_path(name))
        if record is not None and record.members:
            if not is_ours or self._groups.find(name) is None:
                self._groups.load(name, creates=False)  # so that its members' sessions can end
            return
        now_ms = self._believed_ms()
        if now_ms < self._not_before.get(name, now_ms):
            return
        last_ms = _last_use_ms(self._store.fetch(name, None), record)
        if last_ms is not None and now_ms - last_ms < self._retention_ms:
            self._not_before[name] = last_ms + self._retention_ms
            return
        self._expire(name)

    def _expire(self, name: str) -> None:
        """The group seems to be old, or to have no offsets: checks again, as its coordinator."""
        if self._groups.find(name) is None:
            if not self._loads_left:
                return  # in a later step
            self._loads_left -= 1
        hosted = self._groups.load(name, creates=False)
        if hosted is None or self._steady_ms() - hosted.claimed_ms < CLAIM_AGE_MS:
            return  # soon
        with self._removing(hosted):
            offsets = self._offsets(hosted)
            found = {
                topic: from_json(node.data, GroupOffsets, group_offsets_path(name, topic))
                for topic, node in offsets.items()
            }
            last_ms = _last_use_ms(found, self._members(hosted))
            if last_ms is not None and self._believed_ms() - last_ms < self._retention_ms:
                return
            self._remove(hosted, offsets)
            self._remove_claim(hosted)
        self._groups.drop(hosted)
        event(_logger, "expire group", group=name, topics=len(offsets))

    @contextmanager
    def _removing(self, hosted: HostedGroup) -> Iterator[None]:
        with hosted.lock:
            hosted.require_standing(self._steady_ms())
            if hosted.group.size:
                raise NonEmptyGroupError(f"group {hosted.group_id!r} has members")
            if hosted.commits_under_way:
                raise CoordinatorNotAvailableError(f"group {hosted.group_id!r} commits at this moment. Try again")
            hosted.is_being_removed = True
        try:
            yield
        except ZNodeError as error:
            self._groups.drop(hosted)
            raise NotCoordinatorError(
                f"group {hosted.group_id!r} belongs to another coordinator by now ({error.path})"
            ) from None
        finally:
            with hosted.lock:
                hosted.is_being_removed = False

    def _wait_for_leaving(self, hosted: HostedGroup) -> None:
        """A member that left stays one until that is written, which takes a moment."""
        for _ in range(int(_LEAVING_LIMIT_S / _POLL_S)):
            with hosted.lock:
                if not hosted.group.size or hosted.group.state != "empty":
                    return
            self._sleep(_POLL_S)

    def _offsets(self, hosted: HostedGroup) -> dict[str, ZNode]:
        """By topic; as recent as the call."""
        group_id = hosted.group_id
        barrier(self._client, guard=hosted.claim.guard)
        topics = self._store.topics_of(group_id)
        paths = [group_offsets_path(group_id, topic) for topic in topics]
        found = zip(topics, self._client.find_all(paths), strict=True)
        return {topic: node for topic, node in found if node is not None}

    def _members(self, hosted: HostedGroup) -> GroupMembers | None:
        path = group_members_path(hosted.group_id)
        node = self._client.find(path)
        return None if node is None else from_json(node.data, GroupMembers, path)

    def _remove(self, hosted: HostedGroup, offsets: Mapping[str, ZNode]) -> None:
        group_id, guard = hosted.group_id, hosted.claim.guard
        deletes = [Delete(group_offsets_path(group_id, topic), node.version) for topic, node in offsets.items()]
        if self._client.find(group_offsets_parent(group_id)) is not None:
            deletes.append(Delete(group_offsets_parent(group_id)))
        if hosted.members_version is not None:
            deletes.append(Delete(group_members_path(group_id), hosted.members_version))
        for some in in_parts(deletes, _DELETES_PER_WRITE):
            write(self._client, some, guard=guard)
        hosted.members_version = None

    def _remove_claim(self, hosted: HostedGroup) -> None:
        guard = hosted.claim.guard
        deletes = [Delete(guard.check.path, guard.check.version), Delete(group_path(hosted.group_id))]
        try:
            self._client.transaction(deletes, session=guard.session)
        except NotEmptyError as error:
            event(_logger, "keep unknown znode", level=logging.WARNING, group=hosted.group_id, znode=error.path)


def _last_use_ms(offsets: Mapping[str, GroupOffsets], members: GroupMembers | None) -> int | None:
    """When the last commit was made, or the last member left; None: there are no offsets."""
    commits = [stored.committed_at_ms for found in offsets.values() for stored in found.offsets.values()]
    if not commits:
        return None
    return max(*commits, 0, members.empty_since_ms if members is not None else 0)
