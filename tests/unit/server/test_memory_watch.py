"""Which connections are cut when a broker's memory grows; sockets, memory and clock are the test's."""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_runtime.server import connections, memory_watch
from broker_runtime.server.connections import PeerAddress, Traffic
from broker_runtime.server.memory_watch import MAX_UNTAKEN_BYTES, MemoryWatch, ResidentMemory
from tests.clocks import ReadClock
from tests.waiting import wait_until

_MIB = 1 << 20
_LIMIT_BYTES = 1024 * _MIB
ONE, TWO, THREE = (PeerAddress("127.0.0.1", number) for number in (1, 2, 3))


class Socket:
    """A connection that has sent that much."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.acknowledged_bytes = 0
        self.is_cut = False
        self.filter: object = None

    @property
    def credit_bytes(self) -> float:
        """What the kernel accepts on it before the next look."""
        if self.is_cut or self.filter is connections.TAKES_NOTHING:
            return 0
        return self.filter.received_bytes - self.received_bytes if isinstance(self.filter, TakesUntil) else math.inf


@dataclass(frozen=True)
class TakesUntil:
    """A filter with a credit."""

    received_bytes: int


def kernel_of(monkeypatch: pytest.MonkeyPatch, sockets: Mapping[PeerAddress, Socket]) -> None:
    """A kernel that records the filters of sockets."""

    def takes_until(first_sequence: int, received_bytes: int, credit_bytes: int) -> TakesUntil:
        return TakesUntil(received_bytes + credit_bytes)

    def set_filter(descriptor: int, ports: connections.Ports, address: PeerAddress, wanted: object) -> bool:
        sockets[address].filter = wanted
        return True

    monkeypatch.setattr(connections, "takes_until", takes_until)
    monkeypatch.setattr(connections, "set_filter", set_filter)
    monkeypatch.setattr(connections, "first_sequence", lambda descriptor, address: 1)


class World:
    """A broker with 100 MiB and two connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory_bytes = 100 * _MIB
        self.now_s = 50.0
        self.looks = 0
        self.look_takes_s = 0.0
        self.sockets = {ONE: Socket(), TWO: Socket()}
        self.taken: dict[PeerAddress, int] = {}
        self.content: dict[PeerAddress, int] = {}
        self.acted_bytes = 0
        self.is_flooded = False
        self.watch = MemoryWatch(
            _LIMIT_BYTES,
            taken_bytes=lambda: dict(self.taken),
            content_bytes=lambda: self.taken | self.content,
            acted_bytes=lambda: self.acted_bytes,
            is_flooded=lambda: self.is_flooded,
            memory_bytes=lambda: self.memory_bytes,
            clock=ReadClock(lambda: self.now_s),
        )

        def traffic(ports: connections.Ports, *, ends_twins: bool = False) -> dict[PeerAddress, Traffic]:
            self.looks += 1
            self.now_s += self.look_takes_s
            return {
                address: Traffic(0, each.received_bytes, each.acknowledged_bytes)
                for address, each in self.sockets.items()
                if not each.is_cut
            }

        def reset(descriptor: int, ports: connections.Ports, address: PeerAddress) -> bool:
            self.sockets[address].is_cut = True
            return True

        monkeypatch.setattr(connections, "traffic", traffic)
        monkeypatch.setattr(connections, "reset", reset)
        monkeypatch.setattr(memory_watch, "_give_back", lambda: None)
        kernel_of(monkeypatch, self.sockets)
        self.is_confined = False

        def confine_new(ports: connections.Ports, is_confined: bool) -> None:
            self.is_confined = is_confined

        monkeypatch.setattr(connections, "confine_new", confine_new)
        self.is_held = False

        def hold_new(ports: connections.Ports, is_held: bool, *, why: str) -> None:
            self.is_held = is_held

        monkeypatch.setattr(connections, "hold_new", hold_new)
        self.watch.step()

    def step(self, one: int = 0, two: int = 0, memory: int | None = None) -> list[PeerAddress]:
        """Each connection sends that many MiB more; returns which have been cut so far."""
        self.now_s += 0.05
        self.sockets[ONE].received_bytes += one * _MIB
        self.sockets[TWO].received_bytes += two * _MIB
        self.memory_bytes += (one + two if memory is None else memory) * _MIB
        self.watch.step()
        return [address for address, each in self.sockets.items() if each.is_cut]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_connections_are_checked_seldom_while_nothing_comes(world: World) -> None:
    """An idle broker costs two small reads per step."""
    looks = world.looks
    for _ in range(60):  # three seconds
        assert world.step() == []
    assert world.looks - looks <= 20


def test_checks_that_take_long_are_seldom(world: World) -> None:
    """A broker with thousands of connections must not spend its time with them."""
    world.look_takes_s = 0.02
    for minimum_s, more in ((0.5, 0), (0.2, 50)):
        world.step()
        looks, begun_s = world.looks, world.now_s
        while world.looks < looks + 3:
            world.taken[TWO] = world.taken.get(TWO, 0) + more * _MIB
            world.step(two=more, memory=0)
        assert world.now_s - begun_s >= 2 * minimum_s


def test_check_that_was_interrupted_delays_the_next_one_little(world: World) -> None:
    """The process may have been stopped for a second just then: nobody must wait for a minute."""
    world.look_takes_s = 2.0
    world.now_s += 1
    world.step()
    world.look_takes_s = 0.0
    looks = world.looks
    for _ in range(11):
        world.step()
    assert world.looks > looks


def test_credits_are_renewed_before_they_are_used_up(world: World) -> None:
    """The ordinary work of brokers and clients never has to wait for a check that comes in time."""
    for _ in range(100):
        world.taken[TWO] = world.taken.get(TWO, 0) + 60 * _MIB
        assert world.sockets[TWO].credit_bytes > 60 * _MIB
        assert world.step(two=60, memory=0) == []
    for _ in range(100):  # it pauses, and begins anew
        world.step()
    assert world.sockets[TWO].credit_bytes > 60 * _MIB


def test_connection_that_sends_more_than_a_message_without_its_end_is_cut(world: World) -> None:
    """The other one, which sends as much in complete messages, is not cut."""
    cut: list[PeerAddress] = []
    sent = 0
    while not cut and world.memory_bytes < 2 * _LIMIT_BYTES:
        world.taken[TWO] = world.taken.get(TWO, 0) + 16 * _MIB
        cut = world.step(one=16, two=16)
        sent += 16 * _MIB
    assert cut == [ONE]
    assert sent <= MAX_UNTAKEN_BYTES + 16 * _MIB


def test_small_messages_do_not_hide_a_large_one_that_has_no_end(world: World) -> None:
    """A complete message accounts for its own bytes, not for everything on its connection."""
    cut: list[PeerAddress] = []
    sent = 0
    world.taken[ONE] = 1
    while not cut and sent < 1024 * _MIB:
        world.taken[ONE] += 1100
        cut = world.step(one=8)
        sent += 8 * _MIB
    assert cut == [ONE]
    assert sent <= MAX_UNTAKEN_BYTES + memory_watch._GROWTH_BYTES + 16 * _MIB


def test_bytes_of_a_new_connection_count_from_its_first_one(world: World) -> None:
    """No earlier look saw it, and a small message of its own was complete already."""
    world.step(memory=100)
    world.sockets[ONE].received_bytes, world.taken[ONE] = 0, 2_000
    assert world.step(one=MAX_UNTAKEN_BYTES // _MIB + 1) == [ONE]


def test_messages_of_a_connection_do_not_account_for_the_next_from_its_port(world: World) -> None:
    """A client may choose its port, and close its connection itself."""
    world.taken[ONE] = 500 * _MIB
    assert world.step(one=500, memory=100) == []
    world.sockets[ONE].received_bytes = 0
    assert world.step(one=MAX_UNTAKEN_BYTES // _MIB + 1, memory=0) == [ONE]


def test_slow_bytes_count_unless_the_client_receives_as_many(world: World) -> None:
    """A reader acknowledges what it reads; a client that only sends has nothing to acknowledge."""
    world.taken[ONE] = world.taken[TWO] = 1
    world.step(memory=100)
    for _ in range(200):
        for each in world.sockets.values():
            each.received_bytes += 2 << 10  # 40 KiB/s
        world.sockets[TWO].acknowledged_bytes += 1 * _MIB
        assert world.step() == []
    assert world.step(memory=600) == [ONE]


def test_nothing_is_excused_when_memory_is_short_and_no_cause_is_found(world: World) -> None:
    """A sender that also receives as much is found, too, only later."""
    world.taken[ONE] = world.taken[TWO] = 1
    world.step(memory=100)
    for _ in range(200):
        for each in world.sockets.values():
            each.received_bytes += 2 << 10
            each.acknowledged_bytes += 2 << 10
        assert world.step() == []
    world.step(memory=600)
    for _ in range(40):  # two seconds
        world.step()
    assert world.sockets[ONE].is_cut
    assert world.sockets[TWO].is_cut


def test_complete_messages_excuse_a_connection(world: World) -> None:
    """Near the limit a busy producer stays, though most untaken bytes are its own."""
    world.taken[TWO] = 1
    for _ in range(20):
        world.taken[TWO] += 16 * _MIB
        world.step(two=16, memory=10)
    assert world.step(one=20, two=40, memory=440) == [ONE]


def test_connections_without_complete_messages_may_use_a_third_of_the_limit(world: World) -> None:
    """More might use up the memory before the next look, even if there is some left."""
    world.sockets |= {PeerAddress("127.0.0.1", number): Socket() for number in range(3, 9)}
    world.step(memory=65)
    for address, each in world.sockets.items():
        if address != TWO:
            each.received_bytes += 49 * _MIB
    cut = world.step(memory=0)
    assert len(cut) == 1
    assert TWO not in cut


def test_largest_sender_is_cut_first_near_the_limit(world: World) -> None:
    """Neither has sent more than one message may have."""
    world.step(memory=500)
    assert world.step(one=60, two=50) == [ONE]
    world.memory_bytes -= 60 * _MIB
    assert world.step() == [ONE]  # there is room again
    assert world.step(memory=200) == [ONE, TWO]


def test_as_many_as_needed_are_cut_in_one_look(world: World) -> None:
    """Many connections fill the memory faster than one cut per look frees it."""
    world.step(memory=600)
    assert world.step(one=60, two=60, memory=300) == [ONE, TWO]


def test_messages_that_are_still_to_be_copied_count_twice(world: World) -> None:
    """At its end a message is copied into one piece: for that moment its bytes count twice."""
    world.step(memory=460)
    assert world.step(one=70, two=30) == []
    assert world.step(one=20, two=20) == [ONE]


def test_memory_that_no_connection_causes_is_examined_seldom(world: World) -> None:
    """A broker that itself needs much memory cuts nobody."""
    for _ in range(40):
        assert world.step(memory=20) == []
    for _ in range(20):
        assert world.step() == []
    looks = world.looks
    for _ in range(40):  # two seconds
        assert world.step() == []
    assert world.looks - looks <= 18  # every 150 ms for the credits, and once a second for the memory


def test_limit_holds_when_a_look_is_late(world: World) -> None:
    """Each sends what the kernel accepts before the next look, however late that is, and returns when it was cut."""
    world.sockets |= {PeerAddress("127.0.0.1", number): Socket() for number in range(3, 33)}
    for each in world.sockets.values():
        each.received_bytes = 8 * _MIB
    world.step(memory=8 * len(world.sockets))
    most_bytes = world.memory_bytes
    for _ in range(200):
        for each in world.sockets.values():
            if each.is_cut:
                world.memory_bytes -= each.received_bytes
                each.received_bytes, each.is_cut, each.filter = 0, False, connections.TAKES_SMALL
            more_bytes = int(each.credit_bytes) if each.filter is not connections.TAKES_SMALL else 10_000
            each.received_bytes += more_bytes
            world.memory_bytes += more_bytes
        most_bytes = max(most_bytes, world.memory_bytes)
        world.step()
    assert most_bytes < _LIMIT_BYTES
    assert most_bytes > _LIMIT_BYTES // 3


def test_look_that_comes_late_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Until there is one, honest peers may have to wait for credits."""
    for pause_s in (0.05, 0.4, 0.6):
        world.watch._watch()
        world.now_s += pause_s
    assert caplog.messages == []
    world.watch._watch()
    assert caplog.messages == ["check memory late after_s=0.6"]


def test_new_connections_send_little_only_while_much_is_untaken(world: World) -> None:
    """Otherwise a client that begins with a large message would have to send it again."""
    for _ in range(10):
        world.taken[TWO] = world.taken.get(TWO, 0) + 60 * _MIB
        world.step(one=0, two=70, memory=10)
    assert not world.is_confined
    world.step(one=120)
    assert world.is_confined
    world.taken[ONE] = 300 * _MIB
    world.taken[TWO] += 300 * _MIB
    for _ in range(19):
        world.step()
    assert world.is_confined
    for _ in range(5):  # one check more
        world.step()
    assert not world.is_confined


def calls(world: World, *, kib: int, held: int = 50) -> list[PeerAddress]:
    """The first connection begins calls in that many KiB, each byte of which holds so many of memory."""
    world.sockets[ONE].received_bytes += kib << 10
    world.memory_bytes += held * kib << 10
    return world.step()


@pytest.mark.parametrize("held", [20, 50, 800])
def test_connection_is_cut_whose_few_bytes_hold_much_memory(world: World, held: int) -> None:
    """Ten bytes begin a call, for which gRPC keeps 8 KiB; a busy producer beside it stays."""
    world.taken[ONE] = world.taken[TWO] = 1
    before_bytes, cut = world.memory_bytes, []
    while not cut and world.memory_bytes < 2 * _LIMIT_BYTES:
        world.taken[TWO] += 16 * _MIB
        world.sockets[TWO].received_bytes += 16 * _MIB
        cut = calls(world, kib=8192 // held, held=held)
    assert cut == [ONE]
    unseen_bytes = held * memory_watch._LEAST_SUSPECT_BYTES
    assert world.memory_bytes - before_bytes <= _LIMIT_BYTES // 8 + unseen_bytes + 32 * _MIB


def test_memory_beyond_what_bytes_can_hold_cuts_nobody(world: World) -> None:
    """It has another cause than the one connection with a few bytes."""
    world.taken[ONE] = world.taken[TWO] = 1
    for _ in range(20):
        assert calls(world, kib=8, held=2048) == []


def test_tiny_actions_do_not_hide_calls_without_content(world: World) -> None:
    """What a message can have been sent in at most is many times what an action without content is sent in."""
    world.taken[ONE] = world.taken[TWO] = 1
    world.content |= {ONE: 0, TWO: 0}
    before_bytes, cut = world.memory_bytes, []
    while not cut and world.memory_bytes < 2 * _LIMIT_BYTES:
        world.taken[ONE] += 1 * _MIB
        world.sockets[ONE].acknowledged_bytes += 1 * _MIB
        cut = calls(world, kib=80, held=100)
    assert cut == [ONE]
    assert world.memory_bytes - before_bytes < _LIMIT_BYTES // 3


def test_calls_that_are_begun_slowly_and_hidden_are_cut_before_the_limit_is_reached(world: World) -> None:
    """Nothing shows in any few seconds; at last those are cut that have sent most without content."""
    world.taken[ONE] = world.taken[TWO] = 1
    world.content |= {ONE: 0}
    cut: list[PeerAddress] = []
    while not cut and world.memory_bytes < 2 * _LIMIT_BYTES:
        world.now_s += 1.0
        world.taken[ONE] += 1 * _MIB
        world.sockets[ONE].acknowledged_bytes += 1 * _MIB
        world.taken[TWO] += 16 * _MIB
        world.sockets[TWO].received_bytes += 16 * _MIB
        cut = calls(world, kib=10, held=800)
        assert world.memory_bytes < _LIMIT_BYTES
    assert cut == [ONE]


def test_many_large_requests_do_not_hide_calls_without_content(world: World) -> None:
    """Their memory is excused, up to a third of the limit."""
    world.taken[ONE] = world.taken[TWO] = 1
    before_bytes, cut = world.memory_bytes, []
    while not cut and world.memory_bytes < 2 * _LIMIT_BYTES:
        world.acted_bytes += 16 * _MIB
        cut = calls(world, kib=160)
    assert cut == [ONE]
    assert world.memory_bytes - before_bytes < _LIMIT_BYTES // 2


def test_memory_of_large_requests_that_are_served_cuts_no_connection(world: World) -> None:
    """Decoded, they need many times their bytes, and others wait meanwhile."""
    world.taken[ONE] = world.taken[TWO] = 1
    for _ in range(10):
        world.acted_bytes += 1 * _MIB
        assert calls(world, kib=300, held=100) == []


def test_memory_that_was_there_before_is_not_held_by_new_bytes(world: World) -> None:
    """A broker that has just done much has not given it back yet."""
    world.taken[ONE] = world.taken[TWO] = 1
    world.step(memory=400)
    for _ in range(10):
        assert calls(world, kib=300, held=1) == []


def test_each_of_many_connections_with_few_calls_counts(world: World) -> None:
    """Four hundred with forty calls each are as bad as one with all of them."""
    world.sockets |= {PeerAddress("127.0.0.1", number): Socket() for number in range(3, 403)}
    world.step()
    for each in world.sockets.values():
        each.received_bytes += 8 << 10
    world.memory_bytes += 200 * _MIB
    assert len(world.step()) > 100


def test_less_may_come_where_few_bytes_hold_much_memory(world: World) -> None:
    """A look may be late, and a credit of megabytes is gigabytes of calls."""
    world.taken[ONE] = world.taken[TWO] = 1
    before_bytes = world.sockets[ONE].credit_bytes
    for _ in range(10):
        assert calls(world, kib=200) == []
    assert 50 * before_bytes > _LIMIT_BYTES
    assert 50 * world.sockets[ONE].credit_bytes < _LIMIT_BYTES // 3


def test_no_connection_is_accepted_near_the_limit_nor_until_what_was_cut_is_free(world: World) -> None:
    """Each call that is cut is ended by a thread, and those who were cut return at once with others."""
    world.step(memory=700)
    assert not world.is_held  # nothing is untaken
    assert world.step(one=60, two=60) == [ONE, TWO]
    assert world.is_held
    for _ in range(50):
        world.step()
    assert world.is_held
    for _ in range(30):
        world.step()
    assert not world.is_held


def test_connections_are_accepted_again_when_memory_is_free(world: World) -> None:
    """At once, however short a time after a cut."""
    world.step(memory=700)
    assert world.step(one=60, two=60) == [ONE, TWO]
    assert world.is_held
    world.step(memory=-600)
    assert not world.is_held


def test_no_connection_is_accepted_until_calls_that_were_cut_are_free(world: World) -> None:
    """Far from the limit, too: who was cut would begin as many beside them."""
    world.taken[ONE] = world.taken[TWO] = 1
    while not calls(world, kib=80, held=200):
        assert not world.is_held
    assert world.memory_bytes < _LIMIT_BYTES // 2
    for _ in range(30):
        world.step()
        assert world.is_held
    world.step(memory=-100)
    assert not world.is_held


def test_no_connection_is_refused_for_longer_than_calls_take_to_end(world: World) -> None:
    """What is not free by then has another cause."""
    world.taken[ONE] = world.taken[TWO] = 1
    while not calls(world, kib=80, held=200):
        pass
    for _ in range(65):
        world.step()
    assert not world.is_held


def test_more_is_cut_than_what_is_too_much_just_now(world: World) -> None:
    """One after the other they would stay for as long as there are any, and hold as much as is allowed."""
    world.sockets |= {PeerAddress("127.0.0.1", number): Socket() for number in range(3, 23)}
    world.step()
    cut: list[PeerAddress] = []
    while not cut:
        for each in world.sockets.values():
            each.received_bytes += 20 << 10
        world.memory_bytes += 8 * _MIB
        cut = world.step()
    assert len(world.sockets) // 3 < len(cut) < len(world.sockets)


def test_memory_is_given_back_as_calls_that_were_cut_become_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the C library keeps of it would count as the next calls'."""
    given_back_s: list[float] = []
    monkeypatch.setattr(memory_watch, "_give_back", lambda: given_back_s.append(world.now_s))
    world.taken[ONE] = world.taken[TWO] = 1
    while not calls(world, kib=80, held=200):
        assert not given_back_s
    for _ in range(100):
        world.step()
    assert 5 <= len(given_back_s) <= 12


def test_connections_whose_calls_others_cut_are_waited_for_likewise(world: World) -> None:
    """The watch of threads cuts some first, and peers close theirs."""
    world.taken[ONE] = world.taken[TWO] = 1
    for _ in range(8):
        calls(world, kib=80, held=150)
    world.sockets[ONE].is_cut = True
    world.step(memory=60)
    assert world.is_held
    for _ in range(65):
        world.step()
    assert not world.is_held


def test_client_that_ends_its_connection_after_ordinary_calls_keeps_nobody_waiting(world: World) -> None:
    """Near the limit, too: a few hundred calls have headers of some tens of KiB."""
    world.taken[ONE] = world.taken[TWO] = 1
    world.step(memory=700)
    for _ in range(20):
        world.step()
    world.sockets[ONE].received_bytes += 60 << 10
    for _ in range(5):
        world.step()
    world.sockets[ONE].is_cut = True
    for _ in range(80):
        world.step()
        assert not world.is_held


def test_call_that_begins_makes_the_check_that_is_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch's own thread may have to wait behind thousands for the interpreter's lock, as whoever cuts for it."""
    monkeypatch.setattr(connections, "reset_now", connections.reset)
    monkeypatch.setattr(connections, "reset", lambda *_: pytest.fail("releases the lock"))
    world.taken[ONE] = world.taken[TWO] = 1
    world.step()
    world.memory_bytes += 300 * _MIB
    world.sockets[ONE].received_bytes += 2 * _MIB
    world.now_s += 0.05
    world.watch.step_if_late()
    assert not world.sockets[ONE].is_cut
    world.now_s += 0.1
    world.watch.step_if_late()
    assert world.sockets[ONE].is_cut
    assert not world.sockets[TWO].is_cut


def test_call_that_begins_waits_for_no_check_under_way(world: World) -> None:
    """It would hold the interpreter's lock up."""
    world.step()
    world.now_s += 1.0
    looks = world.looks
    with world.watch._stepping:
        world.watch.step_if_late()
    assert world.looks == looks
    world.watch.step_if_late()
    assert world.looks > looks


def test_call_goes_on_where_its_check_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And where the watch has ended no call makes checks for it: nobody would renew the credits that they give."""
    world.step()
    looks = world.looks

    def fail() -> int:
        raise OSError("no descriptor")

    with monkeypatch.context() as failing:
        failing.setattr(world.watch, "_memory_bytes", fail)
        world.now_s += 1.0
        world.watch.step_if_late()
    assert "no descriptor" in caplog.text
    world.watch.stop()
    world.now_s += 1.0
    world.watch.step_if_late()
    assert world.looks == looks


def test_stream_that_begins_on_a_new_connection_gets_its_credit_at_once(world: World) -> None:
    """What it sends beyond its first 2 to 4 MiB would be dropped until the next check, and come again after 0.2 s."""
    world.step()
    world.now_s += 0.02
    world.sockets[THREE] = Socket()
    looks = world.looks
    world.watch.renew_credits_for_stream()
    assert 2 * _MIB < world.sockets[THREE].credit_bytes < math.inf
    assert world.looks == looks + 1
    world.now_s += 0.002
    world.watch.renew_credits_for_stream()
    assert world.looks == looks + 1, "not twice within 5 ms"
    world.now_s += 0.02
    with world.watch._stepping:
        world.watch.renew_credits_for_stream()
    assert world.looks == looks + 1, "and not beside a check that is under way"


def test_streams_that_begin_renew_nothing_while_memory_is_watched_closely(world: World) -> None:
    """Checks come often then, and nobody may make them come more often."""
    world.is_flooded = True
    world.step()
    world.now_s += 0.05
    looks = world.looks
    world.watch.renew_credits_for_stream()
    assert world.looks == looks


def test_connections_receive_next_to_nothing_while_calls_come_as_a_flood(world: World) -> None:
    """The next check may come late. A client at its work goes on."""
    world.taken[TWO] = 8 * _MIB
    world.step(two=8, memory=0)
    assert world.sockets[ONE].credit_bytes > 2 * _MIB
    world.is_flooded = True
    world.step()
    assert world.sockets[ONE].credit_bytes <= 256 << 10
    assert world.sockets[TWO].credit_bytes > 8 * _MIB
    world.is_flooded = False
    for _ in range(20):
        world.step()
    assert world.sockets[ONE].credit_bytes > 2 * _MIB


def test_client_that_paused_may_send_a_large_message_in_a_flood(world: World) -> None:
    """What is refused of it would come again ever more slowly, long after the flood."""
    world.taken[TWO] = 8 * _MIB
    world.step(two=8, memory=0)
    for _ in range(600):
        world.step()
    world.is_flooded = True
    for _ in range(5):
        world.step()
    assert world.sockets[ONE].credit_bytes <= 256 << 10
    assert world.sockets[TWO].credit_bytes >= 2 * _MIB


def test_connection_that_is_cut_receives_nothing_more(world: World) -> None:
    """Closing it waits for its reader."""
    assert world.step(one=MAX_UNTAKEN_BYTES // _MIB + 80) == [ONE]
    assert world.sockets[ONE].filter is connections.TAKES_NOTHING


def test_credits_are_renewed_though_memory_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no descriptor left to ask the system with."""
    monkeypatch.setattr(world.watch, "_memory_bytes", lambda: None)
    for _ in range(100):
        world.taken[TWO] = world.taken.get(TWO, 0) + 60 * _MIB
        assert world.sockets[TWO].credit_bytes > 60 * _MIB
        assert world.step(two=60, memory=0) == []


def test_broker_whose_watch_has_a_defect_serves_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, and with an error in its log; but no connection waits for a credit that never comes."""
    world.step(memory=700)
    world.step(one=60, two=60)
    for each in world.sockets.values():
        each.received_bytes, each.is_cut = 0, False
    world.step()
    assert world.is_held
    assert world.is_confined

    def fail() -> int:
        raise ValueError("defect")

    monkeypatch.setattr(world.watch, "_memory_bytes", fail)
    world.watch.start(frozenset({1}))
    try:
        wait_until(lambda: not world.is_held, "the watch has given up")
    finally:
        world.watch.stop()
    assert not world.is_confined
    assert [each.filter for each in world.sockets.values()] == [None, None]


@pytest.mark.parametrize("error", [OSError("no descriptor"), MemoryError()])
def test_failed_cut_ends_no_worker_and_is_retried(world: World, error: Exception) -> None:
    """A flood may leave no descriptor or memory for a moment; after four failures nobody would be cut any more."""
    done = threading.Event()

    def fail() -> None:
        raise error

    world.watch.start(frozenset({1}))
    try:
        for _ in range(8):
            world.watch._order(fail)
        world.watch._order(done.set)
        assert done.wait(10)
    finally:
        world.watch.stop()


def test_connection_whose_cut_failed_is_cut_by_a_later_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not count as one that is ending."""

    def fail(descriptor: int, ports: connections.Ports, address: PeerAddress) -> bool:
        raise OSError("no descriptor")

    with monkeypatch.context() as failing:
        failing.setattr(connections, "reset", fail)
        with pytest.raises(OSError, match="no descriptor"):
            world.step(one=MAX_UNTAKEN_BYTES // _MIB + 1)
    assert world.step() == [ONE]


def test_resident_memory_is_that_of_now_though_no_descriptor_is_left() -> None:
    """The file is opened once, and closed with the object; none is needed at the moment when all are taken."""
    memory = ResidentMemory()
    before_bytes, files = memory(), Path("/proc/self/fd")
    assert (before_bytes is not None) == (sys.platform == "linux")
    if before_bytes is None:
        return
    count = len(list(files.iterdir()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    content = bytearray(b"x" * (64 * _MIB))  # written, and so in memory
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(files, os.O_RDONLY)
        grown_bytes = memory()
        unopened = ResidentMemory()()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert unopened is None
    assert grown_bytes is not None
    assert 60 * _MIB < grown_bytes - before_bytes < 80 * _MIB
    assert len(list(files.iterdir())) == count
    memory._descriptor, opened = -1, memory._descriptor
    assert memory() is None, "a failed read is no answer"
    memory._descriptor = opened
    watch = MemoryWatch(_LIMIT_BYTES, taken_bytes=dict)
    assert watch._memory_bytes() == pytest.approx(memory(), abs=_MIB)
    del memory, content, watch
    gc.collect()
    assert len(list(files.iterdir())) == count - 1
