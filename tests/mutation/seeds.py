"""``python -m tests.mutation.seeds cluster|groups N``: runs seeds one after the other, up to the first that fails.
Ends with 1 there, and prints the failure.
"""

from __future__ import annotations

import importlib
import sys

_RUNS = {"cluster": "tests.simulation.pool", "groups": "tests.simulation.groups.run"}


def main(workload: str, count: int) -> int:
    """Returns the exit status."""
    run = importlib.import_module(_RUNS[workload]).run_limited
    for seed in range(1, count + 1):
        failure = run(seed).failure
        if failure is not None:
            print(f"seed {seed}: {failure.splitlines()[0]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
