"""The partitions that a broker hosts: their roles, their high watermarks, and what their leaders do.

    leadership      what the controller has decided about a partition, as a value; a replica's role
    in_sync         which replicas are in sync, and how far they are committed, as the leader knows: a pure machine
    divergence      where two replicas' logs diverge, by leader epochs (pure)
    role_lock       a partition's lock, to which a change of the role can be given without waiting for it
    appends         what a partition says of its appends and of its end, and what it needs of its disk
    partition       a hosted partition: its role, and the leader's appends, acknowledgements, reads, followers' fetches
    registry        which partitions this broker hosts, and the typed refusals for all others

Rule: one lock per partition, and never a network call or a decode under it. No thread and no sleep; only
`Partition.complete` and `Partition.delete_records` block for longer than a disk does.
"""

from broker_runtime.replication.appends import Disk, PendingAppend
from broker_runtime.replication.in_sync import (
    FollowerAnswer,
    FollowerFetch,
    InSyncChange,
    InSyncSet,
    LogMarks,
    advanced_high_watermark,
)
from broker_runtime.replication.leadership import Leadership, Role
from broker_runtime.replication.partition import Partition
from broker_runtime.replication.registry import PartitionRegistry

__all__ = [
    "Disk",
    "FollowerAnswer",
    "FollowerFetch",
    "InSyncChange",
    "InSyncSet",
    "Leadership",
    "LogMarks",
    "Partition",
    "PartitionRegistry",
    "PendingAppend",
    "Role",
    "advanced_high_watermark",
]
