"""What a client may rely on of a channel to a broker, checked for the real one and for the one in unit tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyarrow import flight

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    InvalidRequestError,
    NotControllerError,
    PylogError,
    RequestTimedOutError,
)
from broker_runtime.contract.flight import decode_action, metadata, to_flight_error
from broker_runtime.contract.requests import (
    CreatePartitionsRequest,
    Empty,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    Message,
)
from broker_runtime.contract.settings import Address
from pyspark_log.client.connection.channel import Channel
from tests.unit.client.channels import Answer, FakeChannel

LIMIT_S = 20.0
QUESTION = FindCoordinatorRequest(group_id="g")
ANSWER = FindCoordinatorResponse(broker_id=7)


class Server(flight.FlightServerBase):
    """Answers actions by a function, as a broker does: its errors cross the wire."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.address = Address("127.0.0.1", self.port)
        self._answer = answer

    def do_action(self, context: Any, action: Any) -> list[Any]:
        try:
            request = decode_action(action.type, action.body).request
            return [metadata(self._answer(self.address, action.type, request, 0.0))]
        except PylogError as error:
            raise to_flight_error(error) from None


class Real:
    """The channel of clients, to a server in this process."""

    def __init__(self, ending: ExitStack) -> None:
        self._ending = ending

    def to(self, answer: Answer) -> Channel:
        server = self._ending.enter_context(Server(answer))
        return self._channel(server.address)

    def to_nobody(self) -> Channel:
        with Server(lambda *_: ANSWER) as server:
            address = server.address
        return self._channel(address)

    def to_silence(self) -> Channel:
        over = threading.Event()
        self._ending.callback(over.set)

        def late(*_: object) -> Message:
            over.wait(LIMIT_S)
            return ANSWER

        channel = self.to(late)
        self._ending.callback(over.set)  # before the server, which waits for its calls
        return channel

    def _channel(self, address: Address) -> Channel:
        channel = Channel(address, client_id="contract")
        self._ending.callback(channel.close)
        return channel


class Fake:
    """The channel of unit tests: a function raises in place of a broker that refuses or is silent."""

    def __init__(self, ending: ExitStack) -> None:
        del ending

    def to(self, answer: Answer) -> FakeChannel:
        return FakeChannel(Address("127.0.0.1", 1), answer)

    def to_nobody(self) -> FakeChannel:
        return self.to(_raises(BrokerUnavailableError("refused")))

    def to_silence(self) -> FakeChannel:
        return self.to(_raises(RequestTimedOutError("silent")))


def _raises(error: PylogError) -> Answer:
    def answer(*_: object) -> Message:
        raise error

    return answer


@pytest.fixture(params=[Real, Fake])
def channels(request: pytest.FixtureRequest) -> Iterator[Real | Fake]:
    with ExitStack() as ending:
        yield request.param(ending)


def ask(channel: Any, timeout_s: float = LIMIT_S) -> Message:
    answer: Message = channel.call("find_coordinator", QUESTION, FindCoordinatorResponse, timeout_s=timeout_s)
    return answer


def test_call_delivers_the_request_and_returns_the_answer(channels: Real | Fake) -> None:
    """The name and the whole request arrive once."""
    arrived: list[tuple[str, Message]] = []

    def answer(_: Address, name: str, request: Message, timeout_s: float) -> Message:
        arrived.append((name, request))
        return ANSWER if name == "find_coordinator" else Empty()

    channel = channels.to(answer)
    change = CreatePartitionsRequest(name="t", total=9)
    assert ask(channel) == ANSWER
    assert channel.call("create_partitions", change, Empty, timeout_s=LIMIT_S) == Empty()
    assert arrived == [("find_coordinator", QUESTION), ("create_partitions", change)]


def test_error_of_the_broker_is_raised_unchanged_and_the_channel_stays(channels: Real | Fake) -> None:
    """A refusal is an answer: its class and text decide what the client does next."""
    answers = [_raises(NotControllerError("broker 2 is")), lambda *_: ANSWER]
    channel = channels.to(lambda *call: answers.pop(0)(*call))
    with pytest.raises(NotControllerError) as raised:
        ask(channel)
    assert raised.value.message == "broker 2 is"
    assert ask(channel) == ANSWER


def test_unknown_request_is_not_sent(channels: Real | Fake) -> None:
    """No action has that name."""
    channel = channels.to(lambda *_: ANSWER)
    with pytest.raises(InvalidRequestError, match="no action 'fly'"):
        channel.call("fly", QUESTION, FindCoordinatorResponse, timeout_s=LIMIT_S)


def test_address_without_a_broker_refuses(channels: Real | Fake) -> None:
    """Nothing was sent, so the call may go elsewhere."""
    with pytest.raises(BrokerUnavailableError):
        ask(channels.to_nobody())


def test_late_answer_is_an_error(channels: Real | Fake) -> None:
    """It is unknown whether the request was carried out."""
    with pytest.raises(RequestTimedOutError):
        ask(channels.to_silence(), timeout_s=0.3)


def test_closed_channel_reports_that_the_client_was_closed(channels: Real | Fake) -> None:
    """It may be closed twice, and sends nothing any more."""
    asked: list[int] = []
    channel = channels.to(lambda *_: asked.append(1) or ANSWER)
    ask(channel)
    channel.close()
    channel.close()
    with pytest.raises(ClosedError, match="the client was closed"):
        ask(channel)
    assert asked == [1]


def test_link_is_given_away_when_it_is_connected(channels: Real | Fake) -> None:
    """It works on for who has it, `close` of the channel leaves it alone, and calls make a connection of their own."""
    channel = channels.to(lambda *_: ANSWER)
    assert channel.give_link() is None
    ask(channel)
    given = channel.give_link()
    assert given is not None
    assert channel.give_link() is None
    assert ask(channel) == ANSWER
    channel.close()
    assert not given.is_ended
    given.close()
