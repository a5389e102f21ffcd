"""Situations that the seeds of the groups' workload are to reach (see `tests.simulation.simulator.situations`), and
what recognizes those that no fault brings about for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from unittest import mock

from broker_runtime.contract.requests import CommitOffsetsResponse
from broker_runtime.groups import offsets
from broker_runtime.groups.hosted import HostedGroup
from broker_runtime.groups.member import MemberState
from broker_runtime.zookeeper.session import BadVersionError, Create, Operation, Set, ZNode, ZNodeError
from broker_runtime.zookeeper.znodes import (
    CONSUMERS,
    GroupClaim,
    GroupMembers,
    StoredOffset,
    from_json,
    group_claim_path,
    group_members_path,
)

CLAIM: Final = "/coordinator"
CLAIM_LOST_ON_THE_WAY: Final = "a commit was between guard and write while its coordinator changed"
GONE_WITH_COMMIT: Final = "a member was gone while its commit was under way"
REMOVED_WITH_COMMIT: Final = "a member was fenced while its commit was under way"
REGAINED: Final = "a broker lost a claim and has it again"
SUCCEEDED: Final = "a coordinator changed while the group had members"
DEPOSED_ANSWERED: Final = "a coordinator that another had succeeded answered a heartbeat"
TWO_COORDINATORS: Final = "two brokers took themselves for one group's coordinator"
SUPERSEDED: Final = "a commit reached ZooKeeper after a later one"
LATE: Final = "a commit reached its coordinator when the member held the partition no more"
READ_BEHIND: Final = "ZooKeeper was read while its server was behind"
STOOD_STILL: Final = "a broker stood still in the middle of a call"
HELD_BACK: Final = "a commit waited until another member began with its partition"
RESET_WITH_CHANGE: Final = "an administrator's reset was on its way when members began"
SITUATIONS: Final = (
    CLAIM_LOST_ON_THE_WAY, GONE_WITH_COMMIT, REMOVED_WITH_COMMIT, REGAINED, SUCCEEDED, DEPOSED_ANSWERED,
    TWO_COORDINATORS, SUPERSEDED, LATE, READ_BEHIND, STOOD_STILL, HELD_BACK, RESET_WITH_CHANGE,
)  # fmt: skip


class Situations:
    """See the module. ``count``: counts one that arises; ``find``: a znode as it is now."""

    def __init__(self, count: Callable[[str], None], find: Callable[[str], ZNode | None]) -> None:
        self._count = count
        self._find = find
        self._owners: dict[str, list[int]] = {}
        self._ended: set[str] = set()
        self._doubled: set[tuple[str, int]] = set()

    def wrote(self, operations: Sequence[Operation]) -> None:
        """ZooKeeper's tree has changed."""
        for operation in operations:
            if isinstance(operation, Create | Set) and operation.path.endswith(CLAIM):
                group_id = operation.path[len(CONSUMERS) + 1 : -len(CLAIM)]
                owner = from_json(operation.data, GroupClaim, operation.path).broker_id
                if owner >= 0:
                    self._claimed(group_id, owner)

    def answered_heartbeat(self, broker_id: int, group_id: str) -> None:
        """A broker answered as the group's coordinator."""
        path = group_claim_path(group_id)
        node = self._find(path)
        if node is None or from_json(node.data, GroupClaim, path).broker_id not in (broker_id, -1):
            self._count(DEPOSED_ANSWERED)

    def answered_commit(self, answer: CommitOffsetsResponse) -> None:
        """A coordinator answered a commit."""
        if any(each is not None and each.code == "STALE_MEMBER_EPOCH" for each in answer.errors):
            self._count(LATE)

    def refused(self, operations: Sequence[Operation], refusal: ZNodeError) -> None:
        """ZooKeeper refused a transaction."""
        if isinstance(refusal, BadVersionError) and refusal.path.endswith(CLAIM) and is_commit(operations):
            self._count(CLAIM_LOST_ON_THE_WAY)

    def coordinates(self, hosted: Sequence[HostedGroup]) -> None:
        """All groups that any broker has now, one entry for each broker that has it."""
        versions: dict[str, set[int]] = {}
        for each in hosted:
            versions.setdefault(each.group_id, set()).add(each.claim.version)
        for group_id, found in versions.items():
            if len(found) > 1 and (group_id, max(found)) not in self._doubled:
                self._doubled.add((group_id, max(found)))
                self._count(TWO_COORDINATORS)
        for each in hosted:
            for member in each.group._members.values():
                if member.commits_under_way and not member.is_live and member.member_id not in self._ended:
                    self._ended.add(member.member_id)
                    self._count(GONE_WITH_COMMIT if member.state is MemberState.GONE else REMOVED_WITH_COMMIT)

    def _claimed(self, group_id: str, owner: int) -> None:
        owners = self._owners.setdefault(group_id, [])
        if owners and owners[-1] != owner:
            if owner in owners:
                self._count(REGAINED)
            path = group_members_path(group_id)
            node = self._find(path)
            if node is not None and from_json(node.data, GroupMembers, path).members:
                self._count(SUCCEEDED)
        if not owners or owners[-1] != owner:
            owners.append(owner)


def is_commit(operations: Sequence[Operation]) -> bool:
    """Whether it writes a group's offsets."""
    return any(isinstance(each, Create | Set) and "/offsets/" in each.path for each in operations)


@contextmanager
def counting_superseded(count: Callable[[str], None]) -> Iterator[None]:
    """Inside, commits that are superseded in ZooKeeper are counted."""
    real = offsets._is_superseded

    def is_superseded(new: StoredOffset, old: StoredOffset) -> bool:
        found = real(new, old)
        if found:
            count(SUPERSEDED)
        return found

    with mock.patch.object(offsets, "_is_superseded", is_superseded):
        yield
