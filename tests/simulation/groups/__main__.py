"""``python -m tests.simulation.groups [--seeds N] [--first F] [--processes P] [--seed S]``: consumer groups; as
`tests.simulation`.
"""

from __future__ import annotations

import sys

from tests.simulation.__main__ import main
from tests.simulation.groups import situations
from tests.simulation.groups.run import run_limited, run_seed

if __name__ == "__main__":
    sys.exit(main("python -m tests.simulation.groups", "simulate-groups", run_seed, run_limited, situations.ALL))
