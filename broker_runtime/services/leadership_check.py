"""Whether a broker still leads, asked of ZooKeeper: before it says that records which a client knows of are not there.

A broker learns of its successor some milliseconds after the election, and one that stood still learns of it when it
continues. Until then its log ends earlier than what the successor has committed and others have read. A reader that
comes from there would be told that its offset does not exist, and would begin again at the log's first record.

Rule: only such answers are checked, as each costs a write to ZooKeeper; one at a time, however many clients ask.
"""

from __future__ import annotations

import threading
from typing import Final

from broker_runtime.contract.errors import (
    CorruptRecordError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    PylogError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.waiting import Deadline
from broker_runtime.replication import Partition
from broker_runtime.zookeeper.guarded import barrier
from broker_runtime.zookeeper.session import ZooKeeperClient
from broker_runtime.zookeeper.znodes import PartitionState, from_json, partition_state_path

_TURN_LIMIT_S: Final = 3.0
_AWAY_S: Final = 1.0  # after it did not answer ZooKeeper is not asked for so long: one fetch may have many such offsets


class LeadershipCheck:
    """The check, for the partitions of one broker. Thread-safe."""

    def __init__(self, client: ZooKeeperClient, broker_id: int) -> None:
        self._client = client
        self._broker_id = broker_id
        self._turn = threading.Lock()
        self._away = Deadline(0.0)

    def verified(self, partition: Partition, leader_epoch: int, error: OffsetOutOfRangeError) -> PylogError:
        """The error to answer with where this broker, as leader in ``leader_epoch``, found that an offset does not
        exist: ``error`` if it led still after that, else one that makes the client ask again, or ask another.

        Blocks up to 3 s for other checks, and for ZooKeeper as its client does.
        """
        doubt = OffsetNotAvailableError(
            f"{error.message}; but whether broker {self._broker_id} still leads {partition} is not known at present"
        )
        if not self._client.is_connected or not self._away.expired or not self._turn.acquire(timeout=_TURN_LIMIT_S):
            return doubt
        path = partition_state_path(partition.topic, partition.partition)
        try:
            barrier(self._client)
            node = self._client.find(path)
            state = None if node is None else from_json(node.data, PartitionState, path)
        except (ZooKeeperUnavailableError, CorruptRecordError):
            self._away = Deadline(_AWAY_S)
            return doubt
        finally:
            self._turn.release()
        if state is None or (state.leader, state.leader_epoch) != (self._broker_id, leader_epoch):
            return NotLeaderOrFollowerError(f"{partition} is not led by broker {self._broker_id} any more")
        return error
