"""What every user of a `Link` may rely on, over real connections: to a server in this process, which answers or is
silent, through a relay that may break the connections through it.

Each user passes the same checks: a port that refuses, a peer that dies in the middle of a call, silence, an end from
this side, closing twice, use after closing, a fork.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from broker_runtime.contract import forking
from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    NetworkError,
    NotControllerError,
    PylogError,
    RequestTimedOutError,
)
from broker_runtime.contract.fetch_exchange import FetchExchange
from broker_runtime.contract.flight import (
    CONNECTION_OPTIONS,
    to_flight_error,
)
from broker_runtime.contract.link import Link
from broker_runtime.contract.requests import FindCoordinatorRequest, FindCoordinatorResponse
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import (
    FetchHello,
    FetchRequest,
    ProduceHello,
    ProduceRequest,
    ProduceResponse,
    ReadRequest,
)
from pyspark_log.client.connection.channel import Channel
from pyspark_log.client.producer.produce_stream import ProduceStream
from pyspark_log.client.reading.frame_stream import FrameStream
from tests.contract.breaking_peer import ANSWER, FRAME, LIMIT_S, Relay, Server
from tests.unit.client.channels import FakeClock
from tests.waiting import SOON_S, wait_until

REQUEST = ReadRequest(topic="t", partition=0, start=0)


class Produce:
    """A produce stream: a frame is written, and its answer read."""

    def __init__(self, address: Address, server: Server) -> None:
        self.stream = ProduceStream(address, ProduceHello(client_id="contract"))
        self.link = self.stream._link

    def ask(self) -> object:
        self.stream.write(ProduceRequest(request_id=1), FRAME)
        return self.stream.read()

    def end(self) -> None:
        self.stream.end()

    def close(self) -> None:
        self.stream.close()


class Fetch:
    """A fetch session: a request, and its answer."""

    def __init__(self, address: Address, server: Server) -> None:
        self.exchange = FetchExchange(address, FetchHello(client_id="contract"))
        self.link = self.exchange._link

    def ask(self) -> object:
        return self.exchange.fetch(FetchRequest(request_id=1))

    def end(self) -> None:
        self.exchange.cancel()

    def close(self) -> None:
        self.exchange.close()


class Read:
    """A range that is read."""

    def __init__(self, address: Address, server: Server) -> None:
        self.server = server
        self.link = Link(address, CONNECTION_OPTIONS)
        self.stream = FrameStream(self.link, REQUEST, reused_limit_s=LIMIT_S)

    def ask(self) -> object:
        self.server.reads.release()
        return self.stream.read()

    def end(self) -> None:
        self.stream.cancel()

    def close(self) -> None:
        self.stream.close()


class Action:
    """A client's channel."""

    limit_s = LIMIT_S

    def __init__(self, address: Address, server: Server) -> None:
        self.channel = Channel(address, client_id="contract")
        self.link = self.channel._link

    def ask(self) -> object:
        request = FindCoordinatorRequest(group_id="g")
        return self.channel.call("find_coordinator", request, FindCoordinatorResponse, timeout_s=self.limit_s)

    def close(self) -> None:
        self.channel.close()


USERS = [Produce, Fetch, Read, Action]
STREAMS = [Produce, Fetch, Read]
User = Any


class Asking:
    """A user's call, on a thread of its own."""

    def __init__(self, user: User) -> None:
        self.outcome: object = None
        self._user = user
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._user.ask()
        except Exception as error:  # noqa: BLE001 - looked at by `result`
            self.outcome = error

    def result(self) -> object:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the call came to an end"
        return self.outcome

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


@pytest.fixture
def using(relay: Relay, server: Server) -> Iterator[Callable[[type[User]], User]]:
    """Creates users of a link to the relay, which are closed at the end."""
    with ExitStack() as ending:

        def use(kind: type[User]) -> User:
            user = kind(relay.address, server)
            ending.callback(user.close)
            return user

        yield use


def asking(user: User, server: Server) -> Asking:
    """``user`` in the middle of a call to a silent peer."""
    server.fall_silent()
    asked = server.asked
    call = Asking(user)
    wait_until(lambda: server.asked > asked, "the peer was asked", SOON_S)
    return call


@pytest.mark.parametrize("kind", USERS)
def test_port_that_refuses_is_an_unavailable_broker(kind: type[User], server: Server, relay: Relay) -> None:
    """This holds for the opening and for the first use: nothing was done, and it may be tried elsewhere."""
    relay.cut()
    with pytest.raises(BrokerUnavailableError, match=str(relay.address)):
        kind(relay.address, server).ask()


@pytest.mark.parametrize("kind", USERS)
def test_answer_is_returned(kind: type[User], using: Callable[[type[User]], User], relay: Relay) -> None:
    """The connection is the user's own."""
    user = using(kind)
    assert user.ask() is not None
    assert user.ask() is not None
    assert relay.accepted == relay.open == 1


@pytest.mark.parametrize("kind", USERS)
def test_refusal_of_the_peer_is_raised_unchanged(
    kind: type[User], using: Callable[[type[User]], User], server: Server
) -> None:
    """Its class and text decide what comes next. A stream has ended with it."""
    user = using(kind)
    server.refusal = NotControllerError("broker 2 is")
    with pytest.raises(NotControllerError, match="broker 2 is"):
        user.ask()


@pytest.mark.parametrize("kind", USERS)
def test_peer_that_dies_in_the_middle_of_a_call_is_a_network_error(
    kind: type[User], using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    user = using(kind)
    call = asking(user, server)
    relay.cut()
    assert isinstance(call.result(), NetworkError)


@pytest.mark.parametrize("kind", STREAMS)
def test_broken_stream_stays_broken(
    kind: type[User], using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """Its user opens another one; none is opened implicitly."""
    user = using(kind)
    relay.reset()
    with pytest.raises(NetworkError):
        user.ask()
    with pytest.raises(NetworkError):
        user.ask()
    assert relay.accepted == 1


def test_action_after_a_broken_connection_opens_another(
    using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """The next call reaches a broker that came back."""
    user = using(Action)
    call = asking(user, server)
    relay.reset()
    assert isinstance(call.result(), NetworkError)
    server.speaks.set()
    assert user.ask() == ANSWER
    assert relay.accepted == 2
    wait_until(lambda: relay.open == 1, "the broken connection was let go", SOON_S)


def test_concurrent_actions_share_a_connection(
    using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    user = using(Action)
    first, second = asking(user, server), asking(user, server)
    server.speaks.set()
    assert (first.result(), second.result()) == (ANSWER, ANSWER)
    assert relay.accepted == 1


@pytest.mark.parametrize("kind", STREAMS)
def test_refused_stream_releases_its_connection(
    kind: type[User], server: Server, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds however long the opener keeps the error, whose traceback holds the stream."""

    def refuse(*_: Any) -> None:
        raise to_flight_error(NotControllerError("broker 2 is"))

    for name in ("do_put", "do_exchange", "do_get"):
        monkeypatch.setattr(Server, name, refuse)
    opened: list[User] = []
    with pytest.raises(NotControllerError) as raised:  # noqa: PT012 - where it shows is Flight's affair
        opened.append(kind(relay.address, server))
        opened[0].ask()
    for user in opened:
        user.close()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)
    assert raised.value.message == "broker 2 is"


def left_by_a_read(using: Callable[[type[User]], User], server: Server) -> Link:
    """The link of a read that came to its end."""
    server.read_length = 1
    user = using(Read)
    assert user.ask() is not None
    link = user.stream.finish()
    assert isinstance(link, Link)
    return link


# --- one read after another -----------------------------------------------------------------------------------------


def test_connection_of_a_read_that_came_to_its_end_serves_the_next(
    using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """Whoever still holds the first read can neither end the second one nor close its connection."""
    server.read_length = 1
    first = using(Read)
    assert first.ask() is not None
    link = first.stream.finish()
    assert link is first.link
    second = FrameStream(link, REQUEST, reused_limit_s=LIMIT_S)
    first.end()
    first.close()
    assert first.stream.read() is None
    server.reads.release()
    assert second.read() is not None
    assert second.finish() is link
    assert relay.accepted == relay.open == 1
    link.close()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)


@pytest.mark.parametrize("how", ["goes on", "was cancelled", "broke"])
def test_connection_of_a_read_that_is_not_at_its_end_serves_no_other(
    how: str, using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """Its rest would be in the way."""
    user = using(Read)
    assert user.ask() is not None
    if how == "goes on":
        server.reads.release()
    elif how == "was cancelled":
        user.end()
    else:
        relay.reset()
    assert user.stream.finish() is None
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)
    with pytest.raises(ClosedError):
        FrameStream(user.link, REQUEST, reused_limit_s=LIMIT_S)


def test_read_on_a_connection_that_broke_meanwhile_opens_another(
    using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """The broker was started again between the two."""
    link = left_by_a_read(using, server)
    relay.reset()
    server.reads.release()
    try:
        stream = FrameStream(link, REQUEST, reused_limit_s=LIMIT_S)
    except NetworkError:
        stream = FrameStream(Link(relay.address, CONNECTION_OPTIONS), REQUEST, reused_limit_s=LIMIT_S)
    assert stream.read() is not None
    stream.close()
    wait_until(lambda: relay.open == 0, "the connections are gone", SOON_S)


def test_read_on_the_connection_of_a_frozen_broker_ends_at_its_limit(
    using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """Nothing else would end it: the broker answers neither the call nor its cancellation, and another may lead."""
    link = left_by_a_read(using, server)
    relay.flows.clear()
    try:
        with pytest.raises(RequestTimedOutError):
            FrameStream(link, REQUEST, reused_limit_s=0.2)
        with pytest.raises(ClosedError):
            FrameStream(link, REQUEST, reused_limit_s=0.2)
    finally:
        relay.flows.set()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)


# --- silence ----------------------------------------------------------------------------------------------------


def test_action_that_is_not_answered_ends_at_its_time_limit(
    using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """A connection without answers may lead nowhere: the next call opens another."""
    user = using(Action)
    user.limit_s = 0.2
    server.fall_silent()
    with pytest.raises(RequestTimedOutError, match="did not answer in time"):
        user.ask()
    user.limit_s = LIMIT_S
    server.speaks.set()
    assert user.ask() == ANSWER
    assert relay.accepted == 2


def test_fetch_session_is_silent_while_the_broker_owes_an_answer(
    using: Callable[[type[User]], User], server: Server
) -> None:
    """A watcher looks at this; between requests no answer is owed."""
    user = using(Fetch)
    user.ask()
    assert user.exchange.silent_for_s == 0.0
    call = asking(user, server)
    wait_until(lambda: user.exchange.silent_for_s > 0.05, "silence is noticed", SOON_S)
    server.speaks.set()
    call.result()
    assert user.exchange.silent_for_s == 0.0


def test_produce_stream_is_silent_since_the_last_answer(using: Callable[[type[User]], User]) -> None:
    """The broker also answers heartbeats."""
    user = using(Produce)
    user.link._clock = clock = FakeClock()
    user.link.heard()
    clock.now = 8.5
    assert user.stream.silent_for_s == 8.5
    user.ask()
    assert user.stream.silent_for_s == 0.0


def test_silence_counts_from_the_last_message() -> None:
    """By the link's clock."""
    clock = FakeClock()
    link = Link(Address("127.0.0.1", 1), CONNECTION_OPTIONS, clock=clock)
    clock.now = 8.5
    assert link.silent_for_s == 8.5
    link.heard()
    clock.now = 9.0
    assert link.silent_for_s == 0.5
    link.close()


# --- the end from this side -------------------------------------------------------------------------------------


def test_fetch_that_is_cancelled_is_a_network_error(using: Callable[[type[User]], User], server: Server) -> None:
    """Its thread returns at once, and sends no more requests."""
    user = using(Fetch)
    call = asking(user, server)
    user.end()
    assert isinstance(call.result(), NetworkError)
    assert user.exchange.is_cancelled
    with pytest.raises(NetworkError, match="the fetch session was ended"):
        user.ask()


def test_read_that_is_cancelled_has_ended(using: Callable[[type[User]], User], server: Server) -> None:
    """That is no error: the caller that cancelled it knows."""
    user = using(Read)
    user.ask()
    call = asking(user, server)
    user.end()
    assert wait_until(lambda: call.is_over, "the read came out", SOON_S)
    user.end()
    assert user.stream.read() is None


def test_ended_produce_stream_delivers_its_outstanding_answers(
    using: Callable[[type[User]], User], server: Server
) -> None:
    """Nothing more may be written; the answers to earlier writes come first, then the end."""
    user = using(Produce)
    call = asking(user, server)
    user.end()
    user.end()
    with pytest.raises(NetworkError, match="the produce stream was ended"):
        user.stream.write_heartbeat()
    server.speaks.set()
    answer = call.result()
    assert isinstance(answer, ProduceResponse)
    assert answer.request_id == 1
    assert user.stream.read() is None


@pytest.mark.parametrize("kind", [Produce, Fetch])
def test_stream_that_the_peer_ends_is_an_error(
    kind: type[User], using: Callable[[type[User]], User], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error however orderly the end is: nobody had requested it."""
    monkeypatch.setattr(Server, "do_put", lambda *_: None)
    monkeypatch.setattr(Server, "do_exchange", lambda *_: None)
    user = using(kind)
    with pytest.raises(NetworkError):
        user.ask()


# --- closing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", USERS)
def test_close_releases_the_connection_and_may_be_repeated(
    kind: type[User], using: Callable[[type[User]], User], relay: Relay
) -> None:
    user = using(kind)
    user.ask()
    assert relay.open == 1
    user.close()
    user.close()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)


@pytest.mark.parametrize(
    ("kind", "error"), [(Produce, NetworkError), (Fetch, NetworkError), (Read, None), (Action, ClosedError)]
)
def test_use_after_close(
    kind: type[User], error: type[PylogError] | None, using: Callable[[type[User]], User], relay: Relay
) -> None:
    """It is a typed error, or the end of the read; never another connection."""
    user = using(kind)
    user.ask()
    user.close()
    if error is None:
        assert user.ask() is None
    else:
        with pytest.raises(error, match=r"was (ended|closed)"):
            user.ask()
    assert relay.accepted == 1


def test_fork_waits_for_a_stream_that_is_being_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending a produce stream uses its connection, which no fork may find alive."""
    user = Produce(Address("127.0.0.1", server.port), server)
    user.ask()
    connection = user.link._connection
    assert connection is not None
    is_ending, may_end, forked = (threading.Event() for _ in range(3))
    client_at_fork: list[Any] = []

    class SlowlyEnding:
        def __init__(self, writer: Any) -> None:
            self.close = writer.close
            self._done_writing = writer.done_writing

        def done_writing(self) -> None:
            is_ending.set()
            may_end.wait(LIMIT_S)
            self._done_writing()

    def fork() -> None:
        forking._before_fork()
        client_at_fork.append(connection.client)
        forking._after_fork_in_parent()
        forked.set()

    connection.writer = SlowlyEnding(connection.writer)
    monkeypatch.setattr(user.link, "_interrupt_for_fork", lambda: threading.Timer(0.5, may_end.set).start())
    threads = [threading.Thread(target=each, daemon=True) for each in (user.link.end, fork)]
    threads[0].start()
    assert is_ending.wait(LIMIT_S)
    threads[1].start()
    assert forked.wait(LIMIT_S)
    assert client_at_fork == [None]
    for thread in threads:
        thread.join(LIMIT_S)
    user.close()


@pytest.mark.parametrize("kind", USERS)
def test_close_during_a_call_releases_the_connection_when_the_call_has_ended(
    kind: type[User], using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """Closing a Flight client during another thread's call crashes the process."""
    user = using(kind)
    call = asking(user, server)
    closing = threading.Thread(target=user.close, daemon=True)
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    server.speaks.set()
    outcome = call.result()
    assert (outcome == ANSWER) if kind is Action else not isinstance(outcome, AttributeError)
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)


# --- forks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", USERS)
def test_link_has_no_connection_while_the_process_forks(
    kind: type[User], using: Callable[[type[User]], User], relay: Relay
) -> None:
    """A child hangs in gRPC if the parent had a connection. This checks the hooks, without a fork."""
    user = using(kind)
    user.ask()
    user.link._interrupt_for_fork()
    user.link._drop_for_fork()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)
    if kind is Action:
        assert user.ask() == ANSWER
        assert relay.accepted == 2
    elif kind is Read:
        assert user.ask() is None
    else:
        with pytest.raises(NetworkError, match="was ended"):
            user.ask()


@pytest.mark.parametrize("kind", USERS)
def test_fork_interrupts_callers_in_a_stream(
    kind: type[User], using: Callable[[type[User]], User], server: Server, relay: Relay
) -> None:
    """It does so as far as Flight can: answers to produced frames, and actions, are waited for."""
    user = using(kind)
    call = asking(user, server)
    user.link._interrupt_for_fork()
    if kind in {Produce, Action}:
        server.speaks.set()
    call.result()
    user.link._drop_for_fork()
    wait_until(lambda: relay.open == 0, "the connection is gone", SOON_S)


@pytest.mark.parametrize("kind", USERS)
def test_child_keeps_the_parents_connection_and_never_uses_it(
    kind: type[User], using: Callable[[type[User]], User], relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing it in the child would hang. (It exists only if a call did not end in time for the fork.)"""
    abandoned: list[Any] = []
    monkeypatch.setattr("broker_runtime.contract.forking._abandoned", abandoned)
    user = using(kind)
    user.ask()
    user.link._interrupt_for_fork()
    user.link._after_fork_in_child()
    assert len(abandoned) == 1
    assert abandoned[0].client is not None
    if kind is Action:
        assert user.ask() == ANSWER
    elif kind is Read:
        assert user.ask() is None
    else:
        with pytest.raises(NetworkError, match="was ended"):
            user.ask()
    user.close()
    assert abandoned[0].client is not None
    abandoned[0].close()


def test_links_work_in_a_forked_child_and_in_its_parent(server: Server) -> None:
    """This holds whatever was open at the fork, even with a thread blocked in it."""
    server.reads = threading.Semaphore(1 << 30)
    command = [sys.executable, "-m", "tests.contract.forked_links", str(server.port)]
    subprocess.run(command, check=True, timeout=LIMIT_S * 3)
