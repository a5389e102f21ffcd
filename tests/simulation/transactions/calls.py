"""How writers ask brokers: a call blocks until it is answered, and says what went wrong otherwise.

Rule: for code on a thread of its own (`OWN_THREAD`), which may be entered while others wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_runtime.contract.errors import PylogError, RetriableError
from tests.simulation.partitions.broker.life import Peers
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.stacks import Stack, StackScheduler


class NoAnswerError(Exception):
    """A broker refused, did not answer, or answered an error. ``code``: which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may be answered later."""
        return self.code in {"refused", "no answer"} or self.code in _RETRIABLE


def _codes(kind: type[PylogError]) -> set[str]:
    return {kind.code, *(code for each in kind.__subclasses__() for code in _codes(each))}


_RETRIABLE = frozenset(_codes(RetriableError))


def ask(
    peers: Peers,
    scheduler: StackScheduler,
    source: str,
    broker_id: int,
    handle: Callable[[Any, Callable[[object], None]], None],
    *,
    timeout_us: int,
    may_repeat: bool = False,
    what: str = "",
) -> Any:
    """The answer. Raises `NoAnswerError`. See `World.call`."""
    found: list[tuple[bool, Any]] = []
    waiting: list[Stack] = []

    def over(is_answer: bool, value: object) -> None:
        found.append((is_answer, value))
        for stack in waiting:
            scheduler.wake(stack)

    peers.call(
        source,
        broker_id,
        handle,
        on_answer=lambda answer: over(True, answer),
        on_failure=lambda reason: over(False, reason),
        timeout_us=timeout_us,
        may_repeat=may_repeat,
        reply_thread="answers",
        what=what,
    )
    deadline_us = scheduler.now_us + timeout_us + SECOND
    while not found and scheduler.now_us < deadline_us:
        scheduler.park(deadline_us, waiting=waiting)
    is_answer, value = found[0] if found else (False, "no answer")
    if not is_answer:
        raise NoAnswerError(value)
    return value


def patiently(scheduler: StackScheduler, call: Callable[[], Any], *, patience_us: int) -> Any:
    """Calls again after what may pass, with pauses, for so long. Raises the last `NoAnswerError`."""
    deadline_us = scheduler.now_us + patience_us
    while True:
        try:
            return call()
        except NoAnswerError as error:
            if not error.is_retriable or scheduler.now_us >= deadline_us:
                raise
        scheduler.block(scheduler.between(50 * MS, 400 * MS))
