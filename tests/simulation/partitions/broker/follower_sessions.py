"""A simulated leader's sessions with its followers: the real `FollowerSession`s, driven by events instead of threads.

Rule: a session is one connection. It ends with either process, and a while after the follower has opened another; what
was under way in an old one still counts until then, as it does from the buffers of a real leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_runtime.contract.errors import BrokerUnavailableError
from broker_runtime.contract.streams import FetchRequest
from broker_runtime.services.caller import BrokerCaller
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.follower_session import FollowerSession
from tests.simulation.partitions.broker.serving import Fetched
from tests.simulation.simulator.scheduler import MS, SECOND, Scheduler

_LINGERS_US = (0, 3 * SECOND)


@dataclass(slots=True, eq=False)
class _Session:
    session: FollowerSession
    broker_id: int
    thread: str  # a session is one thread's
    reply: Callable[[Fetched], None] | None = None  # None: no request waits for its answer
    deadline_us: int = 0
    is_look_due: bool = False


class FollowerSessions:
    """Those of one life of a broker."""

    def __init__(self, actor: str, scheduler: Scheduler, service: FetchService) -> None:
        self._actor = actor
        self._scheduler = scheduler
        self._service = service
        self._sessions: dict[str, _Session] = {}

    def open(self, key: str, caller: BrokerCaller) -> None:
        """A follower connects."""
        for known, session in list(self._sessions.items()):
            if session.broker_id == caller.broker_id:
                self._scheduler.after(
                    self._scheduler.between(*_LINGERS_US),
                    self._actor,
                    lambda known=known: self._close(known),
                    thread=session.thread,
                )
        self._sessions[key] = _Session(self._service.follower_session(caller), caller.broker_id, f"session {key}")

    def fetch(self, key: str, request: FetchRequest, reply: Callable[[Fetched], None]) -> None:
        """Answers when there is something, else after the request's ``max_wait_ms``.

        Raises `BrokerUnavailableError` for a connection that is none any more.
        """
        session = self._sessions.get(key)
        if session is None:
            raise BrokerUnavailableError("the connection was reset")
        found = session

        def take() -> None:
            found.reply = reply
            found.deadline_us = self._scheduler.now_us + request.max_wait_ms * MS
            found.session.begin(request)
            self._look(found)
            if found.reply is not None:
                self._scheduler.after(
                    request.max_wait_ms * MS, self._actor, lambda: self._look(found), thread=found.thread
                )

        self._scheduler.after(0, self._actor, take, thread=session.thread)

    def after_event(self) -> None:
        """Lets those look again for whom something happened."""
        for session in self._sessions.values():
            if session.reply is not None and not session.is_look_due and session.session.has_changes:
                session.is_look_due = True
                self._scheduler.after(
                    self._scheduler.between(0, MS),
                    self._actor,
                    lambda session=session: self._look(session),
                    thread=session.thread,
                )

    def _look(self, session: _Session) -> None:
        session.is_look_due = False
        if session.reply is None:
            return
        answer = session.session.maybe_answer(is_due=self._scheduler.now_us >= session.deadline_us)
        if answer is None:
            return
        fetched = Fetched(answer.response, tuple(answer.cells))
        answer.close()
        reply, session.reply = session.reply, None
        reply(fetched)

    def _close(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.reply = None
            session.session.close()
