"""What a broker says to another beside fetching: whether its port refuses, whether it answers, and actions.

Rule: everything here has a time limit and blocks for the network; callers hold no lock.
"""

from __future__ import annotations

import socket
import threading
from typing import Final, TypeVar

from broker_runtime.contract.errors import ClosedError, NetworkError, PylogError, SaslAuthenticationError
from broker_runtime.contract.flight import CONNECTION_OPTIONS
from broker_runtime.contract.link import Link
from broker_runtime.contract.requests import Message, MetadataRequest, MetadataResponse
from broker_runtime.contract.security import NOT_KNOWN_YET, UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline

PROBE_LIMIT_S: Final = 1.0

_KEPT_S: Final = 10.0  # an idle connection; an older one may lead nowhere, or to a broker that left the cluster

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


def broker_answers(host: str, port: int, *, access: Access = UNPROTECTED) -> bool:
    """Whether a broker there serves at this moment. A process that stands still, a proxy or a port of another kind does
    not answer, though it may accept. Blocks `PROBE_LIMIT_S`. One that refuses who asks does answer.

    Asks over a connection of its own: that an earlier one is broken says nothing of this moment.
    """
    link = Link(Address(host, port), CONNECTION_OPTIONS, access=access)
    try:
        link.act("metadata", MetadataRequest(topics=()), MetadataResponse, client_id="", timeout_s=PROBE_LIMIT_S)
    except SaslAuthenticationError:
        return True
    except PylogError as error:
        return error.message == NOT_KNOWN_YET
    finally:
        link.close()
    return True


class Peers:
    """Actions at other brokers. The connection to each is kept for the next call, at most one per peer. Thread-safe."""

    def __init__(self, broker_id: int, *, access: Access = UNPROTECTED, clock: Clock = CLOCK) -> None:
        """``broker_id``: who asks, for the others' logs. ``access``: how brokers reach each other."""
        self.broker_id = broker_id
        self.access = access
        self._clock = clock
        self._lock = threading.Lock()
        self._links: dict[Address, Link] = {}
        self._is_closed = False

    def call(self, address: Address, name: str, request: Message, response: type[_M], *, timeout_s: float) -> _M:
        """Does one action at another broker and waits for its response, at most ``timeout_s``. Raises as `Link.act`.

        Only for actions that may be done twice. A connection that was kept may have broken since (its peer was
        restarted): a call that finds it so is made once more, over a new one.
        """
        deadline = Deadline(timeout_s, clock=self._clock)
        client_id = broker_client_id(self.broker_id)
        link, was_kept = self._link_to(address)
        try:
            return link.act(name, request, response, client_id=client_id, timeout_s=timeout_s)
        except NetworkError:
            if not was_kept:
                raise
        return link.act(name, request, response, client_id=client_id, timeout_s=deadline.remaining_s())

    def close(self) -> None:
        """Ends all connections, each when the last call on it has ended. Calls that come later raise `ClosedError`.
        Idempotent."""
        with self._lock:
            self._is_closed = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()

    def _link_to(self, address: Address) -> tuple[Link, bool]:
        """The link to the peer, and whether it was used before. Those that nobody has used for long are closed."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("this broker is stopping")
            idle = [self._links.pop(at) for at, link in list(self._links.items()) if link.silent_for_s > _KEPT_S]
            was_kept = address in self._links
            if not was_kept:
                self._links[address] = Link(address, CONNECTION_OPTIONS, access=self.access, clock=self._clock)
            link = self._links[address]
            link.heard()  # its silence is the time since its last use
        for each in idle:
            each.close()
        return link, was_kept
