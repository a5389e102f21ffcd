"""Mutants of the product: each makes one line wrong, as somebody might by an oversight. See `harness`.

Rule: a text is in its file exactly once (a test of the fast suite names those that are not), and each mutant breaks one
promise, which its sentence states. Its tests are the few files that should kill it; survivors go through seeds.
"""

from __future__ import annotations

from typing import Final

from tests.mutation.client_mutants import CLIENT
from tests.mutation.controller_mutants import CONTROLLER
from tests.mutation.harness import Mutant
from tests.mutation.log_mutants import LOG
from tests.mutation.replication_mutants import REPLICATION
from tests.mutation.security_mutants import SECURITY
from tests.mutation.server_mutants import SERVER
from tests.mutation.transaction_mutants import TRANSACTIONS
from tests.mutation.where_mutants import WHERE

ALL: Final[tuple[Mutant, ...]] = (*LOG, *REPLICATION, *CONTROLLER, *SERVER, *TRANSACTIONS, *WHERE, *CLIENT, *SECURITY)
