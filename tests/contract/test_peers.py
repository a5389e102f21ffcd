"""What a broker's calls to others may rely on, over real connections: they share one per peer, and a broken one is
not used again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    NetworkError,
    NotControllerError,
    PylogError,
    RequestTimedOutError,
)
from broker_runtime.contract.requests import FindCoordinatorRequest, FindCoordinatorResponse
from broker_runtime.contract.settings import Address
from broker_runtime.following.peers import Peers, broker_answers
from tests.contract.breaking_peer import ANSWER, LIMIT_S, Relay, Server
from tests.contract.test_link import Asking
from tests.unit.client.channels import FakeClock
from tests.waiting import SOON_S, wait_until


class Call:
    """A call to one peer."""

    def __init__(self, peers: Peers, address: Address) -> None:
        self._peers = peers
        self._address = address

    def ask(self, timeout_s: float = LIMIT_S) -> object:
        request = FindCoordinatorRequest(group_id="g")
        return self._peers.call(
            self._address, "find_coordinator", request, FindCoordinatorResponse, timeout_s=timeout_s
        )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def peers(clock: FakeClock) -> Iterator[Peers]:
    peers = Peers(1, clock=clock)
    yield peers
    peers.close()


def test_calls_of_a_peer_share_one_connection(peers: Peers, relay: Relay, server: Server) -> None:
    """This holds one after the other and concurrently; another peer has its own."""
    call = Call(peers, relay.address)
    assert [call.ask(), call.ask()] == [ANSWER, ANSWER]
    server.speaks.clear()
    asked = server.asked
    both = [Asking(call), Asking(call)]
    wait_until(lambda: server.asked == asked + 2, "both were asked", SOON_S)
    server.speaks.set()
    assert [each.result() for each in both] == [ANSWER, ANSWER]
    assert relay.accepted == 1
    other = Relay(server.port)
    assert Call(peers, other.address).ask() == ANSWER
    assert (relay.accepted, other.accepted) == (1, 1)
    other.cut()


def test_call_names_its_caller(peers: Peers, relay: Relay, server: Server) -> None:
    """The other broker's log names it."""
    Call(peers, relay.address).ask()
    assert server.client_ids == ["broker-1"]


def test_refusal_keeps_the_connection(peers: Peers, relay: Relay, server: Server) -> None:
    """A refusal is an answer."""
    call = Call(peers, relay.address)
    server.refusal = NotControllerError("broker 2 is")
    with pytest.raises(NotControllerError):
        call.ask()
    server.refusal = None
    assert call.ask() == ANSWER
    assert relay.accepted == 1


def test_connection_that_broke_during_a_call_is_replaced_by_the_next(
    peers: Peers, relay: Relay, server: Server
) -> None:
    call = Call(peers, relay.address)
    server.speaks.clear()
    asking = Asking(call)
    wait_until(lambda: server.asked == 1, "the peer was asked", SOON_S)
    relay.reset()
    assert isinstance(asking.result(), NetworkError)
    server.speaks.set()
    assert call.ask() == ANSWER
    assert relay.accepted == 2
    wait_until(lambda: relay.open == 1, "the broken connection is gone", SOON_S)


def test_connection_without_answers_is_replaced_by_the_next(peers: Peers, relay: Relay, server: Server) -> None:
    """It may lead to a machine that is gone."""
    call = Call(peers, relay.address)
    server.speaks.clear()
    with pytest.raises(RequestTimedOutError):
        call.ask(0.2)
    server.speaks.set()
    assert call.ask() == ANSWER
    assert relay.accepted == 2


def test_peer_that_restarted_is_reached_by_the_next_call(peers: Peers, relay: Relay) -> None:
    """The connection broke while nobody used it: no call fails because of it, whether the break was noticed or not."""
    call = Call(peers, relay.address)
    call.ask()
    for _ in range(20):
        relay.reset()
        assert call.ask() == ANSWER


def test_peer_that_restarted_after_it_refused_is_reached_at_once(peers: Peers, server: Server) -> None:
    """Nothing of its absence is remembered: gRPC by itself would wait before it connects again."""
    down = Relay(server.port)
    down.cut()
    call = Call(peers, down.address)
    for _ in range(3):
        with pytest.raises(BrokerUnavailableError):
            call.ask()
    up = Relay(server.port, down.address.port)
    assert call.ask() == ANSWER
    up.cut()


def test_idle_connection_is_released(peers: Peers, relay: Relay, server: Server, clock: FakeClock) -> None:
    """Peers leave, and come back at other addresses."""
    Call(peers, relay.address).ask()
    clock.now += 9.0
    Call(peers, relay.address).ask()
    clock.now += 9.0
    other = Relay(server.port)
    Call(peers, other.address).ask()
    assert relay.open == 1
    clock.now += 2.0
    Call(peers, other.address).ask()
    wait_until(lambda: relay.open == 0, "the connection to the first is gone", SOON_S)
    assert other.open == 1
    assert Call(peers, relay.address).ask() == ANSWER
    other.cut()


def test_close_ends_all_connections_and_calls(peers: Peers, relay: Relay) -> None:
    """This happens when the broker stops."""
    call = Call(peers, relay.address)
    call.ask()
    kept = list(peers._links.values())  # even if something else refers to one
    peers.close()
    peers.close()
    with pytest.raises(ClosedError, match="this broker is stopping"):
        call.ask()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)
    assert len(kept) == 1


def test_current_call_is_answered_when_peers_are_closed(peers: Peers, relay: Relay, server: Server) -> None:
    call = Call(peers, relay.address)
    server.speaks.clear()
    asking = Asking(call)
    wait_until(lambda: server.asked == 1, "the peer was asked", SOON_S)
    peers.close()
    server.speaks.set()
    assert asking.result() == ANSWER
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)


def test_refusing_breaking_or_foreign_peer_does_not_answer_a_probe(relay: Relay, server: Server) -> None:
    """A probe has a connection of its own, which it releases."""
    assert not broker_answers(*relay.address), "a Flight server without this action"
    server.refusal = PylogError("broken")
    assert not broker_answers(*relay.address)
    wait_until(lambda: relay.open == 0, "no connection is kept", SOON_S)
    relay.cut()
    assert not broker_answers(*relay.address)


def test_frozen_broker_does_not_answer_a_probe(relay: Relay, server: Server) -> None:
    """This holds although it accepts connections, and accepted calls before."""
    server.speaks.clear()
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(broker_answers(*relay.address)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert outcome == [False]
