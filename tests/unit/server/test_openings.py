"""Calls without a first message: how many there may be, and how long they may stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, SaslAuthenticationError, TooManyStreamsError
from broker_runtime.contract.flight import from_flight_error
from broker_runtime.security.credentials import Proof
from broker_runtime.server.openings import Headers, OpeningCall, Openings, Patience
from tests.clocks import ReadClock


@dataclass(frozen=True)
class Info:
    """What Flight reports about a call."""

    method: Any


PUT, EXCHANGE, ACTION = (
    Info(flight.FlightMethod.DO_PUT),
    Info(flight.FlightMethod.DO_EXCHANGE),
    Info(flight.FlightMethod.DO_ACTION),
)


class Clocked:
    """Openings with a clock of the test's."""

    def __init__(self, max_streams: int = 8) -> None:
        self.now_s = 100.0
        self.openings = Openings(max_streams, is_broker=_says_so, clock=ReadClock(lambda: self.now_s))

    def fill(self, count: int) -> list[OpeningCall]:
        return [self.openings.start_call((PUT, EXCHANGE)[n % 2], {}) for n in range(count)]


def _says_so(headers: Headers) -> bool:
    return bool(headers["broker"]) if "broker" in headers else False


def test_calls_above_the_limit_are_refused_with_a_typed_error_until_others_have_sent() -> None:
    """The refusal is retriable, and a refused call leaves nothing behind."""
    clocked = Clocked(max_streams=400)
    calls = clocked.fill(100)
    for _ in range(3):
        with pytest.raises(flight.FlightUnavailableError) as refused:
            clocked.openings.start_call(PUT, {})
        assert isinstance(from_flight_error(refused.value, "b:1"), TooManyStreamsError)
    calls[0].opened()
    calls[1].call_completed(None)
    assert len(clocked.fill(2)) == 2
    calls[0].call_completed(None)  # counted once
    assert len(clocked.openings) == 100


def test_actions_and_other_brokers_are_never_refused() -> None:
    """A flooded broker still answers administrators and feeds its followers."""
    clocked = Clocked()
    clocked.fill(clocked.openings.limit)
    clocked.openings.start_call(ACTION, {})
    clocked.openings.start_call(EXCHANGE, {"broker": ["secret"]})
    with pytest.raises(flight.FlightUnavailableError):
        clocked.openings.start_call(EXCHANGE, {"broker": []})


@pytest.mark.parametrize("call", [PUT, EXCHANGE, ACTION])
def test_full_broker_refuses_calls_of_any_method_except_those_of_brokers(call: Info) -> None:
    openings = Openings(8, is_broker=_says_so, is_full=lambda: True)
    with pytest.raises(flight.FlightUnavailableError) as refused:
        openings.start_call(call, {})
    assert isinstance(from_flight_error(refused.value, "b:1"), BrokerOverloadedError)
    openings.start_call(call, {"broker": ["secret"]})


def test_defect_in_the_check_shows_no_traceback() -> None:
    """Flight sends the traceback of any other exception to the peer."""
    with pytest.raises(flight.FlightUnavailableError, match=r"cannot begin \(ZeroDivisionError\)"):
        Openings(8, is_broker=lambda headers: bool(1 / 0)).start_call(PUT, {})


@pytest.mark.parametrize(("count", "limit_s"), [(1, 8.0), (16, 8.0), (17, 2.0), (32, 2.0)])
def test_patience_is_short_when_there_are_many(count: int, limit_s: float) -> None:
    """One silent call is a slow client; half of the limit is a flood, and no action excuses it."""
    clocked = Clocked()
    assert clocked.openings.patience() is None
    calls = clocked.fill(count)
    clocked.now_s += limit_s - 0.5
    assert clocked.openings.patience() is None
    clocked.now_s += 0.5
    assert clocked.openings.patience() == Patience(limit_s, actions_excuse=limit_s > 2, streams_excuse=True)
    for call in calls:
        call.opened()
    assert clocked.openings.patience() is None


def test_patience_is_short_when_calls_are_given_up_and_repeated_continually() -> None:
    """None of them waits for long, but together they keep others out; open streams are not to blame."""
    clocked = Clocked()
    found = []
    for _ in range(4):
        calls = clocked.fill(clocked.openings.limit)
        with pytest.raises(flight.FlightUnavailableError):
            clocked.openings.start_call(PUT, {})
        for call in calls:
            call.call_completed(None)
        found.append(clocked.openings.patience())
        clocked.now_s += 1.0
    assert found == [None, None, *2 * [Patience(2.0, actions_excuse=False, streams_excuse=True)]]
    assert clocked.openings.patience() is None


@pytest.mark.parametrize(("old", "are_stuck"), [(16, False), (17, True)])
def test_streams_excuse_nothing_when_many_calls_stay_silent_for_long(old: int, are_stuck: bool) -> None:
    """Many recent ones are another flood, on connections without streams."""
    clocked = Clocked()
    clocked.fill(old)
    clocked.now_s += 12
    clocked.fill(clocked.openings.limit - old)
    patience = clocked.openings.patience()
    assert patience is not None
    assert patience.streams_excuse is not are_stuck


def test_least_patience_has_no_more_than_any() -> None:
    """Silent calls and answers that nobody takes are watched by different eyes; the stricter one counts."""
    mild = Patience(8.0, actions_excuse=True, streams_excuse=True)
    strict = Patience(2.0, actions_excuse=False, streams_excuse=True)
    hard = Patience(3.0, actions_excuse=True, streams_excuse=False)
    assert Patience.least([None, None]) is None
    assert Patience.least([mild, None]) == mild
    assert Patience.least([mild, strict]) == strict
    assert Patience.least([strict, hard]) == Patience(2.0, actions_excuse=False, streams_excuse=False)


def test_call_counts_while_it_is_seen_who_it_is_and_no_longer_once_it_is_refused() -> None:
    """A password takes long to check: whoever guesses must not hold more threads than silent calls may."""
    openings = Clocked(max_streams=8).openings
    seen: list[int] = []

    def refuse(headers: Headers) -> Proof:
        seen.append(len(openings))
        raise SaslAuthenticationError("wrong")

    for _ in range(2 * openings.limit):
        with pytest.raises(flight.FlightUnauthenticatedError):
            openings.start_call(PUT, {}, refuse)
    assert set(seen) == {1}
    assert len(openings) == 0


def test_broker_is_asked_for_nothing_else_and_others_are_who_they_prove_to_be() -> None:
    openings = Clocked().openings
    alice = Proof(principal="alice", credential="c")
    assert openings.start_call(ACTION, {}, lambda headers: alice).proof == alice
    by_secret = openings.start_call(PUT, {"broker": [1]}, lambda headers: pytest.fail("a broker was asked"))
    assert by_secret.proof == Proof(is_broker=True)
