"""What a broker says to another beside fetching: whether its port refuses, whether it answers, and actions.

Rule: each call has a connection of its own and a time limit. Blocks for the network; callers hold no lock.
"""

from __future__ import annotations

import socket
from typing import Final, TypeVar

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.flight import CONNECTION_OPTIONS
from broker_runtime.contract.link import Link
from broker_runtime.contract.requests import Message, MetadataRequest, MetadataResponse
from broker_runtime.contract.settings import Address

PROBE_LIMIT_S: Final = 1.0

_M = TypeVar("_M", bound=Message)


def broker_client_id(broker_id: int) -> str:
    """What a broker calls itself where it is another's client."""
    return f"broker-{broker_id}"


def port_refuses(host: str, port: int) -> bool:
    """Whether nobody listens there: the process is dead, not merely slow or out of reach. Blocks `PROBE_LIMIT_S`."""
    try:
        with socket.create_connection((host, port), PROBE_LIMIT_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def broker_answers(host: str, port: int) -> bool:
    """Whether a broker there serves at this moment. A process that stands still, a proxy or a port of another kind does
    not answer, though it may accept. Blocks `PROBE_LIMIT_S`."""
    try:
        call_peer(
            Address(host, port), "metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=PROBE_LIMIT_S
        )
    except PylogError:
        return False
    return True


def call_peer(
    address: Address, name: str, request: Message, response: type[_M], *, timeout_s: float, broker_id: int | None = None
) -> _M:
    """Does one action at another broker. Raises what it answered, or a network error.

    ``broker_id``: who asks, for the other's log.
    """
    link = Link(address, CONNECTION_OPTIONS)
    try:
        client_id = "" if broker_id is None else broker_client_id(broker_id)
        return link.act(name, request, response, client_id=client_id, timeout_s=timeout_s)
    finally:
        link.close()
