"""``python -m tests.simulation [--seeds N] [--first F] [--processes P]``: many seeds, and what they came to.

With ``--seed S`` one seed alone, with its whole trace. Ends with 1 if an invariant did not hold anywhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from tests.simulation.partitions import situations, variants
from tests.simulation.partitions.run import Outcome, run_seed
from tests.simulation.partitions.situations import PREFIX
from tests.simulation.simulator.pool import run_limited, run_seeds

_SHOWN_FAILURES = 3


def main(
    program: str = "python -m tests.simulation",
    target: str = "simulate",
    run: Callable[..., Outcome] = run_seed,
    run_in_pool: Callable[[int], Outcome] = run_limited,
    expected: Sequence[str] = situations.KEYS,
) -> int:
    """The exit status. ``target``: of make, for one seed; ``run``, ``run_in_pool``: what runs one. ``expected``: the
    situations that the seeds are to reach; those that never arose are told."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, help="run this one, and print its trace")
    parser.add_argument("--variant", help="with brokers broken in this way, by its name in variants.py")
    options = parser.parse_args()
    if options.variant is not None:
        run, run_in_pool = (partial(variants.run_broken, options.variant, each) for each in (run, run_in_pool))
    if options.seed is not None:
        return run_one(options.seed, run)
    began_s = time.monotonic()
    shown = 0

    def told(outcome: Outcome) -> None:
        nonlocal shown
        if outcome.failure is None:
            return
        print(f"\nseed {outcome.seed} FAILED: {outcome.failure}", flush=True)
        if shown < _SHOWN_FAILURES:
            shown += 1
            print(f"the end of its trace (all of it: make {target} SEED={outcome.seed}):\n{outcome.trace}", flush=True)

    summary = run_seeds(
        range(options.first, options.first + options.seeds),
        processes=options.processes,
        on_outcome=told,
        run=run_in_pool,
    )
    took_s = time.monotonic() - began_s
    events, simulated_s = summary.events / summary.seeds, summary.simulated_s / summary.seeds
    print(
        f"\n{summary.seeds} seeds in {took_s:.0f} s ({summary.seeds / took_s:.1f} per second), "
        f"each {events:.0f} events in {simulated_s:.0f} simulated seconds"
    )
    for what, count in sorted(summary.counts.items()):
        print(f"  {what:<72} {count:>10,}")
    never = [what.removeprefix(PREFIX) for what in expected if not summary.counts[what]]
    print("never happened: " + ("; ".join(never) or "nothing of what the seeds are to reach"))
    if summary.failures:
        print(f"FAILED: {len(summary.failures)} seeds: {sorted(outcome.seed for outcome in summary.failures)}")
        return 1
    print("every invariant held in every seed")
    return 0


def run_one(seed: int, run: Callable[..., Outcome]) -> int:
    """One seed, with everything that happened."""
    outcome = run(seed, keep_lines=1 << 20, keep_trace=True)
    print(outcome.trace)
    print(f"seed {seed}: {outcome.events} events, trace {outcome.digest}")
    if outcome.failure is not None:
        print(f"FAILED: {outcome.failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
