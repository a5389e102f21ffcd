"""How a broker says that it has removed the logs of a topic that is gone.

Rule: it takes itself out of the list by compare-and-set, after the logs are removed; the last one takes the znode away.
So a deletion is carried out on brokers that were away, too.
"""

from __future__ import annotations

import msgspec

from broker_runtime.zookeeper.session import BadVersionError, NoNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import DeletedLogs, deleted_logs_path, from_json, to_json


def logs_are_removed(client: ZooKeeperClient, topic_id: bytes, broker_id: int) -> bool:
    """Takes the broker out. False: another broker did so in between; try again. Raises `ZooKeeperUnavailableError`."""
    path = deleted_logs_path(topic_id)
    node = client.find(path)
    if node is None:
        return True
    record = from_json(node.data, DeletedLogs, path)
    left = tuple(other for other in record.brokers if other != broker_id)
    try:
        if not left:
            client.delete(path, version=node.version)
        elif left != record.brokers:
            client.set(path, to_json(msgspec.structs.replace(record, brokers=left)), version=node.version)
    except (BadVersionError, NoNodeError):
        return False
    return True
