"""What the cluster has decided about one partition: who leads it, in which epoch, who is in sync; and what that makes
of this broker's replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What this broker's replica of a partition does."""

    NONE = "none"  # nothing: not told yet, the session lost, stopping
    LEADER = "leader"  # serves all reads and writes, and its followers
    FOLLOWER = "follower"  # serves nobody; what the leader has is appended to its log


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """One partition's state as read from ZooKeeper. Brokers by id.

    ``in_sync`` ⊆ ``replicas`` once a reassignment is through; the two znodes are not read in one moment. ``eligible``:
    not in sync, and known to have all that is committed (`PartitionState.eligible`).
    """

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]
    eligible: frozenset[int] = frozenset()
    version: int = 0  # of the state's znode; rises with every change, within a leader epoch too
