"""Which broker a follower's session is of: `admit_replica`."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import StaleBrokerEpochError
from broker_runtime.contract.requests import FetchHello
from broker_runtime.services.fetch import ReplicaIdentity
from broker_runtime.services.replicas import admit_replica
from broker_runtime.zookeeper.znodes import BrokerRegistration

BROKERS = {
    2: BrokerRegistration(
        host="h", port=1, epoch=5, instance="i", pid=1, boot_id="", software_version="0", registered_at_ms=0
    )
}


def test_follower_is_admitted_in_its_registration() -> None:
    hello = FetchHello(replica_id=2, broker_epoch=5)
    assert admit_replica(hello, BROKERS) == ReplicaIdentity(broker_id=2, broker_epoch=5)


@pytest.mark.parametrize(
    ("broker_id", "epoch", "told"),
    [(3, 5, "broker 3 is not registered here"), (2, 4, "registered with epoch 5"), (2, 6, "registered with epoch 5")],
)
def test_follower_is_refused_in_another_registration(broker_id: int, epoch: int, told: str) -> None:
    """An earlier life of a broker, one that is none, and one this broker has not heard of yet."""
    with pytest.raises(StaleBrokerEpochError, match=told):
        admit_replica(FetchHello(replica_id=broker_id, broker_epoch=epoch), BROKERS)
