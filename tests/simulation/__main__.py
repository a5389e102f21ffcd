"""Runs the simulator: many seeds of a workload, and what they came to.

    python -m tests.simulation [--workload partitions|groups|transactions] [--seeds N] [--first F] [--processes P]
                               [--variant NAME]

With ``--seed S`` one seed alone, with its whole trace. Ends with 1 if an invariant did not hold anywhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from tests.simulation.simulator.outcome import Outcome
from tests.simulation.simulator.pool import run_seeds
from tests.simulation.simulator.situations import never_happened
from tests.simulation.simulator.workload import Workload
from tests.simulation.workloads import WORKLOADS

_SHOWN_FAILURES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="partitions")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, help="run this one, and print its trace")
    parser.add_argument("--variant", help="with the product broken in this way, by its name in variants.py")
    options = parser.parse_args(arguments)
    workload = WORKLOADS[options.workload]
    if options.variant is not None and options.variant not in workload.variants.names():
        parser.error(f"no variant {options.variant}; known are {', '.join(workload.variants.names())}")
    if options.seed is not None:
        return run_one(workload, options.seed, variant=options.variant)
    seeds = range(options.first, options.first + options.seeds)
    return run_many(workload, seeds, processes=options.processes, variant=options.variant)


def run_many(workload: Workload, seeds: Sequence[int], *, processes: int, variant: str | None) -> int:
    """All of them, with the traces of the first failures, the counts, and the situations that never happened."""
    began_s = time.monotonic()
    shown = 0

    def show(outcome: Outcome) -> None:
        nonlocal shown
        if outcome.failure is None:
            return
        print(f"\nseed {outcome.seed} FAILED: {outcome.failure}", flush=True)
        if shown < _SHOWN_FAILURES:
            shown += 1
            command = f"make {workload.make_target} SEED={outcome.seed}"
            print(f"the end of its trace (all of it: {command}):\n{outcome.trace}", flush=True)

    summary = run_seeds(workload, seeds, processes=processes, variant=variant, on_outcome=show)
    took_s = time.monotonic() - began_s
    events, simulated_s = summary.events / summary.seeds, summary.simulated_s / summary.seeds
    print(
        f"\n{summary.seeds} seeds in {took_s:.0f} s ({summary.seeds / took_s:.1f} per second), "
        f"each {events:.0f} events in {simulated_s:.0f} simulated seconds"
    )
    for what, count in sorted(summary.counts.items()):
        print(f"  {what:<72} {count:>10,}")
    never = never_happened(workload.situations, summary.counts)
    print("never happened: " + ("; ".join(never) or "nothing of what the seeds are to reach"))
    if summary.failures:
        print(f"FAILED: {len(summary.failures)} seeds: {sorted(outcome.seed for outcome in summary.failures)}")
        return 1
    print("every invariant held in every seed")
    return 0


def run_one(workload: Workload, seed: int, *, variant: str | None) -> int:
    """One seed, with everything that happened."""
    outcome = workload.run_seed(seed, variant=variant, keep_lines=1 << 20, keep_trace=True)
    print(outcome.trace)
    print(f"seed {seed}: {outcome.events} events, trace {outcome.digest}")
    if outcome.failure is not None:
        print(f"FAILED: {outcome.failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
