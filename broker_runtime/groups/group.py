"""The machine of one group: who is a member, who has which partition, whose commits count.

Pure: no ZooKeeper, no lock, no clock; times are arguments, in ms of one steady clock. Heartbeats and commits are
answered from memory. A change is planned, written into ZooKeeper by the coordinator, then adopted, and only then
announced to the members:

    heartbeat*  →  plan  →  (the plan's record is written)  →  adopt  →  answers to heartbeats announce it

Rules: a partition is given to a member only when no other member may hold it: its last owner has reported that it
released it, or has left, or its last lease has ended; and none of that owner's commits of it is under way. A member's
heartbeat in epoch e reports that it holds exactly what it was assigned in e. A member id is used for one stay; a member
that joins again takes a new one. The ideas are Kafka's (KIP-848: member epochs, incremental release; KIP-345: static
members), with one difference: a static member that is replaced while its lease lasts keeps what it holds until it has
left or the lease has ended, so that no two processes ever hold one partition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupInUseError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    PylogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    MemberInfo,
)
from broker_runtime.groups.member import Event, Member, MemberState, Partition, by_topic
from broker_runtime.groups.shares import Shares, TopicShape, all_of, shares_among
from broker_runtime.zookeeper.znodes import GroupMembers, MemberRecord

_logger = logging.getLogger(__name__)

SOON_MS: Final = 200
"""The heartbeat interval while a change of assignments is pending. It grows with the group, which sends at most 500
heartbeats a second in all."""
REST_MS: Final = 3_000
"""The heartbeat interval while no change is pending. It grows with the number of members on the broker."""
_SOON_MS_FOR_EACH: Final = 2
_REMEMBERED: Final = 1_000  # ids of former members, so that a late duplicate of a join makes nobody a member


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What members may ask for, and how many there may be."""

    min_session_ms: int
    max_session_ms: int
    max_members: int


class _Assignment(NamedTuple):
    epoch: int
    granted: dict[Partition, int]
    releasing: set[Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change that must be written before it takes effect: see `Group.adopt`."""

    record: GroupMembers
    now_ms: int
    share: Shares
    assigned: Mapping[str, _Assignment]
    fenced: Sequence[str]
    removed: Sequence[str]


class Group:
    """See the module. Not thread-safe: the coordinator's lock guards it."""

    def __init__(self, group_id: str, limits: Limits) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.rest_ms = REST_MS  # set by the coordinator, which knows the number of members on the broker
        self._limits = limits
        self._members: dict[str, Member] = {}
        self._shares = Shares()
        self._is_dirty = False
        self._commits_of_nonmembers = 0  # under way
        self._former: deque[str] = deque(maxlen=_REMEMBERED)

    @classmethod
    def restore(cls, group_id: str, limits: Limits, record: GroupMembers, now_ms: int, grace_ms: int) -> Group:
        """The group as a successor knows it. Every lease may last a whole session and ``grace_ms`` from now on."""
        group = cls(group_id, limits)
        group.epoch = record.epoch
        group._members = {each.member_id: Member.restored(each, now_ms, grace_ms) for each in record.members}
        group._shares = Shares({each.member_id: frozenset(each.assigned) for each in group._members.values()})
        group._is_dirty = True
        return group

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of members, including those that have left and have not ended yet."""
        return len(self._members)

    @property
    def present(self) -> list[Member]:
        """Its members, without those that have left and whose commits or lease have not ended yet."""
        return [member for member in self._members.values() if member.state is not MemberState.GONE]

    @property
    def kind(self) -> str:
        """What kind of clients its members are; "" without any."""
        return next((member.kind for member in self.present), "")

    @property
    def state(self) -> Literal["empty", "assigning", "stable"]:
        """``assigning``: some member does not have its share yet."""
        if not self.present:
            return "empty"
        return "stable" if not self._is_dirty and all(map(self._is_at_rest, self._members.values())) else "assigning"

    @property
    def next_look_ms(self) -> int | None:
        """When the next deadline passes; None: there is none."""
        return min((deadline for member in self._members.values() for deadline in member.deadlines), default=None)

    def is_due(self, now_ms: int) -> bool:
        """Whether `plan` may find something to change, apart from changes of topics."""
        look_ms = self.next_look_ms
        return self._is_dirty or (look_ms is not None and now_ms >= look_ms)

    def members(self, now_ms: int, topics: Mapping[str, TopicShape]) -> list[MemberInfo]:
        """All members, for display. A Spark query has all partitions of its topics."""
        return [
            MemberInfo(
                member_id=member.member_id,
                instance_id=member.instance_id,
                kind=member.kind,
                client_id=member.client_id,
                client_host=member.client_host,
                state=member.state.value,
                member_epoch=member.epoch,
                topics=tuple(sorted(member.topics)),
                assignment=by_topic(all_of(member.topics, topics) if member.kind == "spark" else member.granted),
                session_timeout_ms=member.session_timeout_ms,
                last_heartbeat_ms=max(0, now_ms - member.heard_ms),
            )
            for member in self.present
        ]

    # --- heartbeats ---------------------------------------------------------------------------------------------

    def heartbeat(self, request: GroupHeartbeatRequest, now_ms: int) -> GroupHeartbeatResponse:
        """A member joins, stays, has carried out its assignment, or leaves.

        Raises `UnknownMemberIdError`, `FencedInstanceIdError`, `GroupInUseError`, `GroupMaxSizeReachedError`,
        `InvalidSessionTimeoutError`, `InvalidRequestError`; then nothing has changed, and no lease was extended.
        """
        member = self._members.get(request.member_id)
        if request.member_epoch in (LEAVES, LEAVES_FOR_A_WHILE):
            return self._leave(member, request, now_ms)
        if member is None:
            if request.member_epoch != JOINS or request.member_id in self._former:
                raise self._unknown(request.member_id)
            member = self._join(request, now_ms)
        self._require_live(member, now_ms)
        if request.member_epoch > member.epoch or request.member_epoch < 0:
            raise self._unknown(request.member_id)
        member.heard(now_ms)
        if request.topics is not None and frozenset(request.topics) != member.topics:
            member.topics = frozenset(request.topics)
            self._is_dirty = True
        # Every heartbeat repeats it: what is put off here is done at one of the next.
        if request.member_epoch == member.epoch > 0 and not member.still_writes and member.acknowledge():
            self._is_dirty = True
        return self._answer(member, request.member_epoch)

    def remove(self, who: Collection[str]) -> None:
        """Fences members, by member or instance id, because an administrator asks for it.

        Raises `UnknownMemberIdError` if one of them is not in the group; then none is fenced.
        """
        named: dict[str | None, list[Member]] = {}
        for member in self._members.values():
            for name in {member.member_id, member.instance_id} if member.has_share else ():
                named.setdefault(name, []).append(member)
        for name in who:
            if name not in named:
                raise self._unknown(name)
        for member in dict.fromkeys(member for name in dict.fromkeys(who) for member in named[name]):
            self._fence(member)

    # --- commits ------------------------------------------------------------------------------------------------

    def begin_commit(
        self, member_id: str, member_epoch: int, sequence: int, partitions: Sequence[tuple[str, bytes | None, int]],
        now_ms: int,
    ) -> list[PylogError | None]:  # fmt: skip
        """Which offsets may be written (None), and why the others may not. Until `end_commit` no other member gets a
        partition of this one.

        Raises `UnknownMemberIdError`; for a commit without membership `NonEmptyGroupError` (the group has members) and
        `CoordinatorNotAvailableError` (commits of members that left are under way, or their leaving is not written
        yet). Then there is nothing to end.
        """
        if not member_id:
            if present := self.present:
                names = ", ".join(member.member_id for member in present)
                raise NonEmptyGroupError(f"group {self.group_id!r} has members ({names}); only they can commit")
            if self._members:
                # To a successor they would still be members, and what they committed before would seem to be later.
                raise CoordinatorNotAvailableError(
                    f"the last members of group {self.group_id!r} have just left. Try again"
                )
            self._commits_of_nonmembers += 1
            return [None] * len(partitions)
        member = self._members.get(member_id)
        if member is None:
            raise self._unknown(member_id)
        self._require_live(member, now_ms)
        is_late = 0 <= sequence < member.last_sequence
        member.last_sequence = max(sequence, member.last_sequence)
        member.begin_commit(_places(partitions))
        if member.kind == "spark" and not is_late and member_epoch <= member.epoch:
            return [None] * len(partitions)
        by_name = {(held.topic, held.number): (held.topic_id, epoch) for held, epoch in member.granted.items()}
        answers: list[PylogError | None] = []
        for topic, topic_id, number in partitions:
            held_id, granted_in = by_name.get((topic, number), (b"", -1))
            is_held = granted_in >= 0 and topic_id in (None, held_id) and granted_in <= member_epoch <= member.epoch
            if is_late:
                answers.append(StaleMemberEpochError(f"a later commit of member {member_id} was there before"))
            elif not is_held:
                answers.append(
                    StaleMemberEpochError(
                        f"{TopicPartition(topic, number)} is not held by member {member_id} in epoch {member_epoch}"
                    )
                )
            else:
                answers.append(None)
        return answers

    def end_commit(self, member_id: str, partitions: Sequence[tuple[str, bytes | None, int]]) -> None:
        """What `begin_commit` allowed for the same ``partitions`` was written, or will not be."""
        if not member_id:
            self._commits_of_nonmembers -= 1
            self._is_dirty = True
            return
        member = self._members.get(member_id)
        if member is not None:
            member.end_commit(_places(partitions))
            if member.state is MemberState.AWAY and not member.commits_under_way:
                member.drop_all()
            if not member.is_live:
                self._is_dirty = True

    # --- plans --------------------------------------------------------------------------------------------------

    def plan(self, topics: Mapping[str, TopicShape], now_ms: int) -> Plan | None:
        """The change that is due; None: nothing has to be written. `adopt` it when it is in ZooKeeper."""
        removed = [m for m in self._members.values() if m.has_ended(now_ms)]
        slow = [
            m for m in self._members.values()
            if m.is_live and not m.is_over(now_ms) and m.release_ends_ms is not None and now_ms >= m.release_ends_ms
        ]  # fmt: skip
        others = [m for m in self._members.values() if m not in removed]
        sharing = [m for m in others if m.has_share and m not in slow and not m.is_over(now_ms)]
        shares = shares_among(sharing, topics, self._shares)
        taken = {partition for member in others for partition in member.granted}
        epoch = self.epoch + 1
        assigned: dict[str, _Assignment] = {}
        for member in sharing:
            if member.is_live:
                share = shares.of.get(member.member_id, frozenset())
                assignment = self._next_assignment(member, share, taken, epoch)
                if assignment is not None:
                    assigned[member.member_id] = assignment
        if not (removed or slow or assigned):
            self._shares = shares
            self._is_dirty = False
            return None
        records = tuple(
            self._record(member, assigned.get(member.member_id), is_slow=member in slow)
            for member in others
            if member.epoch or member.member_id in assigned
        )
        return Plan(
            record=GroupMembers(epoch=epoch, members=records),
            now_ms=now_ms,
            share=shares,
            assigned=assigned,
            fenced=[member.member_id for member in slow],
            removed=[member.member_id for member in removed],
        )

    def adopt(self, plan: Plan) -> None:
        """The plan is in ZooKeeper: it takes effect, and is announced to members from now on."""
        self.epoch = plan.record.epoch
        for member_id in plan.removed:
            self._forget(member_id)
        for member_id in plan.fenced:
            member = self._members.get(member_id)
            if member is not None and member.has_share:
                event(_logger, "fence member", member=member_id, group=self.group_id, cause="too slow to release")
                self._fence(member)
        for member_id, assignment in plan.assigned.items():
            member = self._members.get(member_id)
            if member is None:
                continue
            if member.is_live:
                member.assign(assignment.epoch, assignment.granted, assignment.releasing, plan.now_ms)
            else:
                # It left or was fenced meanwhile. It does not hold what was never announced to it, but the record has
                # that.
                member.epoch = assignment.epoch
        # A member that replaced another meanwhile keeps that one's share.
        kept = {member_id: share for member_id, share in self._shares.of.items() if member_id not in plan.share.of}
        now = {**plan.share.of, **kept}
        found = {member_id: now[member_id] for member_id in self._members if member_id in now}
        self._shares = Shares(found, plan.share.made_from if found == plan.share.of else None)
        # The next plan deals with what happened meanwhile, and hands out the partitions that became free.
        self._is_dirty = True
        event(_logger, "assign partitions", group=self.group_id, epoch=self.epoch, members=len(self._members))

    # --- private ------------------------------------------------------------------------------------------------

    def _join(self, request: GroupHeartbeatRequest, now_ms: int) -> Member:
        limits = self._limits
        if not limits.min_session_ms <= request.session_timeout_ms <= limits.max_session_ms:
            raise InvalidSessionTimeoutError(
                f"session.timeout.ms={request.session_timeout_ms} of a member of group {self.group_id!r}: this broker "
                f"allows {limits.min_session_ms} to {limits.max_session_ms}"
            )
        if request.topics is None:
            raise InvalidRequestError("a member that joins a group says which topics it subscribes to")
        present = [member for member in self.present if not member.has_ended(now_ms)]
        self._require_kind(request, present, now_ms)
        same = [
            m for m in present if m.has_share and m.instance_id is not None and m.instance_id == request.instance_id
        ]
        if len(present) - len(same) >= limits.max_members:
            raise GroupMaxSizeReachedError(f"group {self.group_id!r} has {len(present)} members, the most it may have")
        member = Member.joining(request, now_ms)
        for former in same:
            self._replace(former, member)
        self._members[member.member_id] = member
        self._is_dirty = True
        event(_logger, "join group", member=member.member_id, group=self.group_id, client_id=member.client_id)
        return member

    def _require_kind(self, request: GroupHeartbeatRequest, present: Sequence[Member], now_ms: int) -> None:
        for member in present:
            if "spark" in (member.kind, request.kind):
                what = "a Spark query" if member.kind == "spark" else "a consumer"
                heard_s = max(0, now_ms - member.heard_ms) / 1_000
                raise GroupInUseError(
                    f"group {self.group_id!r} is in use by {what}: member {member.member_id}, client "
                    f"{member.client_id!r} on host {member.client_host!r}, last heard of {heard_s:.1f} s "
                    "ago. A Spark query needs a group of its own: take another, or end that one"
                )

    def _replace(self, former: Member, member: Member) -> None:
        """Another process has taken the instance id: the share passes to it."""
        self._shares.of[member.member_id] = self._shares.of.pop(former.member_id, frozenset())
        if former.state is MemberState.AWAY:
            former.happens(Event.GONE)
        else:
            former.was_replaced = True
            former.happens(Event.FENCED)
        event(_logger, "replace member", member=former.member_id, group=self.group_id, by=member.member_id)

    def _leave(self, member: Member | None, request: GroupHeartbeatRequest, now_ms: int) -> GroupHeartbeatResponse:
        if request.member_epoch == LEAVES_FOR_A_WHILE and request.instance_id is None:
            raise InvalidRequestError(f"member_epoch {LEAVES_FOR_A_WHILE} is for members with an instance id")
        if member is None:
            self._former.append(request.member_id)  # its join may still be under way
        elif member.state is not MemberState.GONE:
            if request.member_epoch == LEAVES_FOR_A_WHILE and member.is_live and not member.is_over(now_ms):
                member.happens(Event.LEFT_FOR_A_WHILE)
                member.heard(now_ms)
                if not member.commits_under_way:
                    member.drop_all()
            else:
                member.happens(Event.GONE)
            event(_logger, "remove member", member=member.member_id, group=self.group_id, state=member.state.value)
            self._is_dirty = True
        return GroupHeartbeatResponse(
            member_epoch=request.member_epoch, heartbeat_interval_ms=0, session_timeout_ms=0, is_settled=True
        )

    def _require_live(self, member: Member, now_ms: int) -> None:
        if member.was_replaced:
            raise FencedInstanceIdError(
                f"another process joined group {self.group_id!r} as instance {member.instance_id!r}"
            )
        if not member.is_live or member.is_over(now_ms):
            raise self._unknown(member.member_id)

    def _unknown(self, member_id: str) -> UnknownMemberIdError:
        return UnknownMemberIdError(f"group {self.group_id!r} has no member {member_id!r} at present")

    def _fence(self, member: Member) -> None:
        member.happens(Event.FENCED)
        self._is_dirty = True

    def _forget(self, member_id: str) -> None:
        member = self._members.pop(member_id, None)
        if member is not None:
            self._shares.of.pop(member_id, None)
            self._former.append(member_id)
            event(_logger, "forget member", member=member_id, group=self.group_id, state=member.state.value)

    def _answer(self, member: Member, epoch: int) -> GroupHeartbeatResponse:
        is_settled = not self._is_dirty and self._has_its_share(member)
        at_rest = is_settled and member.state is MemberState.STABLE
        longest_ms = min(self.rest_ms, member.session_timeout_ms // 3)
        soon_ms = max(SOON_MS, _SOON_MS_FOR_EACH * len(self._members))
        return GroupHeartbeatResponse(
            member_epoch=member.epoch,
            heartbeat_interval_ms=longest_ms if at_rest else min(longest_ms, soon_ms),
            session_timeout_ms=member.session_timeout_ms,
            assignment=None if epoch == member.epoch else by_topic(member.assigned),
            is_settled=is_settled,
        )

    def _has_its_share(self, member: Member) -> bool:
        share = self._shares.of.get(member.member_id, frozenset())
        return member.epoch > 0 and not member.releasing and share == member.granted.keys()

    def _is_at_rest(self, member: Member) -> bool:
        return member.state is MemberState.AWAY or (member.state is MemberState.STABLE and self._has_its_share(member))

    def _next_assignment(
        self, member: Member, share: frozenset[Partition], taken: set[Partition], epoch: int
    ) -> _Assignment | None:
        """The member's next assignment; None: the one it has. Adds what it gives to ``taken``."""
        releasing = member.granted.keys() - share | member.releasing
        given = set() if self._commits_of_nonmembers else {partition for partition in share if partition not in taken}
        if not given and releasing == member.releasing and member.epoch > 0:
            return None
        taken |= given
        return _Assignment(epoch, {**member.granted, **dict.fromkeys(given, epoch)}, set(releasing))

    def _record(self, member: Member, assignment: _Assignment | None, *, is_slow: bool) -> MemberRecord:
        if assignment is not None:
            return member.record(assignment.epoch, assignment.granted, assignment.releasing, MemberState.RECONCILING)
        if member.state is MemberState.GONE or is_slow:
            return member.record(state=MemberState.FENCED)  # until its commits or its lease end
        return member.record()


def _places(partitions: Sequence[tuple[str, bytes | None, int]]) -> list[tuple[str, int]]:
    return [(topic, number) for topic, _, number in partitions]
