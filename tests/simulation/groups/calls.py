"""How a client in the simulation reaches its group's coordinator: it asks any broker who that is, and goes on there.

Rule: a request is sent again, as it is, until it is answered or given up; then it may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from broker_runtime.contract.requests import FindCoordinatorRequest, FindCoordinatorResponse
from tests.simulation.simulator.scheduler import MS, SECOND, Scheduler

LOOK_AGAIN = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "refused", "no answer"})
RETRIABLE = LOOK_AGAIN | {"ZOOKEEPER_UNAVAILABLE", "UNKNOWN_SERVER_ERROR"}
_FIND_LIMIT_US = SECOND
_PAUSE_US = (20 * MS, 250 * MS)


class Brokers(Protocol):
    """All brokers, over the network."""

    scheduler: Scheduler

    @property
    def broker_ids(self) -> list[int]:
        """Those there are, up or not."""

    def call(
        self,
        source: str,
        broker_id: int,
        request: msgspec.Struct,
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        thread: str,
    ) -> None:
        """Exactly one of both is called: with the answer, or with an error's code, "refused" or "no answer"."""


class Coordination:
    """One process's connection to the coordinator of its group."""

    def __init__(self, brokers: Brokers, actor: str, group_id: str) -> None:
        self._brokers = brokers
        self._actor = actor
        self._group_id = group_id
        self._coordinator: int | None = None

    def forget(self) -> None:
        """Whoever was asked last is not asked the next time."""
        self._coordinator = None

    def ask(
        self,
        request: msgspec.Struct,
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        thread: str,
    ) -> None:
        """Asks once; whoever answers that it is not the coordinator, or not at all, is not asked the next time."""

        def failed(code: str) -> None:
            if code in LOOK_AGAIN:
                self._coordinator = None
            on_failure(code)

        def send(coordinator: int) -> None:
            self._brokers.call(
                self._actor, coordinator, request, on_answer=on_answer, on_failure=failed, timeout_us=timeout_us,
                thread=thread,
            )  # fmt: skip

        def found(answer: object) -> None:
            assert isinstance(answer, FindCoordinatorResponse)
            self._coordinator = answer.broker_id
            send(answer.broker_id)

        if self._coordinator is not None:
            send(self._coordinator)
            return
        self._brokers.call(
            self._actor, self._brokers.scheduler.rng.choice(self._brokers.broker_ids),
            FindCoordinatorRequest(group_id=self._group_id), on_answer=found, on_failure=failed,
            timeout_us=_FIND_LIMIT_US, thread=thread,
        )  # fmt: skip

    def insist(
        self,
        request: msgspec.Struct,
        *,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
        limit_us: int,
        thread: str,
        is_good: Callable[[object], bool] = lambda answer: True,
    ) -> None:
        """Asks again and again, the same, while that may help. ``is_good``: an answer that need not be asked again."""
        scheduler = self._brokers.scheduler
        end_us = scheduler.now_us + limit_us

        def attempt() -> None:
            self.ask(request, on_answer=answered, on_failure=failed, timeout_us=timeout_us, thread=thread)

        def answered(answer: object) -> None:
            if is_good(answer) or not again():
                on_answer(answer)
            else:
                self._coordinator = None

        def failed(code: str) -> None:
            if code not in RETRIABLE or not again():
                on_failure(code)

        def again() -> bool:
            if scheduler.now_us >= end_us:
                return False
            scheduler.after(scheduler.between(*_PAUSE_US), self._actor, attempt, thread=thread)
            return True

        attempt()
