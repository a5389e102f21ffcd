"""A streaming query as the one member of its group, so that no two live queries have one ``pylog.group.id``.

A thread in the source's process speaks for the query in its group: it joins, sends heartbeats, and leaves when the
query ends in a way that can be noticed. What it sends, and what an answer means, is for `Membership` to say, as for a
consumer; but a query takes no partitions from its group. Its commits carry the membership, so a query that lost its
group can commit nothing. Reading waits only once: before the first answer to Spark it must be known whether the group
is free. If another member has it:

    a heartbeat of that member is seen     the query fails with GROUP_IN_USE, within seconds
    none is seen until its session ends    it was killed; the group is this query's
    no coordinator answers                 the query goes ahead, its progress waits, and it fails later if it has to

A query whose heartbeats do not arrive for a whole session (it was frozen, or cut off) joins again, and fails if another
query took its place. Rule: heartbeats hold up nothing that Spark asks for, and every wait has a limit.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    FencedError,
    GroupInUseError,
    InvalidSessionTimeoutError,
    PylogError,
    RequestError,
    RetriableError,
    UnknownServerError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import GroupDescription
from broker_runtime.contract.requests import GroupHeartbeatRequest, GroupHeartbeatResponse
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline, Worker
from pyspark_log.client.connection.offsets import Signature
from pyspark_log.client.consumer.membership import Membership, Phase, Sent, Stay

SESSION_TIMEOUT_MS = 10_000
"""How long a query keeps its group after its last heartbeat, where the brokers allow it."""

_LOOK_INTERVAL_S = 0.5  # at a group that another member has
_ENDING_S = 1.0  # a query that is being stopped may send a last heartbeat while the next one starts
_GRACE_S = 8.0  # beyond the other member's session; a coordinator's successor adds 5 s to it
_AWAY_LIMIT_S = 10.0  # how long a query that starts waits for a coordinator
_LONGEST_START_S = 120.0

_logger = logging.getLogger(__name__)


class GroupCalls(Protocol):
    """What a `QueryMember` asks of the brokers. Each is one bounded try (some seconds)."""

    def heartbeat(self, request: GroupHeartbeatRequest, *, timeout_s: float) -> GroupHeartbeatResponse:
        """To the group's coordinator; raises what it answers."""

    def forget_coordinator(self) -> None:
        """The broker that answered as the group's coordinator is not the coordinator any more."""

    def describe_group(self) -> GroupDescription:
        """The group as its coordinator knows it."""

    def session_limits_ms(self) -> tuple[int, int]:
        """The shortest and the longest session timeout that a broker allows."""


@dataclass(slots=True)
class _Watch:
    """A group that another member has, looked at again and again through one coordinator: is that member alive?"""

    began_s: float
    coordinator: int | None
    ends_s: float  # when the last session of the members that were there has certainly ended
    heard_s: dict[str, float] = field(default_factory=dict)  # by member: its first heartbeat after the beginning

    def shows_life(self, group: GroupDescription, asked_s: float, answered_s: float) -> bool:
        """Whether a member sent a heartbeat since. The group was as described at some time between the two given."""
        for member in group.members:
            heard_s = asked_s - member.heard_ms_ago / 1000  # or a little later
            self.ends_s = max(self.ends_s, heard_s + member.session_timeout_ms / 1000 + _GRACE_S)
            if heard_s <= self.began_s + _ENDING_S:
                continue
            # A coordinator that has just taken over counts every member as heard of now; but none as stable.
            first_s = self.heard_s.setdefault(member.member_id, heard_s)
            if member.state == "stable" or heard_s > first_s + (answered_s - asked_s) + _ENDING_S:
                return True
        return False


class QueryMember:
    """See the module. `step` is for the member's own thread; the rest may be called from any thread, or from a signal's
    handler.

    Only that thread touches the machine (`Membership`). What others wait for is guarded by a condition whose lock is
    reentrant: a signal's handler runs in the thread that may hold it.
    """

    def __init__(
        self,
        group_id: str,
        calls: GroupCalls,
        topics: Callable[[], tuple[str, ...]],
        *,
        client_id: str = "",
        client_host: str = "",
        clock: Clock = CLOCK,
    ) -> None:
        """``topics``: what the query reads now."""
        self._group_id = group_id
        self._calls = calls
        self._topics = topics
        self._client_id = client_id
        self._client_host = client_host
        self._clock = clock
        self._away_limit = Deadline(_AWAY_LIMIT_S, clock=clock)
        self._start_limit = Deadline(_LONGEST_START_S, clock=clock)
        self._session_timeout_ms = SESSION_TIMEOUT_MS
        self._machine = self._new_machine()
        self._watch: _Watch | None = None
        self._sequence = itertools.count()  # of commits
        # Replaced as a whole, so that no commit waits for a lock that an interrupted thread may hold.
        self._identity: tuple[str, int] | None = None
        self._changed = threading.Condition(threading.RLock())
        self._is_decided = False
        self._failure: BaseException | None = None
        self._is_quiet = False
        self._is_leaving = False
        self._is_started = False
        self._has_ended = False
        self._worker = Worker("pylog-query-member", self._work, on_defect=self._fail, at_end=self._end)

    # --- what the query asks ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to join. Never blocks."""
        with self._changed:
            if not self._is_started:
                self._worker.start()
                self._is_started = True

    def admit(self) -> None:
        """Returns when the query may go ahead: at once, except the first time. Raises `GroupInUseError` if another
        member has the group, what else the coordinator refuses (`InvalidGroupIdError` …), and what broke the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_decided or self._failure is not None, 2 * _LONGEST_START_S)
            if self._failure is not None:
                raise self._failure.with_traceback(None)

    def signature(self) -> Signature:
        """What a commit carries; each has the next number. Raises `CoordinatorNotAvailableError` while the query is no
        member."""
        identity = self._identity
        if identity is None:
            raise CoordinatorNotAvailableError(
                f"the query is not a member of group {self._group_id!r} at present; its progress waits"
            )
        return Signature(*identity, next(self._sequence))

    def stop_heartbeats(self) -> None:
        """The query is being stopped: it sends no more heartbeats, which the next query would take for life."""
        with self._changed:
            self._is_quiet = True
            self._changed.notify_all()

    def leave(self, timeout_s: float) -> None:
        """Frees the group. Blocks at most ``timeout_s``; if no coordinator answers, the session ends by itself."""
        deadline = Deadline(timeout_s)
        with self._changed:
            self._is_quiet = self._is_leaving = True
            self._changed.notify_all()
            # First this wait: a signal's handler may run in a thread that holds the lock, which only a wait gives back.
            self._changed.wait_for(lambda: not self._is_started or self._has_ended, deadline.remaining_s())
        self._worker.join(deadline.remaining_s())

    # --- the thread ---------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Sends a heartbeat if one is due, and takes the answer. Returns how many seconds there is nothing to do."""
        machine = self._machine
        machine.subscribe_to(self._topics(), self._clock.now_s())
        sent = machine.next_request(self._clock.now_s())
        if sent is None:
            return machine.wait_s(self._clock.now_s())
        try:
            answer = self._calls.heartbeat(sent.request, timeout_s=machine.request_limit_s)
        except GroupInUseError as error:
            return self._look_at_holder(error)
        except InvalidSessionTimeoutError as error:
            return self._fit_session(error)
        except PylogError as error:
            return self._failed(sent, error)
        return self._answered(sent, answer)

    def say_goodbye(self) -> None:
        """One try to leave."""
        machine = self._machine
        machine.leave(self._clock.now_s())
        sent = machine.next_request(self._clock.now_s())
        if sent is None:
            return
        try:
            self._calls.heartbeat(sent.request, timeout_s=machine.request_limit_s)
        except PylogError as error:
            event(
                _logger, "leave group", group=self._group_id, member_id=self._machine.member_id, error=error,
                level=logging.WARNING,
            )  # fmt: skip
        machine.give_up_leaving()

    # --- private ------------------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._is_quiet or self._failure is not None

    def _work(self) -> None:
        wait_s = 0.0 if self._is_over else self.step()
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, wait_s)
            if not self._is_over:
                return
            # A query that is quiet for longer than a session has lost the group, so there is nothing to leave.
            session_s = self._session_timeout_ms / 1000
            self._changed.wait_for(lambda: self._is_leaving or self._failure is not None, session_s)
        if self._failure is None:
            self.say_goodbye()
        self._worker.stop()

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _new_machine(self) -> Membership:
        stay = Stay(
            group_id=self._group_id,
            kind="spark",
            client_id=self._client_id,
            client_host=self._client_host,
            session_timeout_ms=self._session_timeout_ms,
        )
        machine = Membership(stay)
        machine.is_polling = True  # a query that reads nothing for hours is no less a member
        machine.join(self._topics(), self._clock.now_s())
        return machine

    def _answered(self, sent: Sent, answer: GroupHeartbeatResponse) -> float:
        machine = self._machine
        if not machine.answered(sent, answer, self._clock.now_s()):
            self._calls.forget_coordinator()
        self._watch = None
        if machine.phase is Phase.MEMBER:
            if self._identity is None:
                event(_logger, "join group", group=self._group_id, member_id=self._machine.member_id)
            self._identity = machine.identity
        # Before it has an epoch, a successor of the coordinator would not know it.
        if machine.phase is Phase.MEMBER or self._away_limit.expired:
            self._decide()
        return machine.wait_s(self._clock.now_s())

    def _failed(self, sent: Sent, error: PylogError) -> float:
        machine = self._machine
        if not isinstance(error, RetriableError | UnknownServerError | FencedError | RequestError):
            # Another service at the broker's port, say: nothing that a coordinator said.
            self._maybe_go_ahead(error)
            return _LOOK_INTERVAL_S
        machine.failed(sent, error, self._clock.now_s())
        if machine.phase is Phase.REFUSED:
            self._refuse(error)
        elif isinstance(error, FencedError):
            event(
                _logger, "keep group", group=self._group_id, member_id=self._machine.member_id, error=error,
                level=logging.WARNING,
            )  # fmt: skip
            self._identity = None
            machine.rejoin(self._clock.now_s())
        else:
            self._maybe_go_ahead(error)
        return machine.wait_s(self._clock.now_s())

    def _look_at_holder(self, error: GroupInUseError) -> float:
        """Is the other member alive? The machine does not learn it: it is still joining, under the same member id."""
        asked_s = self._clock.now_s()
        try:
            group = self._calls.describe_group()
        except PylogError:  # the coordinator moved, or the other member is gone; the next heartbeat shows it
            group = None
        answered_s = self._clock.now_s()
        if group is not None:
            if self._watch is None or self._watch.coordinator != group.coordinator:
                self._watch = _Watch(answered_s, group.coordinator, answered_s + _GRACE_S)
            if self._watch.shows_life(group, asked_s, answered_s):
                self._refuse(_in_use(error))
                return 0.0
        is_over = self._away_limit.expired if self._watch is None else answered_s >= self._watch.ends_s
        if (is_over or self._start_limit.expired) and not self._is_decided:
            self._refuse(_in_use(error))
        return _LOOK_INTERVAL_S

    def _maybe_go_ahead(self, error: PylogError) -> None:
        """Without a coordinator, if the query has waited for one long enough."""
        if self._machine.phase is Phase.JOINING and not self._is_decided and self._away_limit.expired:
            event(
                _logger, "join group", group=self._group_id, member_id=self._machine.member_id, error=error,
                level=logging.WARNING,
            )  # fmt: skip
            self._decide()

    def _fit_session(self, error: InvalidSessionTimeoutError) -> float:
        try:
            least_ms, most_ms = self._calls.session_limits_ms()
        except PylogError as unknown:
            self._maybe_go_ahead(unknown)
            return _LOOK_INTERVAL_S
        fitting_ms = min(max(SESSION_TIMEOUT_MS, least_ms), most_ms)
        if fitting_ms == self._session_timeout_ms:
            self._refuse(error)
            return 0.0
        self._session_timeout_ms = fitting_ms
        self._machine = self._new_machine()
        return 0.0

    def _decide(self) -> None:
        with self._changed:
            self._is_decided = True
            self._changed.notify_all()

    def _refuse(self, error: PylogError) -> None:
        event(
            _logger, "join group", group=self._group_id, member_id=self._machine.member_id, error=error,
            level=logging.WARNING,
        )  # fmt: skip
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


def _in_use(error: GroupInUseError) -> GroupInUseError:
    return GroupInUseError(
        f"{error.message}. Each source of a query counts as one: give it a pylog.group.id of its own"
    )
