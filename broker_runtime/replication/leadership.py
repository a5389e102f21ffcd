"""What the cluster has decided about one partition: who leads it, in which epoch, who is in sync; and what that makes
of this broker's replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What this broker's replica of a partition does."""

    NONE = "none"  # nothing: not assigned yet, the session lost, or the broker stopping
    LEADER = "leader"  # serves all reads and writes, and its followers
    FOLLOWER = "follower"  # serves no client; appends what the leader has to its log


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """One partition's state as read from ZooKeeper. Brokers by id.

    ``in_sync`` ⊆ ``replicas`` once a reassignment is complete; the two znodes are not read at the same moment.
    ``eligible``: not in sync, but known to have everything committed (`PartitionState.eligible`).
    """

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]
    eligible: frozenset[int] = frozenset()
    version: int = 0  # of the state's znode; rises with every change, within a leader epoch too
