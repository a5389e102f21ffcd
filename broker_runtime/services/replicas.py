"""Which broker a follower's fetch session is of."""

from __future__ import annotations

from collections.abc import Mapping

from broker_runtime.contract.errors import StaleBrokerEpochError
from broker_runtime.contract.requests import FetchHello
from broker_runtime.services.fetch import ReplicaIdentity
from broker_runtime.zookeeper.znodes import BrokerRegistration


def admit_replica(hello: FetchHello, brokers: Mapping[int, BrokerRegistration]) -> ReplicaIdentity:
    """The follower that opens a session with ``hello``; ``brokers``: who is registered, as far as is known here.

    Raises `StaleBrokerEpochError` unless it is one of them, in the registration it says; one that this broker has not
    heard of yet tries again.
    """
    known = brokers.get(hello.replica_id)
    if known is None or known.epoch != hello.broker_epoch:
        found = "is not registered" if known is None else f"is registered with epoch {known.epoch}"
        raise StaleBrokerEpochError(f"broker {hello.replica_id} {found} here, its session has {hello.broker_epoch}")
    return ReplicaIdentity(broker_id=hello.replica_id, broker_epoch=hello.broker_epoch)
