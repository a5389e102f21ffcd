"""Which connections are cut when calls hold too many threads, and which are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from broker_runtime.server import connections, thread_watch
from broker_runtime.server.connections import PeerAddress, Traffic
from broker_runtime.server.openings import Patience
from broker_runtime.server.thread_watch import Streaming, ThreadWatch
from tests.clocks import ReadClock

_KIB = 1 << 10
_LIMIT = 600
CALLER, QUIET, PRODUCER, FOLLOWER = (PeerAddress("10.0.0.1", port) for port in (1, 2, 3, 4))


class World:
    """The connections, threads and clock of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.threads = 40
        self.received = dict.fromkeys((CALLER, QUIET, PRODUCER, FOLLOWER), 0)
        self.streaming = {PRODUCER: Streaming(0, is_broker=False), FOLLOWER: Streaming(0, is_broker=True)}
        self.is_held = False
        self.looks = 0
        self.watch = ThreadWatch(
            _LIMIT,
            stream_count=lambda: len(self.streaming),
            streaming=lambda: self.streaming,
            threads=lambda: self.threads,
            clock=ReadClock(lambda: self.now_s),
        )
        self.watch._ports = frozenset({1})

        def traffic(ports: connections.Ports) -> dict[PeerAddress, Traffic]:
            self.looks += 1
            return {address: Traffic(0, received_bytes, 0) for address, received_bytes in self.received.items()}

        def reset_now(descriptor: int, ports: connections.Ports, address: PeerAddress) -> bool:
            del self.received[address]
            return True

        def hold_new(ports: connections.Ports, is_held: bool, *, why: str) -> None:
            self.is_held = is_held

        monkeypatch.setattr(connections, "traffic", traffic)
        monkeypatch.setattr(connections, "reset_now", reset_now)
        monkeypatch.setattr(connections, "hold_new", hold_new)
        self.step(40)

    def step(self, threads: int, **sent_kib: int) -> int:
        """0.1 s later, after that many KiB more from each; returns how many were cut."""
        self.now_s += 0.1
        self.threads = threads
        for name, size in sent_kib.items():
            self.received[{"caller": CALLER, "producer": PRODUCER, "follower": FOLLOWER}[name]] += size * _KIB
        return self.watch.step()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    interval_s = sys.getswitchinterval()
    yield World(monkeypatch)
    sys.setswitchinterval(interval_s)


def test_connections_are_not_examined_while_there_are_few_threads(world: World) -> None:
    """This holds however much is sent."""
    for _ in range(50):
        assert world.step(100, caller=1000) == 0
    assert world.looks == 0
    assert not world.watch.is_full()


def test_connection_that_sends_calls_is_cut_and_no_other(world: World) -> None:
    """A producer whose messages are complete, a follower and a quiet connection stay."""
    world.step(700)
    world.streaming[PRODUCER] = Streaming(5000 * _KIB, is_broker=False)
    assert world.step(700, caller=40, producer=5000, follower=500) == 1
    assert set(world.received) == {QUIET, PRODUCER, FOLLOWER}


def test_nobody_connects_until_the_threads_are_fewer(world: World) -> None:
    """A peer that was cut would reconnect at once."""
    world.step(700)
    world.step(700, caller=40)
    assert world.is_held
    world.step(400)
    assert world.is_held
    world.step(200)
    assert not world.is_held


def test_failed_unblocking_is_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood may leave no descriptor for a moment: otherwise nobody could ever connect again."""
    world.step(700)
    world.step(700, caller=40)
    hold_new = connections.hold_new

    def fail(ports: connections.Ports, is_held: bool, *, why: str) -> None:
        raise OSError("no descriptor")

    monkeypatch.setattr(connections, "hold_new", fail)
    with pytest.raises(OSError, match="no descriptor"):
        world.step(100)
    monkeypatch.setattr(connections, "hold_new", hold_new)
    world.step(100)
    assert not world.is_held


def test_connections_are_not_unblocked_during_another_check(world: World) -> None:
    """The check may be about to block connections, which would then stay blocked."""
    world.step(700)
    world.step(700, caller=40)
    with world.watch._checking:
        world.step(100)
        assert world.is_held
    world.step(100)
    assert not world.is_held


def test_calls_are_refused_only_beyond_the_limit(world: World) -> None:
    """The two threads of each stream do not count."""
    world.step(_LIMIT + 4)
    assert not world.watch.is_full()
    world.step(_LIMIT + 5)
    assert world.watch.is_full()
    world.step(_LIMIT)
    assert not world.watch.is_full()


def test_bytes_sent_before_the_threads_were_many_do_not_count(world: World) -> None:
    """A connection that sent much earlier is not the cause of this flood, nor of a later one."""
    world.step(700)
    world.step(40)
    world.now_s += 60.0
    world.received[CALLER] = 10_000 * _KIB
    assert [world.step(700), world.step(700, caller=1), world.step(700, caller=1)] == [0, 0, 0]


def test_stream_excuses_its_connection_for_a_while_only(world: World) -> None:
    """A flood may come beside an open stream; then the largest sender is cut, and never another broker."""
    cut = sum(world.step(700, producer=40, follower=400) for _ in range(5))
    assert cut == 0
    cut = sum(
        world.step(700, **({"producer": 40} if PRODUCER in world.received else {}), follower=400) for _ in range(9)
    )
    assert cut == 1
    assert set(world.received) == {CALLER, QUIET, FOLLOWER}


def test_thread_switches_are_rare_while_threads_are_many(world: World) -> None:
    """Thousands of threads that request the interpreter's lock every few milliseconds would do nothing else."""
    usual_s = sys.getswitchinterval()
    world.step(700)
    assert sys.getswitchinterval() > usual_s
    world.step(50)
    assert sys.getswitchinterval() == usual_s


def test_no_thread_is_started_from_the_limit_until_a_quarter_of_them_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC refuses calls by itself then, without the interpreter's lock."""
    changes: list[bool] = []
    monkeypatch.setattr(thread_watch, "refuse_threads", changes.append)
    for threads, expected in (
        (_LIMIT, []),
        (_LIMIT + 60, [True]),
        (_LIMIT - 100, [True]),
        (_LIMIT - 150, [True, False]),
    ):
        world.step(threads)
        assert changes == expected
    world.step(_LIMIT + 60)
    world.watch.stop()
    world.step(_LIMIT + 60)  # of a call that begins while the broker stops
    assert changes == [True, False, True, False]


def test_refusal_that_came_in_the_wrong_order_is_put_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls may count at once, and what the first found may be carried out last."""
    changes: list[bool] = []
    monkeypatch.setattr(thread_watch, "refuse_threads", changes.append)
    world.step(_LIMIT + 60)
    world.step(50)
    changes.append(True)  # as if by the first
    world.watch._watch()
    assert changes == [True, False, True, False]


def test_answers_that_nobody_takes_are_noticed_by_threads_that_stay(world: World) -> None:
    """Where more than half of the threads stay, connections without a stream go; after 12 s, streams excuse no more."""
    assert world.watch.patience() is None
    world.step(300)
    assert world.watch.patience() is None
    world.step(350)
    assert world.watch.patience() == Patience(2.0, actions_excuse=False, streams_excuse=True)
    world.now_s += 11.7
    world.step(350)
    assert world.watch.patience() == Patience(2.0, actions_excuse=False, streams_excuse=True)
    world.now_s += 0.2
    assert world.watch.patience() == Patience(2.0, actions_excuse=False, streams_excuse=False)
    world.step(300)
    assert world.watch.patience() is None
