"""One hosted partition, and all that a broker hosts: leading it, following its leader.

    leadership        what the controller has decided about a partition, as a value; a replica's role
    high_watermark    how far a partition is committed (pure)
    in_sync           which replicas are in sync, as the leader knows: a pure machine
    divergence        where two replicas' logs part, by leader epochs (pure)
    hosted_replica    one replica's role, epoch and marks, under its lock
    partition         what its leader does: appends, acknowledgements, reads, followers' fetches
    follower_fetch    a follower's fetch and its answer, as values
    follower          what is asked of one leader, and what is done with its answers: a machine without a network
    follower_log      what that does to a log: append, cut, begin anew, take over the marks
    follower_plan     whom this broker follows: hosting tells it, whoever fetches carries it out
    throttle          how fast replicas that are not in sync are fetched
    waiters           threads that wait until one of several partitions has news
    registry          which partitions this broker hosts, and the typed refusals for all others

Rule: one lock per partition, and never a network call or a decode under it. No thread, no sleep, no clock, but for
`Partition.complete` and `FetchWaiter.wait`, which block.
"""

from broker_runtime.replication.follower import FollowerFetcher
from broker_runtime.replication.follower_fetch import FollowerAnswer, FollowerFetch
from broker_runtime.replication.follower_plan import FollowerPlan
from broker_runtime.replication.high_watermark import advanced_high_watermark
from broker_runtime.replication.hosted_replica import HostedReplica
from broker_runtime.replication.in_sync import InSyncChange, InSyncSet, LogMarks
from broker_runtime.replication.leadership import Leadership, Role
from broker_runtime.replication.partition import Partition, PendingAppend
from broker_runtime.replication.registry import PartitionRegistry
from broker_runtime.replication.throttle import ReplicationThrottle
from broker_runtime.replication.waiters import FetchWaiter

__all__ = [
    "FetchWaiter",
    "FollowerAnswer",
    "FollowerFetch",
    "FollowerFetcher",
    "FollowerPlan",
    "HostedReplica",
    "InSyncChange",
    "InSyncSet",
    "Leadership",
    "LogMarks",
    "Partition",
    "PartitionRegistry",
    "PendingAppend",
    "ReplicationThrottle",
    "Role",
    "advanced_high_watermark",
]
