"""What a broker says to another beside fetching: whether its port refuses, whether it answers, and actions.

Rule: each call has a connection of its own and a time limit. Blocks for the network; callers hold no lock.
"""

from __future__ import annotations

import socket
from typing import Any, Final, TypeVar

from pyarrow import flight

from broker_runtime.contract.connection import FLIGHT_ERRORS, connect, translate
from broker_runtime.contract.errors import InvalidRequestError, PylogError
from broker_runtime.contract.flight import CONNECTION_OPTIONS, decode_result, encode_action
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
    client_id = "" if broker_id is None else broker_client_id(broker_id)
    options = flight.FlightCallOptions(timeout=timeout_s)
    client: Any = None
    try:
        client = connect(address, CONNECTION_OPTIONS)
        action = encode_action(name, request, client_id=client_id)
        bodies = [result.body for result in client.do_action(action, options)]
    except FLIGHT_ERRORS as error:
        translated = translate(error, address)
    else:
        if len(bodies) != 1:
            raise InvalidRequestError(f"{address} gave {len(bodies)} results for the action {name!r}")
        answer = decode_result(name, bodies[0])
        assert isinstance(answer, response)
        return answer
    finally:
        if client is not None:
            client.close()
    raise translated
