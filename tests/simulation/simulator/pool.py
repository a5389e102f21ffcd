"""Many seeds, on some processes: each run has a limit, so that one that hangs is reported like one that fails.

Rule: an outcome depends on its seed alone, not on which process ran it or what ran there before.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from tests.simulation.simulator.outcome import HungError, Outcome
from tests.simulation.simulator.situations import never_happened
from tests.simulation.simulator.workload import Workload

SEED_LIMIT_S = 60
"""Hundred times what a seed takes: only what hangs takes it."""


@dataclass(slots=True)
class Summary:
    """What many runs came to."""

    seeds: int = 0
    events: int = 0
    simulated_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.seeds += 1
        self.events += outcome.events
        self.simulated_s += outcome.simulated_s
        self.counts += outcome.counts
        if outcome.failure is not None:
            self.failures.append(outcome)


def run_limited(
    workload: Workload, seed: int, *, variant: str | None = None, faults: tuple[str, ...] | None = None
) -> Outcome:
    """`Workload.run_seed`; a run that hangs is a failure, with the place where it does."""
    with limit(SEED_LIMIT_S):
        return workload.run_seed(seed, variant=variant, faults=faults)


def run_seeds(
    workload: Workload,
    seeds: Iterable[int],
    *,
    processes: int,
    variant: str | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Summary:
    """Runs them all, in order of completion."""
    summary = Summary()
    for outcome in outcomes(workload, seeds, processes=processes, variant=variant):
        summary.add(outcome)
        on_outcome(outcome)
    return summary


def run_all(workload: Workload, seeds: Sequence[int], *, faults_at_least: int) -> Summary:
    """Runs them on two processes, for a test: fails unless all hold, with so many faults, and no situation missed."""
    summary = run_seeds(workload, seeds, processes=2)
    failures = "\n\n".join(
        f"seed {each.seed} (make {workload.make_target} SEED={each.seed}): {each.failure}\n{each.trace}"
        for each in summary.failures[:3]
    )
    assert not summary.failures, f"{len(summary.failures)} of {len(seeds)} seeds\n{failures}"
    assert summary.seeds == len(seeds)
    assert sum(count for what, count in summary.counts.items() if what.startswith("fault ")) >= faults_at_least
    assert never_happened(workload.situations, summary.counts) == []
    return summary


def first_violation(workload: Workload, seeds: Iterable[int], *, variant: str) -> Outcome | None:
    """The first seed in which the variant breaks an invariant, not just liveness; None: none of them shows it."""
    outcomes = (run_limited(workload, seed, variant=variant) for seed in seeds)
    return next((outcome for outcome in outcomes if outcome.failure and outcome.invariant), None)


def outcomes(
    workload: Workload, seeds: Iterable[int], *, processes: int, variant: str | None = None
) -> Iterator[Outcome]:
    """The outcome of each, as they end."""
    run = partial(run_limited, workload, variant=variant)
    if processes == 1:
        yield from map(run, seeds)
        return
    # Spawned: the simulation is single-threaded, whoever starts it may not be.
    with multiprocessing.get_context("spawn").Pool(processes, stay_on_one_processor) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


def stay_on_one_processor() -> None:
    """For a process that runs seeds: its threads take turns, and a turn costs less on the same processor (a fifth of
    all)."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        number = int(re.split("[-:]", multiprocessing.current_process().name)[-1])  # among its parent's
        os.sched_setaffinity(0, {allowed[(os.getppid() + number) % len(allowed)]})


def call_named(module: str, name: str, arguments: Mapping[str, object]) -> None:
    """Calls a module's function: for another process, which may know the module by another name."""
    getattr(importlib.import_module(module), name)(**arguments)


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Inside, `HungError` is raised in the main thread after so many seconds of this process's own time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HungError(f"no end within {seconds} s")

    # The processor's time: a machine that is busy, or a process that stands still, is no hang.
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
