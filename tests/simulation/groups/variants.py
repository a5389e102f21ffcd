"""Coordinators and clients that are broken on purpose, each in one way: the checker has to find every one.

``python -m tests.simulation --workload groups --variant NAME`` runs one over many seeds. See
`tests.simulation.simulator.variants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any
from unittest import mock

from broker_runtime.groups import hosted, offsets
from broker_runtime.groups.group import Group
from broker_runtime.groups.member import Member, MemberState, Partition
from broker_runtime.zookeeper.session import Operation
from pyspark_log.client.consumer.membership import Membership, Phase
from tests.simulation.groups.situations import CLAIM, is_commit
from tests.simulation.simulator.variants import Patches, Variants
from tests.simulation.simulator.zookeeper import SimClient

VARIANTS = Variants()
variant = VARIANTS.variant


# --- coordinators -----------------------------------------------------------------------------------------------------


@variant
def gives_a_partition_before_its_release() -> Patches:
    """What a member is to release is given to the next at once."""
    real = Group._next_assignment

    def news(self: Group, member: Member, share: frozenset[Partition], taken: set[Partition], epoch: int) -> Any:
        releasing = {partition for each in self._members.values() for partition in each.releasing}
        return real(self, member, share, taken - releasing, epoch)

    yield mock.patch.object(Group, "_next_assignment", news)


@variant
def gives_what_a_removed_member_holds() -> Patches:
    """A member that is fenced, by an administrator or another process, counts as gone: its lease is not waited for."""

    def has_ended(self: Member, now_ms: int) -> bool:
        return not self.commits_under_way and (not self.has_share or self.is_over(now_ms))

    yield mock.patch.object(Member, "has_ended", has_ended)


@variant(faults=("commit arrives again",))
def accepts_commits_that_come_late() -> Patches:
    """A member's commits count in the order in which they reach ZooKeeper, not of their numbers."""
    yield mock.patch.object(offsets, "_is_superseded", return_value=False)


@variant(faults=("reset held back", "commit held back"))
def commits_without_the_guard_of_the_claim() -> Patches:
    """A commit is written whoever has claimed the group meanwhile."""
    real = SimClient.transaction

    def transaction(self: SimClient, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        if is_commit(operations):
            operations = [each for each in operations if not each.path.endswith(CLAIM)]
        return real(self, operations, session=session)

    yield mock.patch.object(SimClient, "transaction", transaction)


@variant(faults=("commit held back",))
def member_is_gone_though_its_commit_is_under_way() -> Patches:
    """What a member held is given on while a commit of it may still be written."""

    def has_ended(self: Member, now_ms: int) -> bool:
        return self.state is MemberState.GONE or self.is_over(now_ms)

    yield mock.patch.object(Member, "has_ended", has_ended)


@variant(faults=("release held back",))
def released_though_a_commit_is_under_way() -> Patches:
    """What a member says that it has released is given on while a commit of it may still be written."""
    yield mock.patch.object(Member, "still_writes", new=False)


@variant(faults=("offsets reset",))
def resets_before_it_is_written_that_members_have_left() -> Patches:
    """Members that have left hold up no reset, though a successor would still take them for members."""
    real = Group.begin_commit

    def begin_commit(self: Group, member_id: str, *args: Any) -> Any:
        left = {} if member_id or self.present else self._members
        with mock.patch.object(self, "_members", {} if left else self._members):
            return real(self, member_id, *args)

    yield mock.patch.object(Group, "begin_commit", begin_commit)


@variant(faults=("succeeded unawares",))
def successor_adds_no_grace() -> Patches:
    """A new coordinator forgets that a deposed one may have gone on for a while."""
    yield mock.patch.object(hosted, "GRACE_MS", 0)


@variant
def successor_does_not_wait() -> Patches:
    """A new coordinator takes members that have not sent a heartbeat to it for gone."""
    real = Member.restored.__func__

    def restored(cls: type[Member], record: Any, now_ms: int, grace_ms: int) -> Member:
        member: Member = real(cls, record, now_ms, grace_ms)
        member.session_ends_ms = now_ms + 500
        return member

    yield mock.patch.object(Member, "restored", classmethod(restored))


@variant(faults=("cut from zookeeper", "join"))
def deposed_coordinator_goes_on() -> Patches:
    """A coordinator that does not know whether its claim stands extends leases all the same."""
    yield mock.patch.object(hosted, "STANDS_MS", 10**9)


@variant(faults=("join held back",))
def tells_before_it_is_written() -> Patches:
    """Members learn what was planned, whether ZooKeeper has it or not."""
    real = Group.plan

    def plan(self: Group, topics: Any, now_ms: int) -> Any:
        made = real(self, topics, now_ms)
        if made is not None:
            self.adopt(made)
        return made

    yield mock.patch.object(Group, "plan", plan)


# --- clients ----------------------------------------------------------------------------------------------------------


@variant
def member_ignores_its_lease() -> Patches:
    """A member that was frozen goes on with what it had."""
    real = Membership.answered

    def answered(self: Membership, *args: Any) -> bool:
        is_believed: bool = real(self, *args)
        if self.phase is Phase.MEMBER:
            self.lease_until_s = inf
        return is_believed

    yield mock.patch.object(Membership, "answered", answered)


@variant(faults=("freeze", "client cut off"))
def lease_counts_from_the_answer() -> Patches:
    """The lease begins when a heartbeat is answered, not when it was sent."""
    real = Membership.answered

    def answered(self: Membership, sent: Any, response: Any, now_s: float) -> bool:
        return real(self, sent._replace(sent_s=now_s), response, now_s)

    yield mock.patch.object(Membership, "answered", answered)


@variant
def acknowledges_at_once() -> Patches:
    """A member acknowledges an assignment as soon as it gets it, released or not."""

    def acknowledge(self: Membership, now_s: float) -> None:
        if self.member_epoch != self._target.epoch:
            self.member_epoch = self._target.epoch
            self._held = self._target.partitions
            self._due_s = now_s

    yield mock.patch.object(Membership, "_acknowledge", acknowledge)
