"""Clients without a network: a function answers their channels, and waiting moves their clock.

`FakeChannel` keeps the contract of the real one (tests/contract/test_channel.py) except for time limits: for an answer
that does not come in time the function raises `RequestTimedOutError` and moves the clock.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_runtime.contract.errors import ClosedError
from broker_runtime.contract.flight import decode_action, decode_result, encode_action, metadata
from broker_runtime.contract.link import Link
from broker_runtime.contract.requests import Message
from broker_runtime.contract.security import Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import Clock
from pyspark_log.client.connection import cluster as module
from pyspark_log.client.connection.channel import Channel, Network
from pyspark_log.client.connection.strangers import Peer

Answer = Callable[[Address, str, Message, float], Message]
"""Takes the address that is asked, the call's name, its request and its time limit in seconds."""


class FakeClock(Clock):
    """Moves only by waits and by what a test adds to ``now``."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


class FakeChannel:
    """Gets its answers, and the errors of brokers, from a function; requests and answers are encoded as on the wire."""

    def __init__(self, address: Address, answer: Answer, told: list[str] | None = None) -> None:
        """``told``: gets each cluster id that a broker is told."""
        self.address = address
        self._answer = answer
        self._told = [] if told is None else told
        self._is_closed = False
        self._is_connected = False

    def call(
        self, name: str, request: Message, response: type[Message], *, timeout_s: float, cluster_id: str = ""
    ) -> Message:
        self._told.append(cluster_id)
        if self._is_closed:
            raise ClosedError("the client was closed")
        self._is_connected = True
        decoded = decode_action(name, encode_action(name, request).body).request
        answer = decode_result(name, metadata(self._answer(self.address, name, decoded, timeout_s)))
        assert isinstance(answer, response)
        return answer

    def give_link(self) -> Link | None:
        is_connected, self._is_connected = self._is_connected, False
        return Link(self.address, []) if is_connected else None

    def close(self) -> None:
        self._is_closed = True


class FakeNetwork(Network):
    """``answer`` answers every call, or raises what a broker would. ``peers``: the service at each address without a
    broker.
    """

    def __init__(self, answer: Answer) -> None:
        self.clock: FakeClock = FakeClock()
        self.peers: dict[Address, Peer] = {}
        self.told: list[str] = []
        self._answer = answer

    def channel(self, address: Address, *, client_id: str, access: Access) -> Channel:
        return FakeChannel(address, self._answer, self.told)  # type: ignore[return-value]

    def who_is_at(self, address: Address, *, limit_s: float) -> Peer:
        return self.peers.get(address, Peer.REFUSED)


def answer_by(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    """Puts all clients that the test creates from now on into one network."""
    network = FakeNetwork(answer)
    monkeypatch.setattr(module, "NETWORK", network)
    return network
