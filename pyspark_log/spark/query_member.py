"""A streaming query as the one member of its group, so that no two live queries have one ``pylog.group.id``.

A thread in the source's process tells the group's coordinator that the query lives: it joins, heartbeats, and leaves
when the query ends in a way that can be noticed. The query's commits carry the membership, so one that lost its group
can acknowledge nothing. Reading waits for nobody but once: before the first answer to Spark it must be known whether
the group is free. If another has it:

    that one is heard of meanwhile      the query fails with GROUP_IN_USE, within seconds
    it is not, until its session ends   it was killed; the group is this query's
    no coordinator answers              the query goes on, its progress waits, and it fails later if it has to

A query that could not be heard of for a whole session (it was frozen, or cut off) joins anew, and fails if another took
its place. Rule: heartbeats hold up nothing that Spark asks for; every wait has a limit.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
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
)
from broker_runtime.contract.model import GroupDescription
from broker_runtime.contract.requests import JOINS, LEAVES, GroupHeartbeatRequest, GroupHeartbeatResponse

SESSION_TIMEOUT_MS = 10_000
"""How long a query that is not heard of keeps its group, where the brokers allow it."""

_LOOK_INTERVAL_S = 0.5  # at a group that another has
_ENDING_S = 1.0  # a query that is being stopped may send a last heartbeat while the next one starts
_GRACE_S = 8.0  # beyond the holder's session; a coordinator's successor adds 5 s to it
_AWAY_LIMIT_S = 10.0  # how long a query that starts waits for a coordinator
_LONGEST_START_S = 120.0
_AWAY_WAIT_S = 0.5
_ANEW_WAIT_S = 0.1

_log = logging.getLogger("pyspark_log.spark")


class GroupCalls(Protocol):
    """What a `QueryMember` asks of the brokers. Each is one bounded try (some seconds)."""

    def heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        """To the group's coordinator; raises what it answers."""

    def describe_group(self) -> GroupDescription:
        """The group as its coordinator knows it."""

    def session_limits_ms(self) -> tuple[int, int]:
        """The least and the most session timeout that a broker allows."""


@dataclass(slots=True)
class _Watch:
    """A group that another has, looked at again and again through one coordinator: is that one alive?"""

    began_s: float
    coordinator: int | None
    ends_s: float  # when the last session of those that were there has certainly ended
    heard_s: dict[str, float] = field(default_factory=dict)  # by member, when it was first heard of after the beginning

    def shows_life(self, group: GroupDescription, asked_s: float, answered_s: float) -> bool:
        """Whether a member was heard of since. ``asked_s``, ``answered_s``: between these the answer was true."""
        for member in group.members:
            heard_s = asked_s - member.heard_ms_ago / 1000  # or a little later
            self.ends_s = max(self.ends_s, heard_s + member.session_timeout_ms / 1000 + _GRACE_S)
            if heard_s <= self.began_s + _ENDING_S:
                continue
            # To a coordinator that has just taken over, all are as if heard of now; but none is stable.
            first_s = self.heard_s.setdefault(member.member_id, heard_s)
            if member.state == "stable" or heard_s > first_s + (answered_s - asked_s) + _ENDING_S:
                return True
        return False


class QueryMember:
    """See the module. `step` is the thread's; the rest may be called from any thread, or a signal's handler."""

    def __init__(
        self,
        group_id: str,
        calls: GroupCalls,
        topics: Callable[[], tuple[str, ...]],
        *,
        client_id: str = "",
        client_host: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``topics``: what the query reads now."""
        self._group_id = group_id
        self._calls = calls
        self._topics = topics
        self._client_id = client_id
        self._client_host = client_host
        self._clock = clock
        # Reentrant: a signal's handler runs in the thread that may hold it.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._began_s = clock()
        self._session_timeout_ms = SESSION_TIMEOUT_MS
        self._member_id = uuid.uuid4().hex
        self._epoch = JOINS
        self._told_topics: tuple[str, ...] | None = None
        self._watch: _Watch | None = None
        self._is_decided = False
        self._refusal: PylogError | None = None
        self._is_quiet = False
        self._is_leaving = False
        self._has_ended = False
        # Replaced as a whole, so that no commit waits for the lock that an interrupted thread may hold.
        self._identity: tuple[str, int] | None = None

    # --- what the query asks ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to join. Never blocks."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pylog-query-member", daemon=True)
                self._thread.start()

    def admit(self) -> None:
        """Returns when the query may go on: at once, but the first time. Raises `GroupInUseError` if another has the
        group, and what the coordinator refuses otherwise (`InvalidGroupIdError` …)."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_decided or self._refusal is not None, 2 * _LONGEST_START_S)
            if self._refusal is not None:
                raise type(self._refusal)(self._refusal.message)

    def identity(self) -> tuple[str, int]:
        """Member id and epoch, for a commit. Raises `CoordinatorNotAvailableError` while it is no member."""
        identity = self._identity
        if identity is None:
            raise CoordinatorNotAvailableError(
                f"the query is not a member of group {self._group_id!r} at present; its progress waits"
            )
        return identity

    def be_quiet(self) -> None:
        """The query is being stopped: no heartbeat any more, so that the next one is not told that this one lives."""
        with self._changed:
            self._is_quiet = True
            self._changed.notify_all()

    def leave(self, timeout_s: float) -> None:
        """The group is free. Blocks at most ``timeout_s``; if no coordinator answers, its session ends by itself."""
        with self._changed:
            self._is_quiet = self._is_leaving = True
            self._changed.notify_all()
            # Not `join`: this may be a signal's handler in a thread that holds the lock, which only this gives back.
            self._changed.wait_for(lambda: self._thread is None or self._has_ended, timeout_s)

    # --- the thread ---------------------------------------------------------------------------------------------

    def step(self) -> float:
        """One heartbeat, and what follows from it. Returns how many seconds until the next."""
        request = self._request(self._epoch)
        try:
            answer = self._calls.heartbeat(request)
        except GroupInUseError as error:
            return self._look_at_holder(error)
        except InvalidSessionTimeoutError as error:
            return self._fit_session(error)
        except FencedError as error:
            _log.warning("join_anew group=%s member=%s error=%s", self._group_id, self._member_id, error)
            self._identity = None
            self._member_id, self._epoch, self._told_topics = uuid.uuid4().hex, JOINS, None
            return _ANEW_WAIT_S
        except RequestError as error:
            self._refuse(error)
            return 0.0
        except PylogError as error:  # also a defect of a broker: no reason to stop reading
            return self._without_coordinator(error)
        self._accepted(request, answer)
        return answer.heartbeat_interval_ms / 1000

    def say_goodbye(self) -> None:
        """One try to leave."""
        try:
            self._calls.heartbeat(self._request(LEAVES))
        except PylogError as error:
            _log.warning("leave group=%s member=%s error=%s", self._group_id, self._member_id, error)

    # --- private ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._heartbeat_until_quiet()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _heartbeat_until_quiet(self) -> None:
        while True:
            with self._changed:
                if self._is_quiet or self._refusal is not None:
                    break
            wait_s = self.step()
            with self._changed:
                self._changed.wait_for(lambda: self._is_quiet, wait_s)
        with self._changed:
            # Whoever is quiet for longer than a session has lost the group, so there is nothing to leave.
            self._changed.wait_for(
                lambda: self._is_leaving or self._refusal is not None, self._session_timeout_ms / 1000
            )
            was_refused = self._refusal is not None
        if not was_refused:
            self.say_goodbye()

    def _request(self, epoch: int) -> GroupHeartbeatRequest:
        topics = self._topics()
        return GroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            kind="spark",
            client_id=self._client_id,
            client_host=self._client_host,
            topics=topics if topics != self._told_topics else None,
            session_timeout_ms=self._session_timeout_ms,
        )

    def _accepted(self, request: GroupHeartbeatRequest, answer: GroupHeartbeatResponse) -> None:
        if request.topics is not None:
            self._told_topics = request.topics
        if answer.member_epoch > JOINS and self._epoch <= JOINS:
            _log.info("join group=%s member=%s epoch=%d", self._group_id, self._member_id, answer.member_epoch)
        self._epoch = answer.member_epoch
        self._watch = None
        if self._epoch > JOINS:
            self._identity = self._member_id, self._epoch
        # Before it has an epoch, a successor of the coordinator would not know it.
        if self._epoch > JOINS or self._clock() - self._began_s >= _AWAY_LIMIT_S:
            self._decide()

    def _look_at_holder(self, error: GroupInUseError) -> float:
        asked_s = self._clock()
        try:
            group = self._calls.describe_group()
        except PylogError:  # the coordinator moved, or the holder is gone; the next heartbeat tells
            group = None
        answered_s = self._clock()
        if group is not None:
            if self._watch is None or self._watch.coordinator != group.coordinator:
                self._watch = _Watch(answered_s, group.coordinator, answered_s + _GRACE_S)
            if self._watch.shows_life(group, asked_s, answered_s):
                self._refuse(_in_use(error))
                return 0.0
        ends_s = self._began_s + _AWAY_LIMIT_S if self._watch is None else self._watch.ends_s
        if answered_s >= min(ends_s, self._began_s + _LONGEST_START_S) and not self._is_decided:
            self._refuse(_in_use(error))
        return _LOOK_INTERVAL_S

    def _without_coordinator(self, error: PylogError) -> float:
        if self._epoch <= JOINS and not self._is_decided and self._clock() - self._began_s >= _AWAY_LIMIT_S:
            _log.warning("go_on without_group=%s error=%s", self._group_id, error)
            self._decide()
        return _AWAY_WAIT_S

    def _fit_session(self, error: InvalidSessionTimeoutError) -> float:
        try:
            least_ms, most_ms = self._calls.session_limits_ms()
        except PylogError as unknown:
            return self._without_coordinator(unknown)
        fitting_ms = min(max(SESSION_TIMEOUT_MS, least_ms), most_ms)
        if fitting_ms == self._session_timeout_ms:
            self._refuse(error)
        self._session_timeout_ms = fitting_ms
        return 0.0

    def _decide(self) -> None:
        with self._changed:
            self._is_decided = True
            self._changed.notify_all()

    def _refuse(self, error: PylogError) -> None:
        _log.warning("refused group=%s member=%s error=%s", self._group_id, self._member_id, error)
        with self._changed:
            self._refusal = error
            self._changed.notify_all()


def _in_use(error: GroupInUseError) -> GroupInUseError:
    return GroupInUseError(
        f"{error.message}. Each source of a query counts as one: give it a pylog.group.id of its own"
    )
