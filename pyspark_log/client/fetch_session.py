"""A fetch session with one broker (`FetchExchange`), as it lives in a process that may fork.

Rule: requests and responses go in lockstep, from one thread; any thread may `cancel`.
"""

from __future__ import annotations

from broker_runtime.contract.connection import Fetched, FetchExchange
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchRequest
from pyspark_log.client import forking
from pyspark_log.client.channel import abandon

__all__ = ["FetchSession", "Fetched"]


class FetchSession:
    """One open session, on a connection of its own."""

    def __init__(self, address: Address, hello: FetchHello, *, uses_proxy: bool = False) -> None:
        """Opens it; a broker that is not there is noticed by the first `fetch`, at the latest. ``uses_proxy``: as for
        `connect`."""
        self.address = address
        self._exchange = FetchExchange(address, uses_proxy=uses_proxy)
        forking.register(self)
        with forking.flight_use():
            self._exchange.open(hello)

    @property
    def silent_for_s(self) -> float:
        """How long the broker has owed us a word; 0 while it owes none."""
        return self._exchange.silent_for_s

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called, or the process forked."""
        return self._exchange.is_cancelled

    def fetch(self, request: FetchRequest) -> Fetched:
        """As `FetchExchange.fetch`."""
        with forking.flight_use():
            return self._exchange.fetch(request)

    def cancel(self) -> None:
        """Ends the session; a blocked `fetch` raises `NetworkError`. Any thread."""
        self._exchange.cancel()

    def close(self) -> None:
        """Ends the session and its connection. By the thread that fetches, or after it ended."""
        self._exchange.close()
        forking.unregister(self)

    def _interrupt_for_fork(self) -> None:
        """See `forking`: ends the session; its owner opens another."""
        self.cancel()

    def _drop_for_fork(self) -> None:
        """See `forking`."""
        self._exchange.drop()

    def _after_fork_in_child(self) -> None:
        """See `forking`."""
        abandon(self._exchange)
        self._exchange = FetchExchange(self.address)
        self._exchange.cancel()
