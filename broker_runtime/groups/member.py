"""One member of a group as its coordinator has it: what it may hold, until when, and what became of it.

    state         what it means                                          event → next state
    joining       known, has no assignment yet, holds nothing            assigned → reconciling
    reconciling   has an assignment, has not reported that it            acknowledged → stable; assigned → reconciling
                  carried it out
    stable        holds exactly what it was assigned                     assigned → reconciling
    away          static, left for a while: holds nothing, its share     (another process with its instance id takes its
                  waits for it                                           place)
    fenced        heartbeats are refused; holds what it held until its
                  last lease has ended
    gone          left, or its session ended: holds nothing once its
                  commits that are under way have ended

Live states go → away (static members); they and away go → fenced (replaced, removed, too slow); any state → gone.

Rule: what a member may hold grows only by `assign`, and shrinks only when the member has reported a release or is gone,
and no commit of it is under way. Times are ms of one steady clock.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker_runtime.contract.requests import AssignedPartitions, GroupHeartbeatRequest
from broker_runtime.zookeeper.znodes import HeldPartitions, MemberRecord


class Partition(NamedTuple):
    """A partition of one topic, which has one id; recreated, it is another topic."""

    topic: str
    topic_id: bytes
    number: int


class MemberState(enum.Enum):
    JOINING = "joining"
    RECONCILING = "reconciling"
    STABLE = "stable"
    AWAY = "away"
    FENCED = "fenced"
    GONE = "gone"


class Event(enum.Enum):
    ASSIGNED = "assigned"
    ACKNOWLEDGED = "acknowledged"
    LEFT_FOR_A_WHILE = "left for a while"
    FENCED = "fenced"
    GONE = "gone"


_LIVE: Final = (MemberState.JOINING, MemberState.RECONCILING, MemberState.STABLE)
_TRANSITIONS: Final[dict[tuple[MemberState, Event], MemberState]] = {
    **{(state, Event.ASSIGNED): MemberState.RECONCILING for state in _LIVE},
    (MemberState.RECONCILING, Event.ACKNOWLEDGED): MemberState.STABLE,
    (MemberState.STABLE, Event.ACKNOWLEDGED): MemberState.STABLE,
    **{(state, Event.LEFT_FOR_A_WHILE): MemberState.AWAY for state in _LIVE},
    **{(state, Event.FENCED): MemberState.FENCED for state in (*_LIVE, MemberState.AWAY, MemberState.FENCED)},
    **{(state, Event.GONE): MemberState.GONE for state in MemberState},
}
"""Nothing else can happen: `Member.happens` raises `ValueError`."""


@dataclass(slots=True, eq=False)
class Member:
    """See the module. ``epoch``: of its last assignment; 0: none yet. ``granted``: all that it may hold, and for each
    partition the epoch in which it was given; ``releasing``: those of them that it is asked to release."""

    member_id: str
    kind: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    session_ends_ms: int
    heard_ms: int
    epoch: int = 0
    state: MemberState = MemberState.JOINING
    granted: dict[Partition, int] = field(default_factory=dict)
    releasing: set[Partition] = field(default_factory=set)  # Invariant: releasing ⊆ granted
    release_ends_ms: int | None = None
    was_replaced: bool = False  # another process took its instance id
    commits_under_way: int = 0
    _writing: Counter[tuple[str, int]] = field(default_factory=Counter)  # which topics and partitions they write
    last_sequence: int = -1

    @classmethod
    def joining(cls, request: GroupHeartbeatRequest, now_ms: int) -> Member:
        """A member that was not known before."""
        return cls(
            member_id=request.member_id,
            kind=request.kind,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topics=frozenset(request.topics or ()),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_ends_ms=now_ms + request.session_timeout_ms,
            heard_ms=now_ms,
        )

    @classmethod
    def restored(cls, record: MemberRecord, now_ms: int, grace_ms: int) -> Member:
        """As an earlier coordinator wrote it. Its last lease may end ``grace_ms`` later than if it had been heard of
        now."""
        granted = {
            Partition(held.topic, held.topic_id, number): epoch
            for held in record.held
            for number, epoch in held.granted.items()
        }
        releasing = {Partition(held.topic, held.topic_id, n) for held in record.held for n in held.releasing}
        try:
            state = MemberState(record.state)
        except ValueError:
            state = MemberState.FENCED  # unknown to this version: it keeps what it holds until it ends
        return cls(
            member_id=record.member_id,
            kind=record.kind,
            instance_id=record.instance_id,
            client_id=record.client_id,
            client_host=record.client_host,
            topics=frozenset(record.topics),
            session_timeout_ms=record.session_timeout_ms,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            session_ends_ms=now_ms + record.session_timeout_ms + grace_ms,
            heard_ms=now_ms,
            epoch=record.epoch,
            # What it has reported since is not known: it will report it again.
            state=MemberState.RECONCILING if state is MemberState.STABLE else state,
            granted=granted,
            releasing=releasing & granted.keys(),
            release_ends_ms=now_ms + record.rebalance_timeout_ms if releasing else None,
        )

    @property
    def is_live(self) -> bool:
        """Whether it takes part: its heartbeats count, and it may be given partitions."""
        return self.state in _LIVE

    @property
    def has_share(self) -> bool:
        """Whether it has a share of the partitions, as a member that is away has, too."""
        return self.is_live or self.state is MemberState.AWAY

    @property
    def assigned(self) -> list[Partition]:
        """What it is meant to hold, sorted."""
        return sorted(self.granted.keys() - self.releasing)

    def happens(self, event: Event) -> None:
        """Enters the next state. Raises `ValueError` where the table has none."""
        after = _TRANSITIONS.get((self.state, event))
        if after is None:
            raise ValueError(f"member {self.member_id} is {self.state.value}: it cannot be {event.value}")
        self.state = after

    def is_over(self, now_ms: int) -> bool:
        """Whether its last lease has ended."""
        return now_ms >= self.session_ends_ms

    def has_ended(self, now_ms: int) -> bool:
        """Whether it no longer holds anything."""
        return not self.commits_under_way and (self.state is MemberState.GONE or self.is_over(now_ms))

    @property
    def still_writes(self) -> bool:
        """Whether a commit of something that it is asked to release is under way: the member may have given up waiting
        for it, and have released by now."""
        return any((partition.topic, partition.number) in self._writing for partition in self.releasing)

    @property
    def deadlines(self) -> list[int]:
        """The ends of its session and of its time to release, where they matter."""
        found = []
        if self.state is not MemberState.GONE and not self.commits_under_way:
            found.append(self.session_ends_ms)
        if self.release_ends_ms is not None and self.is_live:
            found.append(self.release_ends_ms)
        return found

    def heard(self, now_ms: int) -> None:
        """Its lease begins again. It never ends earlier for that: what a restored member is given as its first lease
        covers answers of the former coordinator, which may also come after those of this one."""
        self.heard_ms = now_ms
        self.session_ends_ms = max(self.session_ends_ms, now_ms + self.session_timeout_ms)

    def begin_commit(self, partitions: Collection[tuple[str, int]]) -> None:
        """A commit of these partitions, by topic and number, is under way."""
        self.commits_under_way += 1
        self._writing.update(partitions)

    def end_commit(self, partitions: Collection[tuple[str, int]]) -> None:
        """A commit of the same partitions has ended."""
        self.commits_under_way -= 1
        self._writing -= Counter(partitions)

    def assign(
        self, epoch: int, granted: Mapping[Partition, int], releasing: Collection[Partition], now_ms: int
    ) -> None:
        """From ``epoch`` on it is meant to hold ``granted`` without ``releasing``."""
        self.happens(Event.ASSIGNED)
        self.epoch = epoch
        self.granted = dict(granted)
        self.releasing = set(releasing)
        if not self.releasing:
            self.release_ends_ms = None
        elif self.release_ends_ms is None:
            self.release_ends_ms = now_ms + self.rebalance_timeout_ms

    def acknowledge(self) -> bool:
        """It holds exactly its last assignment. Returns whether that frees any partition."""
        self.happens(Event.ACKNOWLEDGED)
        freed = bool(self.releasing)
        for partition in self.releasing:
            del self.granted[partition]
        self.releasing = set()
        self.release_ends_ms = None
        return freed

    def drop_all(self) -> None:
        """It holds nothing."""
        self.granted, self.releasing, self.release_ends_ms = {}, set(), None

    def record(
        self,
        epoch: int | None = None,
        granted: Mapping[Partition, int] | None = None,
        releasing: Collection[Partition] | None = None,
        state: MemberState | None = None,
    ) -> MemberRecord:
        """For ZooKeeper: the member as it is, or as it will be with the arguments given."""
        held = self.granted if granted is None else granted
        leaving = self.releasing if releasing is None else releasing
        by_topic: dict[tuple[str, bytes], dict[int, int]] = {}
        for partition in sorted(held):
            by_topic.setdefault((partition.topic, partition.topic_id), {})[partition.number] = held[partition]
        return MemberRecord(
            member_id=self.member_id,
            epoch=self.epoch if epoch is None else epoch,
            state=(self.state if state is None else state).value,
            kind=self.kind,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=tuple(sorted(self.topics)),
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            held=tuple(
                HeldPartitions(
                    topic=topic,
                    topic_id=topic_id,
                    granted=granted_in,
                    releasing=tuple(n for n in granted_in if Partition(topic, topic_id, n) in leaving),
                )
                for (topic, topic_id), granted_in in by_topic.items()
            ),
        )


def by_topic(partitions: Collection[Partition]) -> tuple[AssignedPartitions, ...]:
    """In the form that messages have."""
    found: dict[tuple[str, bytes], list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault((partition.topic, partition.topic_id), []).append(partition.number)
    return tuple(
        AssignedPartitions(topic=topic, topic_id=topic_id, partitions=tuple(numbers))
        for (topic, topic_id), numbers in found.items()
    )
