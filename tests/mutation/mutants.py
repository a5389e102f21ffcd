"""Mutants of the product: each makes one line wrong, as somebody might by forgetting it. See `harness`.

Rule: a text stands in its file exactly once (a test of the fast suite says which do not any more), and each breaks one
promise, which its sentence states. Tests are the few files that should find out; what they let live goes through seeds.
"""

from __future__ import annotations

from typing import Final

from tests.mutation.client_mutants import CLIENT
from tests.mutation.controller_mutants import CONTROLLER
from tests.mutation.harness import Mutant
from tests.mutation.log_mutants import LOG
from tests.mutation.replication_mutants import REPLICATION

ALL: Final[tuple[Mutant, ...]] = (*LOG, *REPLICATION, *CONTROLLER, *CLIENT)
