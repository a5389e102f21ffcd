"""The workloads of the simulator, by name."""

from __future__ import annotations

from tests.simulation.groups.run import GROUPS
from tests.simulation.partitions.run import PARTITIONS
from tests.simulation.transactions.run import TRANSACTIONS

WORKLOADS = {workload.name: workload for workload in (PARTITIONS, GROUPS, TRANSACTIONS)}
