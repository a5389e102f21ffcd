"""One broker as one client sees it: actions with a time limit; and the seam between a client and the network.

Actions share one connection; each stream has a connection of its own (`broker_runtime.contract.flight` says why). A
connection that broke is replaced by the next call, so a broker that restarts is back at once. So is one that a read
took over.
"""

from __future__ import annotations

from typing import TypeVar

from broker_runtime.contract.flight import CONNECTION_OPTIONS
from broker_runtime.contract.link import Link
from broker_runtime.contract.requests import Message
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import CLOCK, Clock
from pyspark_log.client.connection.strangers import Peer, who_is_at

_M = TypeVar("_M", bound=Message)


class Channel:
    """The connection to one broker for actions. Thread-safe. Streams are opened by their own classes from `address`."""

    def __init__(self, address: Address, *, client_id: str, access: Access = UNPROTECTED) -> None:
        """Connects to nothing yet. ``access``: see `open_client`."""
        self.address = address
        self.client_id = client_id
        self._access = access
        self._link = self._new_link()

    def call(self, name: str, request: Message, response: type[_M], *, timeout_s: float, cluster_id: str = "") -> _M:
        """Does one action and waits for its response. Arguments, and errors, as of `Link.act`."""
        return self._link.act(
            name, request, response, client_id=self.client_id, cluster_id=cluster_id, timeout_s=timeout_s
        )

    def give_link(self) -> Link | None:
        """The link, if it is connected: it is the caller's from now on, and the next call makes another connection.

        Not to be called while a call is under way.
        """
        if not self._link.is_connected:
            return None
        given, self._link = self._link, self._new_link()
        return given

    def close(self) -> None:
        """Ends the connection when the last call has ended. Calls that come later raise `ClosedError`. Idempotent."""
        self._link.close()

    def _new_link(self) -> Link:
        return Link(self.address, CONNECTION_OPTIONS, access=self._access)


class Network:
    """How a `Cluster` reaches the world: channels, a look at who is at an address, and the clock.

    The seam where tests put a network of their own.
    """

    clock: Clock = CLOCK

    def channel(self, address: Address, *, client_id: str, access: Access) -> Channel:
        """A new channel to a broker. Connects to nothing yet."""
        return Channel(address, client_id=client_id, access=access)

    def who_is_at(self, address: Address, *, limit_s: float) -> Peer:
        """Looks who is at an address where no broker answers, for ``limit_s`` at most."""
        return who_is_at(address, limit_s=limit_s)
