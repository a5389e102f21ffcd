"""Around a fork every link releases its connection, whatever other threads do meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from broker_runtime.contract import forking

LIMIT_S = 20.0
_MANY = 2_000
_FORKS = 200


class Counting:
    """Counts the calls of its hooks."""

    def __init__(self) -> None:
        self.interrupted = self.dropped = 0

    def _interrupt_for_fork(self) -> None:
        self.interrupted += 1

    def _drop_for_fork(self) -> None:
        self.dropped += 1

    def _after_fork_in_child(self) -> None:
        raise AssertionError("nobody forked")


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Switches threads often."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before_s)


def fork_as_parent() -> None:
    """Does what a fork does in the parent."""
    try:
        forking._before_fork()
    finally:
        forking._after_fork_in_parent()


@pytest.mark.usefixtures("switching_often")
def test_fork_reaches_every_client_while_others_open_and_close() -> None:
    """Many threads open and close streams continuously."""
    clients = [Counting() for _ in range(_MANY)]
    for client in clients:
        forking.register(client)
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            another = Counting()
            forking.register(another)
            forking.unregister(another)

    thread = threading.Thread(target=come_and_go, daemon=True)
    thread.start()
    try:
        for _ in range(_FORKS):
            fork_as_parent()
    finally:
        is_over.set()
        thread.join(LIMIT_S)
    assert {(client.interrupted, client.dropped) for client in clients} == {(_FORKS, _FORKS)}
    for client in clients:
        forking.unregister(client)


def test_fork_does_not_reach_a_client_that_was_closed() -> None:
    client = Counting()
    forking.register(client)
    forking.unregister(client)
    fork_as_parent()
    assert (client.interrupted, client.dropped) == (0, 0)


def test_fork_waits_for_current_calls_and_delays_new_ones() -> None:
    """At the moment of the fork no Flight client is being created or used."""
    inside, may_leave, has_left, was_let_in = (threading.Event() for _ in range(4))

    def call() -> None:
        with forking.flight_use():
            inside.set()
            may_leave.wait(LIMIT_S)
            has_left.set()

    def call_later() -> None:
        with forking.flight_use():
            was_let_in.set()

    class Leaving(Counting):
        def _interrupt_for_fork(self) -> None:
            super()._interrupt_for_fork()
            may_leave.set()

        def _drop_for_fork(self) -> None:
            super()._drop_for_fork()
            assert has_left.is_set(), "the current call has ended"
            later.start()
            assert not was_let_in.wait(0.05), "a new call waits until the fork is done"

    later = threading.Thread(target=call_later, daemon=True)
    client = Leaving()
    forking.register(client)
    under_way = threading.Thread(target=call, daemon=True)
    under_way.start()
    assert inside.wait(LIMIT_S)
    fork_as_parent()
    assert client.dropped == 1
    assert was_let_in.wait(LIMIT_S)
    for thread in (under_way, later):
        thread.join(LIMIT_S)
    forking.unregister(client)
