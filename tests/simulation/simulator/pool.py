"""Many seeds, on some processes: each run has a limit, so that one that hangs is reported like one that fails.

Rule: an outcome depends on its seed alone, not on which process ran it or what ran there before.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from tests.simulation.partitions.run import HungError, Outcome, run_seed

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


def run_limited(seed: int) -> Outcome:
    """`run_seed`; a run that hangs is a failure, with the place where it does."""
    with limit(SEED_LIMIT_S):
        return run_seed(seed)


def run_seeds(
    seeds: Iterable[int],
    *,
    processes: int,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    run: Callable[[int], Outcome] = run_limited,
) -> Summary:
    """Runs them all, in order of completion. ``run``: what runs one; a function of a module."""
    summary = Summary()
    for outcome in outcomes(seeds, processes=processes, run=run):
        summary.add(outcome)
        on_outcome(outcome)
    return summary


def outcomes(seeds: Iterable[int], *, processes: int, run: Callable[[int], Outcome] = run_limited) -> Iterator[Outcome]:
    """The outcome of each, as they end."""
    if processes == 1:
        yield from map(run, seeds)
        return
    # Spawned: the simulation is single-threaded, whoever starts it may not be.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


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
