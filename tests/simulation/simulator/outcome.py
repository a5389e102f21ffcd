"""What became of a run, and the errors that end one."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.simulator.scheduler import DefectError, Scheduler
from tests.simulation.simulator.trace import Trace


class ViolationError(BaseException):
    """An invariant does not hold. ``number``: which; 0 liveness, -1 a defect that showed itself otherwise.

    No `Exception`: it is found in the middle of a broker's code, which must not take it for its own.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.number = number


class HungError(BaseException):
    """A run took too long, in real time."""


@dataclass(slots=True)
class Outcome:
    """What became of a run. ``failure`` None: every invariant held."""

    seed: int
    digest: str = ""
    events: int = 0
    lines: int = 0
    simulated_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    invariant: int | None = None
    trace: str = ""


def carry_out(run: Callable[[], None], seed: int, trace: Trace, scheduler: Scheduler, *, keep_trace: bool) -> Outcome:
    """Runs to the end or to the first thing that is wrong, and says which."""
    outcome = Outcome(seed)
    try:
        run()
    except ViolationError as violation:
        outcome.failure = str(violation)
        outcome.invariant = violation.number
    except (DefectError, HungError) as defect:
        error = defect.__cause__ or defect
        where = "".join(traceback.format_exception(error))
        outcome.failure = f"{type(error).__name__}: {error}\n{where}"
        outcome.invariant = -1
    if outcome.failure is not None:
        trace.line("sim", f"FAILED {outcome.failure.splitlines()[0]}")
    if outcome.failure is not None or keep_trace:
        outcome.trace = trace.tail()
    outcome.digest = trace.digest
    outcome.events = scheduler.events_run
    outcome.lines = trace.count
    outcome.simulated_s = scheduler.now_us / 1e6
    return outcome
