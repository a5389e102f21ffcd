"""One consumer's membership of its group, as a machine: what to send to the coordinator next and when, what an answer
means, and how long the member may deliver records of the partitions that it was given.

Pure: no thread, no lock, no clock. Every time is an argument, in seconds of one steady clock (`heartbeats` has them).

    phase      what it means                                          next phases
    out        no member                                              joining (`join`)
    joining    has no assignment yet                                  member, refused, lost (idle), leaving
    member     holds what it was assigned                             lost, refused, leaving
    lost       the lease ended, the group forgot the member, or the   joining, as a new member (`rejoin`), leaving
               caller did not poll for too long: no record may be
               delivered, and the caller does not know yet
    refused    the group does not accept it: the caller learns why    leaving
    leaving    says so to the coordinator until that answers          out

Rules. The caller gives up partitions only by its own word (`carried_out`), and an epoch is acknowledged only when
everything that the caller may hold is part of that epoch's assignment. A lease counts from the moment when the
answered heartbeat was sent; once it was found to have ended, no answer revives it. A member id serves for one stay in
the group.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from broker_runtime.contract.errors import (
    FencedError,
    FencedInstanceIdError,
    PylogError,
    RetriableError,
    UnknownMemberIdError,
    UnknownServerError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    AssignedPartitions,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    MemberKind,
)
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.connection.offsets import Signature

_LEAST_INTERVAL_S: Final = 0.05
_REQUEST_LIMIT_S: Final = 5.0
_LONGEST_WAIT_S: Final = 5.0


class Phase(enum.Enum):
    OUT = "out"
    JOINING = "joining"
    MEMBER = "member"
    LOST = "lost"
    REFUSED = "refused"
    LEAVING = "leaving"


class Granted(NamedTuple):
    """A partition, with the id of its topic: another topic may get the same name later."""

    at: TopicPartition
    topic_id: bytes


class TargetAssignment(NamedTuple):
    """Everything that the member is to hold in an epoch; KIP-848 calls it so."""

    epoch: int
    partitions: frozenset[Granted]


class Sent(NamedTuple):
    """A request to the coordinator, and when it was sent, or will be in a moment."""

    serial: int
    request: GroupHeartbeatRequest
    sent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """What a member says of itself, and does not change.

    ``kind`` spark: a streaming query, the one member of its group. It takes no partitions from the group, so it has no
    lease to lose: whether its stay is over is for the coordinator to say.
    """

    group_id: str
    kind: MemberKind = "consumer"
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000


_NOTHING: Final[frozenset[Granted]] = frozenset()
_MOST_NAME_CHARS: Final = 255  # of what a heartbeat says for display


class Membership:
    """See the module. Not thread-safe, apart from four attributes that say so; `Heartbeats` guards it."""

    member_id: str
    member_epoch: int  # the epoch that was acknowledged: heartbeats carry it
    refusal: PylogError | None
    failure: PylogError | None  # of the last heartbeat
    why: str  # why it is no member at present
    _target: TargetAssignment
    _held: frozenset[Granted]  # Invariant: contains everything that the caller holds or may begin
    _first_sent_s: float | None

    def __init__(
        self,
        stay: Stay,
        *,
        new_member_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        backoff: Backoff | None = None,
    ) -> None:
        self._stay = stay
        self._new_member_id = new_member_id
        self._session_s = stay.session_timeout_ms / 1000
        self._idle_limit_s = stay.max_poll_interval_ms / 1000
        self._backoff = backoff or Backoff(first_s=0.05, limit_s=min(1.0, self._session_s / 10))
        self._serial = 0
        self._topics: tuple[str, ...] = ()
        self._farewell: GroupHeartbeatRequest | None = None
        self._farewell_until_s = 0.0
        self.phase = Phase.OUT
        # Any thread may read these four; the caller's thread writes the last two without a lock.
        self.lease_until_s = inf
        """No record is delivered from this moment on. Infinite while there is nothing to lose."""
        self.has_news = False
        """Whether there is something for the caller to carry out, or to learn."""
        self.polled_s = 0.0
        self.is_polling = False
        self._begin_stay("", 0.0)

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def request_limit_s(self) -> float:
        """How long one heartbeat may take: less than a third of the session, so that there is time for another one."""
        return min(_REQUEST_LIMIT_S, 0.3 * self._session_s)

    @property
    def pending(self) -> TargetAssignment | None:
        """The assignment that the caller has to carry out, if there is one."""
        is_pending = self.phase is Phase.MEMBER and self._target.epoch != self._carried_epoch
        return self._target if is_pending else None

    @property
    def is_settled(self) -> bool:
        """Whether the coordinator plans no further change, and all that it assigned is carried out."""
        return self._is_settled and self.phase is Phase.MEMBER and self._target.epoch == self._carried_epoch

    @property
    def has_assignment(self) -> bool:
        """Whether the member has its first assignment, which may be empty."""
        return self.phase is Phase.MEMBER

    @property
    def was_answered(self) -> bool:
        """Whether the coordinator has accepted the member, even if it has not sent an assignment yet."""
        return self._answered_serial > 0

    @property
    def identity(self) -> tuple[str, int]:
        """Member id and the epoch of the last assignment; empty and -1 outside of a group. One that has lost its place
        keeps its name: without it, it could commit as if it had never been a member."""
        return ("", -1) if self.phase is Phase.OUT else (self.member_id, self._target.epoch)

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscription."""
        return self._topics

    # --- what the caller wants --------------------------------------------------------------------------------

    def join(self, topics: Collection[str], now_s: float) -> None:
        """Begins the first stay in the group, or another one. The caller holds nothing."""
        self._topics = tuple(sorted(topics))
        self.polled_s = now_s
        self._begin_stay(self._new_member_id(), now_s)
        self._enter(Phase.JOINING, inf)

    def rejoin(self, now_s: float) -> None:
        """Begins another stay, as a new member. The caller knows that everything is lost, and no longer holds it."""
        if self.phase is Phase.LOST:
            self.join(self._topics, now_s)

    def subscribe_to(self, topics: Collection[str], now_s: float) -> None:
        """Changes the subscription."""
        wanted = tuple(sorted(topics))
        if wanted != self._topics:
            self._topics = wanted
            self._due_s = now_s

    def carried_out(self, target: TargetAssignment, now_s: float) -> bool:
        """The caller no longer holds anything that is not in ``target``. Returns whether it may begin what is in it.

        It may not if a newer assignment has come. What it may begin it may begin at any time, until it carries out the
        next assignment.
        """
        if self.phase is not Phase.MEMBER:
            return False
        is_newest = target.epoch == self._target.epoch
        self._carried_epoch = target.epoch
        self._held = target.partitions if is_newest else self._held & target.partitions
        self._acknowledge(now_s)
        self._enter(Phase.MEMBER, self.lease_until_s)
        return is_newest

    def leave(self, now_s: float) -> None:
        """Leaves the group. The caller no longer holds anything. A static member's share waits for its return."""
        is_known = self.phase in (Phase.JOINING, Phase.MEMBER) and self._first_sent_s is not None
        if is_known:
            self._say_farewell(for_good=False, now_s=now_s)
        self._enter(Phase.LEAVING if self._farewell is not None else Phase.OUT, inf)

    def give_up_leaving(self) -> None:
        """Says no more to the coordinator, which does not answer: the session ends by itself."""
        if self.phase is Phase.LEAVING:
            self._farewell = None
            self._enter(Phase.OUT, inf)

    def signature(self) -> Signature | None:
        """The signature of a commit that is made now, with the next number; None where there is no membership.

        Raises `UnknownMemberIdError` while what the member held is lost, and the refusal if the group refused it.
        """
        if self.phase is Phase.OUT:
            return None
        if self.phase is Phase.REFUSED:
            assert self.refusal is not None
            raise self.refusal
        if self.phase in (Phase.LOST, Phase.LEAVING):
            group_id = self._stay.group_id
            raise UnknownMemberIdError(f"this consumer is not a member of group {group_id!r} at present: {self.why}")
        self._sequence += 1
        return Signature(self.member_id, self._target.epoch, self._sequence)

    # --- time -------------------------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Notices that the lease has ended, or that the caller did not poll for too long."""
        if self.phase not in (Phase.JOINING, Phase.MEMBER):
            return
        if now_s >= self.lease_until_s:
            why = f"the group did not hear from it for {self._session_s:g} s (session.timeout.ms)"
            self._lose(why, now_s, says_so=True)
        elif self._is_idle(now_s):
            lease_until_s, self.lease_until_s = self.lease_until_s, -inf
            # The caller first writes what is read here, then reads the lease: one of the two sees the other's change.
            if self._is_idle(now_s):
                why = f"the caller did not poll for {self._idle_limit_s:g} s (max.poll.interval.ms)"
                self._lose(why, now_s, says_so=True)
            else:
                self.lease_until_s = lease_until_s

    def wait_s(self, now_s: float) -> float:
        """For how long there is nothing to do."""
        until_s = self.lease_until_s if self.phase is Phase.MEMBER else inf
        if self._sends_something:
            until_s = min(until_s, self._due_s)
        if self.phase in (Phase.JOINING, Phase.MEMBER) and not self.is_polling:
            until_s = min(until_s, self.polled_s + self._idle_limit_s)
        return min(max(0.0, until_s - now_s), _LONGEST_WAIT_S)

    # --- requests and answers ---------------------------------------------------------------------------------

    def next_request(self, now_s: float) -> Sent | None:
        """What is to be sent now, if anything. One request at a time."""
        self.check(now_s)
        if self._farewell is not None and now_s >= self._farewell_until_s:
            self._said_farewell()
        if not self._sends_something or now_s < self._due_s:
            return None
        self._serial += 1
        if self._farewell is not None:
            return Sent(self._serial, self._farewell, now_s)
        if self._first_sent_s is None:
            self._first_sent_s = now_s
        return Sent(self._serial, self._request(self.member_epoch), now_s)

    def answered(self, sent: Sent, response: GroupHeartbeatResponse, now_s: float) -> bool:
        """Takes an answer without an error. False: it comes from a broker that no longer is the coordinator."""
        if sent.request.member_epoch < 0:
            self._said_farewell_if(sent, now_s)
            return True
        if not self._is_awaited(sent):
            return True
        if response.member_epoch < self._target.epoch:
            # Assignments are persisted before they are announced, so the coordinator knows this epoch. (And it may
            # already have given what we released to others.)
            self._due_s = now_s + self._backoff.next_s()
            return False
        self._answered_serial = sent.serial
        self._backoff.reset()
        self.failure = None
        self._is_settled = response.is_settled
        interval_s = min(response.heartbeat_interval_ms / 1000, self._session_s / 3)
        self._due_s = max(sent.sent_s + interval_s, now_s + _LEAST_INTERVAL_S)
        if sent.request.topics != self._topics:
            self._due_s = now_s
        if response.member_epoch > self._target.epoch and response.assignment is not None:
            self._target = TargetAssignment(response.member_epoch, _granted(response.assignment))
        if self._target.epoch == JOINS:
            return True
        lease_until_s = sent.sent_s + response.session_timeout_ms / 1000
        if self.phase is Phase.MEMBER:
            lease_until_s = max(self.lease_until_s, lease_until_s)
        if self._stay.kind == "spark":
            lease_until_s = inf
        self._acknowledge(now_s)
        self._enter(Phase.MEMBER, lease_until_s)
        self.check(now_s)  # the answer may have taken longer than the lease
        return True

    def failed(self, sent: Sent, error: PylogError, now_s: float) -> None:
        """Takes an answer that is an error, or that there was none."""
        is_transient = isinstance(error, (RetriableError, UnknownServerError))
        if sent.request.member_epoch < 0:
            if is_transient:
                self._due_s = now_s + self._backoff.next_s()
            else:
                self._said_farewell_if(sent, now_s)
            return
        if not self._is_awaited(sent):
            return
        self._due_s = now_s + self._backoff.next_s()
        if is_transient:
            self.failure = error
            self.check(now_s)
        elif isinstance(error, FencedError) and not isinstance(error, FencedInstanceIdError):
            if self.phase is Phase.JOINING:
                due_s = self._due_s
                self._begin_stay(self._new_member_id(), now_s)
                self._due_s = due_s
            else:
                self._lose(error.message, now_s, says_so=False)
        else:
            self.refusal = error
            self.why = error.message
            self._enter(Phase.REFUSED, -inf)

    # --- private ----------------------------------------------------------------------------------------------

    def _begin_stay(self, member_id: str, now_s: float) -> None:
        self.member_id = member_id
        self.member_epoch = JOINS
        self.refusal = None
        self.failure = None
        self.why = "it has not joined"
        self._target = TargetAssignment(JOINS, _NOTHING)
        self._held = _NOTHING
        self._carried_epoch = JOINS
        self._is_settled = False
        self._first_sent_s = None
        self._answered_serial = 0
        self._sequence = -1
        self._due_s = now_s

    def _enter(self, phase: Phase, lease_until_s: float) -> None:
        self.phase = phase
        self.lease_until_s = lease_until_s
        self.has_news = phase in (Phase.LOST, Phase.REFUSED) or self.pending is not None

    def _lose(self, why: str, now_s: float, *, says_so: bool) -> None:
        self.why = why
        if says_so and self._first_sent_s is not None:
            self._say_farewell(for_good=True, now_s=now_s)
        self._enter(Phase.LOST, -inf)

    def _acknowledge(self, now_s: float) -> None:
        """Acknowledges the epoch if the caller holds nothing outside of it. (Mere additions need no caller.)"""
        if self.member_epoch != self._target.epoch and self._held <= self._target.partitions:
            self.member_epoch = self._target.epoch
            self._due_s = now_s

    def _say_farewell(self, *, for_good: bool, now_s: float) -> None:
        returns = self._stay.instance_id is not None and not for_good
        self._farewell = self._request(LEAVES_FOR_A_WHILE if returns else LEAVES)
        self._farewell_until_s = now_s + self._session_s  # by then the session has ended anyway
        self._due_s = now_s

    def _said_farewell_if(self, sent: Sent, now_s: float) -> None:
        if self._farewell is sent.request:
            self._due_s = now_s
            self._said_farewell()

    def _said_farewell(self) -> None:
        self._farewell = None
        self._backoff.reset()
        if self.phase is Phase.LEAVING:
            self._enter(Phase.OUT, inf)

    @property
    def _sends_something(self) -> bool:
        return self._farewell is not None or self.phase in (Phase.JOINING, Phase.MEMBER)

    def _is_awaited(self, sent: Sent) -> bool:
        """Whether it is the newest request of this stay."""
        return (
            self.phase in (Phase.JOINING, Phase.MEMBER)
            and sent.request.member_id == self.member_id
            and sent.serial == self._serial
        )

    def _is_idle(self, now_s: float) -> bool:
        return not self.is_polling and now_s - self.polled_s >= self._idle_limit_s

    def _request(self, epoch: int) -> GroupHeartbeatRequest:
        stay = self._stay
        return GroupHeartbeatRequest(
            group_id=stay.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            kind=stay.kind,
            instance_id=stay.instance_id,
            client_host=stay.client_host[:_MOST_NAME_CHARS],
            client_id=stay.client_id[:_MOST_NAME_CHARS],
            topics=self._topics,  # always: a new coordinator may not have heard of the last change
            session_timeout_ms=stay.session_timeout_ms,
            rebalance_timeout_ms=stay.max_poll_interval_ms,
        )


def _granted(assignment: Collection[AssignedPartitions]) -> frozenset[Granted]:
    return frozenset(
        Granted(TopicPartition(each.topic, number), each.topic_id) for each in assignment for number in each.partitions
    )
