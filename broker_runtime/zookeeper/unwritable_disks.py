"""What a broker tells the cluster of its disks: which cannot take records at present, what is on them, which logs
are damaged, and which are kept as diverged.

Rule: told by the broker itself, under its epoch, so that what an earlier life told counts no more. Where all is well
there is no znode.
"""

from __future__ import annotations

from typing import Final

from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    ZooKeeperClient,
)
from broker_runtime.zookeeper.znodes import (
    DiskTroubles,
    announcing,
    broker_epoch_path,
    broker_unwritable_path,
    to_json,
)

_ATTEMPTS: Final = 3


def tell_disks(client: ZooKeeperClient, membership: Membership, disks: DiskTroubles | None) -> None:
    """``disks`` None: all is well. May be repeated.

    Raises `BadVersionError` if a later life of the broker has begun, `ZooKeeperUnavailableError`.
    """
    path = broker_unwritable_path(membership.broker_id)
    for attempt in range(1, _ATTEMPTS + 1):
        is_there = client.find(path) is not None
        change: Operation
        if disks is not None:
            change = Set(path, to_json(disks), ANY_VERSION) if is_there else Create(path, to_json(disks))
        elif is_there:
            change = Delete(path)
        else:
            return
        epoch = Check(broker_epoch_path(membership.broker_id), membership.epoch)
        try:
            client.transaction([epoch, change, announcing(())], session=membership.session)
        except (NodeExistsError, NoNodeError):
            if attempt == _ATTEMPTS:
                raise
        else:
            return
