"""Who this broker and its cluster are: the cluster's id in ZooKeeper, the instance's in a data directory.

The first broker creates the cluster's id. The instance's id is created with the first data directory. It distinguishes
a broker's own killed predecessor from another broker that was given the same number, and from a copy of its directory:
a copy may run beside the original, and two brokers that each take the other for dead would replace each other for ever.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.files import FileSystem, read_file, replace_file
from broker_runtime.zookeeper.session import NodeExistsError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import CLUSTER_ID, ClusterIdentity, from_json, to_json

INSTANCE_NAME = ".instance"


def cluster_id(client: ZooKeeperClient) -> str:
    """The cluster's id, created if this is the first broker. Raises `ZooKeeperUnavailableError`."""
    client.ensure_path(CLUSTER_ID.rpartition("/")[0])
    node = client.find(CLUSTER_ID)
    if node is None:
        with contextlib.suppress(NodeExistsError):  # another first broker was quicker: its id counts
            client.create(CLUSTER_ID, to_json(ClusterIdentity(cluster_id=str(uuid.uuid4()))))
        node = client.get(CLUSTER_ID)
    return from_json(node.data, ClusterIdentity, CLUSTER_ID).cluster_id


def instance_id(files: FileSystem, directory: Path) -> str:
    """The id in the data directory, created if there is none; the caller holds its lock. A copy has another id.

    Raises `CorruptRecordError`, `OSError`.
    """
    path = directory / INSTANCE_NAME
    data = read_file(files, path)
    if data is None:
        data = str(uuid.uuid4()).encode() + b"\n"
        replace_file(files, path, data)
    try:
        made = uuid.UUID(bytes(data).decode().strip())
    except ValueError:
        raise CorruptRecordError(f"{path} is damaged: it should hold a UUID. Remove it to have one made") from None
    return f"{made}:{files.inode(path)}"
