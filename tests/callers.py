"""Callers for tests, the simulation and everything else that calls services without a network."""

from __future__ import annotations

from broker_runtime.services.caller import BrokerCaller, Caller


def client(client_id: str = "test") -> Caller:
    """An ordinary client."""
    return Caller(client_id=client_id, address="127.0.0.1:4711")


def follower(broker_id: int, broker_epoch: int = 1) -> BrokerCaller:
    """A broker that has proved its identity."""
    return BrokerCaller(
        client_id=f"broker-{broker_id}", address=f"b{broker_id}:9192", broker_id=broker_id, broker_epoch=broker_epoch
    )


CLIENT = client()
