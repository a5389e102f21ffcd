"""What a broker tells the cluster of its disks: which cannot take records at present, what is on them, which logs
are damaged, and which are kept as diverged.

Rule: told by the broker itself, under its epoch, so that what an earlier life told counts no more. Where all is well
there is no znode.
"""

from __future__ import annotations

from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import Create, Delete, Set, ZooKeeperClient
from broker_runtime.zookeeper.znodes import DiskTroubles, announcing, broker_unwritable_path, to_json


def tell_disks(
    client: ZooKeeperClient, membership: Membership, disks: DiskTroubles | None, *, doubts: set[str] | None = None
) -> None:
    """``disks`` None: all is well. May be repeated. ``doubts``: see `guarded.change`.

    Raises `GuardFailedError` if a later life of the broker has begun, `ZooKeeperUnavailableError`.
    """
    path = broker_unwritable_path(membership.broker_id)

    def plan() -> Planned[None]:
        node = client.find(path)
        if disks is None:
            return Planned(None) if node is None else Planned(None, [Delete(path, node.version), announcing(())])
        data = to_json(disks)
        told = Create(path, data) if node is None else Set(path, data, node.version)
        return Planned(None, [told, announcing(())])

    change(client, plan, what=path, guard=membership.guard, doubts=doubts)
