"""Callers for tests, the simulation and everything else that calls services without a network."""

from __future__ import annotations

from broker_runtime.contract.streams import FetchRequest
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch import FetchAnswer, FetchService


def client(client_id: str = "test") -> Caller:
    """An ordinary client."""
    return Caller(client_id=client_id, address="127.0.0.1:4711")


def follower(broker_id: int, broker_epoch: int = 1) -> BrokerCaller:
    """A broker that has proved its identity."""
    return BrokerCaller(
        client_id=f"broker-{broker_id}", address=f"b{broker_id}:9192", broker_id=broker_id, broker_epoch=broker_epoch
    )


def fetch_once(service: FetchService, caller: BrokerCaller, request: FetchRequest) -> FetchAnswer:
    """What a follower gets in a session of one request. Its bytes are back in the budget."""
    session = service.follower_session(caller)
    try:
        answer = session.fetch(request)
    finally:
        session.close()
    answer.close()
    return answer


CLIENT = client()
