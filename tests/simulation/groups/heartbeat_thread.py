"""What a consumer's heartbeat thread does, as events of the simulation: it sends what the real machine wants to say.

Rule: one request at a time; an answer reaches the machine when this process is awake again, not before.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_runtime.contract.errors import NetworkError, PylogError, error_from_code
from broker_runtime.contract.requests import GroupHeartbeatResponse
from pyspark_log.client.consumer.membership import Membership, Sent
from tests.simulation.groups.calls import Coordination
from tests.simulation.simulator.scheduler import SECOND, Event, Scheduler

THREAD = "heartbeat"
_LEAST_US = 1_000


class HeartbeatThread:
    """See the module. ``now_s``: the client's steady clock. ``on_news`` is called after every answer."""

    def __init__(
        self,
        scheduler: Scheduler,
        actor: str,
        membership: Membership,
        coordination: Coordination,
        *,
        now_s: Callable[[], float],
        on_news: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._actor = actor
        self._membership = membership
        self._coordination = coordination
        self._now_s = now_s
        self._on_news = on_news
        self.is_sending = False
        self._next: Event | None = None

    def wake(self) -> None:
        """Something has changed that it may have to send."""
        self._after(0)

    def _after(self, delay_us: int) -> None:
        if self._next is not None:
            self._next.is_cancelled = True
        self._next = self._scheduler.after(delay_us, self._actor, self._step, thread=THREAD)

    def _step(self) -> None:
        membership = self._membership
        if self.is_sending:
            membership.check(self._now_s())
            self._after(SECOND // 4)
            return
        sent = membership.next_request(self._now_s())
        if sent is None:
            self._after(max(_LEAST_US, int(membership.wait_s(self._now_s()) * SECOND)))
            return
        self.is_sending = True
        self._coordination.ask(
            sent.request,
            on_answer=lambda answer: self._answered(sent, answer),
            on_failure=lambda code: self._failed(sent, code),
            timeout_us=int(membership.request_limit_s * SECOND),
            thread=THREAD,
        )
        self._after(SECOND // 4)

    def _answered(self, sent: Sent, answer: object) -> None:
        assert isinstance(answer, GroupHeartbeatResponse)
        self.is_sending = False
        if not self._membership.answered(sent, answer, self._now_s()):
            self._coordination.forget()
        self._on_news("")
        self.wake()

    def _failed(self, sent: Sent, code: str) -> None:
        self.is_sending = False
        self._membership.failed(sent, _error(code), self._now_s())
        self._on_news(code)
        self.wake()


def _error(code: str) -> PylogError:
    if code in ("refused", "no answer"):
        return NetworkError(code)
    return error_from_code(code, "as the coordinator says")
