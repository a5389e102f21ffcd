"""Which broker a follower's session is of: `admit_replica`."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import StaleBrokerEpochError
from broker_runtime.contract.streams import FetchHello
from broker_runtime.services.fetch import ReplicaIdentity
from broker_runtime.services.replicas import admit_replica, is_broker
from broker_runtime.zookeeper.znodes import BrokerRegistration

BROKERS = {
    2: BrokerRegistration(host="h", port=1, epoch=5, instance="i", pid=1, secret="s3cret"),
    4: BrokerRegistration(host="h", port=1, epoch=5, instance="i", pid=1),
}


def test_follower_is_admitted_in_its_registration() -> None:
    hello = FetchHello(replica_id=2, broker_epoch=5, secret="s3cret")
    assert admit_replica(hello, BROKERS) == ReplicaIdentity(broker_id=2, broker_epoch=5)


@pytest.mark.parametrize(
    ("broker_id", "epoch", "told"),
    [(3, 5, "broker 3 is not registered here"), (2, 4, "registered with epoch 5"), (2, 6, "registered with epoch 5")],
)
def test_follower_is_refused_in_another_registration(broker_id: int, epoch: int, told: str) -> None:
    """An earlier life of a broker, one that is none, and one this broker has not heard of yet."""
    with pytest.raises(StaleBrokerEpochError, match=told):
        admit_replica(FetchHello(replica_id=broker_id, broker_epoch=epoch, secret="s3cret"), BROKERS)


@pytest.mark.parametrize(("broker_id", "secret"), [(2, ""), (2, "s3cre"), (2, "S3cret"), (2, "é"), (4, ""), (4, "no")])
def test_impostor_with_the_public_numbers_is_refused(broker_id: int, secret: str) -> None:
    """Id and epoch are in every answer about the cluster; also a registration without a secret admits nobody."""
    with pytest.raises(StaleBrokerEpochError, match="does not prove"):
        admit_replica(FetchHello(replica_id=broker_id, broker_epoch=5, secret=secret), BROKERS)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("2:s3cret", True),
        ("2:", False),
        ("4:", False),
        ("2", False),
        ("x:s3cret", False),
        ("²:s3cret", False),
        ("", False),
    ],
)
def test_calls_of_brokers_are_known_by_their_header(value: str, is_one: bool) -> None:
    """Only the right secret counts, and nothing that a stranger sends raises."""
    assert is_broker({"pylog-broker": [value]}, BROKERS) is is_one
    assert is_broker({"pylog-broker": ["2:no", value]}, BROKERS) is is_one


@pytest.mark.parametrize("value", ["9" * 5_000 + ":secret", "2:\ud800"], ids=["number too long for int", "no text"])
def test_header_that_no_broker_could_send_proves_nothing(value: str) -> None:
    """A caller chooses it; nothing is raised."""
    assert not is_broker({"pylog-broker": [value]}, BROKERS)
    assert not is_broker({}, BROKERS)


def test_secret_is_in_no_text() -> None:
    """Neither a log line nor a traceback shows it."""
    hello = FetchHello(replica_id=2, broker_epoch=5, secret="s3cret")
    assert "s3cret" not in f"{BROKERS[2]!r} {BROKERS} {hello!r}"
