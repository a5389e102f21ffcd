"""A broker's reports about its disks when ZooKeeper answers late or not at all."""

import pytest

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.membership.disk_room import write_disks
from broker_runtime.zookeeper.guarded import GuardFailedError
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import (
    PERMANENT,
    BrokerEpoch,
    DiskTroubles,
    broker_epoch_path,
    broker_unwritable_path,
    to_json,
)

PATH = broker_unwritable_path(1)


class Late:
    """Its first transaction arrives before its second, and breaks the connection."""

    def __init__(self, client):
        self._client = client
        self.is_connected = True
        self._late = None
        self._is_first = True

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        if self._is_first:
            self._is_first = self.is_connected = False
            self._late = operations
            raise ZooKeeperUnavailableError("no answer")
        late, self._late = self._late, None
        if late is not None:
            self._client.transaction(late, session=session)
        return self._client.transaction(operations, session=session)


@pytest.fixture
def client():
    client = MemoryZooKeeper().client()
    for path in PERMANENT:
        client.ensure_path(path)
    client.create(broker_epoch_path(1), to_json(BrokerEpoch(epoch=0)))
    return client


def membership(client, epoch=0):
    return Membership(broker_id=1, epoch=epoch, session=client.session_id)


def test_late_write_does_not_restore_a_resolved_disk_failure(client):
    """Otherwise nobody would remove the znode in this registration."""
    late, doubts = Late(client), set()
    with pytest.raises(ZooKeeperUnavailableError):
        write_disks(late, membership(client), DiskTroubles(epoch=0), doubts=doubts)
    late.is_connected = True
    write_disks(late, membership(client), None, doubts=doubts)
    assert late._late is None
    assert client.find(PATH) is None


def test_earlier_registration_reports_nothing(client):
    with pytest.raises(GuardFailedError):
        write_disks(client, membership(client, epoch=7), DiskTroubles(epoch=7))
    assert client.find(PATH) is None
