"""Which broker a follower's fetch session is of, and which calls are other brokers'.

Broker ids and epochs are in every answer about the cluster, so they prove nothing: what a follower says it holds moves
the high watermark. The proof is the secret of its registration, which only ZooKeeper and that broker have.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from broker_runtime.contract.errors import StaleBrokerEpochError
from broker_runtime.contract.flight import BROKER_HEADER
from broker_runtime.contract.streams import FetchHello
from broker_runtime.services.fetch import ReplicaIdentity
from broker_runtime.zookeeper.znodes import BrokerRegistration

_MOST_DIGITS: Final = 10  # of a broker's id; `int` refuses thousands


def admit_replica(hello: FetchHello, brokers: Mapping[int, BrokerRegistration]) -> ReplicaIdentity:
    """The follower that opens a session with ``hello``; ``brokers``: who is registered, as far as is known here.

    Raises `StaleBrokerEpochError` unless it is one of them, in the registration it says, and proves it; one that this
    broker has not heard of yet tries again.
    """
    known = brokers.get(hello.replica_id)
    if known is None or known.epoch != hello.broker_epoch:
        found = "is not registered" if known is None else f"is registered with epoch {known.epoch}"
        raise StaleBrokerEpochError(f"broker {hello.replica_id} {found} here, its session has {hello.broker_epoch}")
    if not _is_secret_of(known, hello.secret):
        raise StaleBrokerEpochError(f"this session does not prove that it is of broker {hello.replica_id}")
    return ReplicaIdentity(broker_id=hello.replica_id, broker_epoch=hello.broker_epoch)


def is_broker(headers: Mapping[str, Sequence[object]], brokers: Mapping[int, BrokerRegistration]) -> bool:
    """Whether a call's headers prove that it is a registered broker's. Never raises."""
    for value in headers.get(BROKER_HEADER, ()):
        broker_id, _, secret = str(value).partition(":")
        is_number = broker_id.isascii() and broker_id.isdecimal() and len(broker_id) <= _MOST_DIGITS
        known = brokers.get(int(broker_id)) if is_number else None
        if known is not None and _is_secret_of(known, secret):
            return True
    return False


def _is_secret_of(known: BrokerRegistration, secret: str) -> bool:
    # A registration without a secret proves nothing, whatever is said.
    return bool(known.secret) and hmac.compare_digest(known.secret.encode(), secret.encode(errors="replace"))
