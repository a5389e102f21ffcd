"""``python -m tests.mutation [--only NAME] [--jobs N] [--seeds N]``: which mutants of the product do the tests kill?

Each is applied in a copy of the tree; see `mutants` for the list and `harness` for how they are judged. Ends with 1 if
one survives without a known reason, with 2 if one cannot be judged; the others are judged all the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.mutation.harness import exit_status, judge_all, line_of, table
from tests.mutation.mutants import ALL

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutant alone; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time: two at most")
    parser.add_argument("--seeds", type=int, default=100, help="of the simulation, for what the fast tests let live")
    parser.add_argument("--list", action="store_true", help="name them, and what each breaks")
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in ALL}
    unknown = sorted(set(options.only or ()) - known.keys())
    if unknown:
        parser.error(f"no mutant {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [known[name] for name in options.only] if options.only else list(ALL)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:<45} {mutant.breaks}")
        return 0
    verdicts = judge_all(
        ROOT,
        chosen,
        jobs=min(options.jobs, 2),
        seeds=options.seeds,
        on_verdict=lambda each: print(line_of(each), flush=True),
    )
    print(f"\n{table(verdicts)}")
    return exit_status(verdicts)


if __name__ == "__main__":
    sys.exit(main())
