"""How a broker says that it has removed the logs of a topic that is gone.

Rule: it takes itself out of the list by compare-and-set, after the logs are removed; the last one takes the znode away.
So a deletion is carried out on brokers that were away, too.
"""

from __future__ import annotations

import msgspec

from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.session import Delete, Set, ZooKeeperClient
from broker_runtime.zookeeper.znodes import DeletedLogs, deleted_logs_path, from_json, to_json


def logs_are_removed(client: ZooKeeperClient, topic_id: bytes, broker_id: int) -> None:
    """Takes the broker out. Raises `ZooKeeperUnavailableError`."""
    path = deleted_logs_path(topic_id)

    def plan() -> Planned[None]:
        node = client.find(path)
        record = None if node is None else from_json(node.data, DeletedLogs, path)
        if node is None or record is None or broker_id not in record.brokers:
            return Planned(None)
        left = tuple(other for other in record.brokers if other != broker_id)
        if not left:
            return Planned(None, [Delete(path, node.version)])
        return Planned(None, [Set(path, to_json(msgspec.structs.replace(record, brokers=left)), node.version)])

    change(client, plan, what=path)
