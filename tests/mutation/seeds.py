"""``python -m tests.mutation.seeds partitions|groups|transactions N``: runs seeds one after the other, up to the first
that fails. Ends with 1 there, and prints the failure.
"""

from __future__ import annotations

import sys

from tests.simulation.simulator.pool import run_limited
from tests.simulation.workloads import WORKLOADS


def main(workload: str, count: int) -> int:
    """Returns the exit status."""
    for seed in range(1, count + 1):
        failure = run_limited(WORKLOADS[workload], seed).failure
        if failure is not None:
            print(f"seed {seed}: {failure.splitlines()[0]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
