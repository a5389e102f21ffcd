"""One hosted partition, and all that a broker hosts: its role, its marks, and what its leader does.

    leadership        what the controller has decided about a partition, as a value; a replica's role
    in_sync           which replicas are in sync, and how far they are committed, as the leader knows: a pure machine
    divergence        where two replicas' logs part, by leader epochs (pure)
    hosted_replica    one replica's role, epoch and marks, under its lock
    role_lock         that lock, which waits no longer than its holder's role lasts
    partition         what its leader does: appends, acknowledgements, reads, followers' fetches
    registry          which partitions this broker hosts, and the typed refusals for all others

Rule: one lock per partition, and never a network call or a decode under it. No thread, no sleep, no clock, but for
`Partition.complete` and `FetchWaiter.wait`, which block.
"""

from broker_runtime.replication.hosted_replica import FetchWaiter, HostedReplica
from broker_runtime.replication.in_sync import (
    FollowerAnswer,
    FollowerFetch,
    InSyncChange,
    InSyncSet,
    LogMarks,
    advanced_high_watermark,
)
from broker_runtime.replication.leadership import Leadership, Role
from broker_runtime.replication.partition import Partition, PendingAppend
from broker_runtime.replication.registry import PartitionRegistry

__all__ = [
    "FetchWaiter",
    "FollowerAnswer",
    "FollowerFetch",
    "HostedReplica",
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
