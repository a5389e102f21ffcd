"""How credits are shared among connections; the kernel is the test's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from broker_runtime.server import connections
from broker_runtime.server.connections import (
    BETWEEN_BARRIERS_BYTES,
    TAKES_NOTHING,
    TAKES_SMALL,
    TAKES_TO_BARRIER,
    Filter,
    PeerAddress,
    Traffic,
)
from broker_runtime.server.receive_credits import ReceiveCredits

_KIB, _MIB = 1 << 10, 1 << 20
_BUDGET_BYTES = 80 * _MIB
ONE, TWO, THREE, FOUR = (PeerAddress("127.0.0.1", number) for number in range(1, 5))


@dataclass(frozen=True)
class Until:
    """A filter that accepts that many bytes in all."""

    first_sequence: int
    received_bytes: int


class World:
    """Four connections, which have sent nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received = dict.fromkeys((ONE, TWO, THREE, FOUR), 0)
        self.of_late = dict.fromkeys(self.received, 0.0)
        self.unreported: dict[PeerAddress, int] = {address: 1000 + address.port for address in self.received}
        self.cookies = {address: address.port for address in self.received}
        self.refused = dict.fromkeys(self.received, 0)
        self.can_set = True
        self.filters: dict[PeerAddress, object] = {}
        self.set_count = 0
        self.is_confined = False
        self.credits = ReceiveCredits()

        def set_filter(descriptor: int, ports: connections.Ports, address: PeerAddress, wanted: object) -> bool:
            if self.can_set:
                self.filters[address] = wanted
                self.set_count += 1
            return self.can_set

        def first_sequence(descriptor: int, address: PeerAddress) -> int | None:
            return self.unreported.pop(address, None)

        def confine_new(ports: connections.Ports, is_confined: bool) -> None:
            self.is_confined = is_confined

        monkeypatch.setattr(connections, "takes_until", lambda first, received, credit: Until(first, received + credit))
        monkeypatch.setattr(connections, "set_filter", set_filter)
        monkeypatch.setattr(connections, "first_sequence", first_sequence)
        addresses = {address.port: address for address in self.received}
        monkeypatch.setattr(connections, "refused_count", lambda descriptor: self.refused[addresses[descriptor]])
        monkeypatch.setattr(connections, "confine_new", confine_new)

    def found(self) -> dict[PeerAddress, Traffic]:
        return {
            address: Traffic(address.port, received, 0, self.cookies.get(address, 99))
            for address, received in self.received.items()
        }

    def renew(self, budget_bytes: int = _BUDGET_BYTES, *, is_crowded: bool = False) -> None:
        of_late = {address: self.of_late.get(address, 0.0) for address in self.received}
        self.credits.renew(self.found(), of_late, budget_bytes, is_crowded=is_crowded)

    def left_bytes(self, address: PeerAddress) -> int:
        wanted = self.filters[address]
        assert isinstance(wanted, Until)
        return wanted.received_bytes - self.received[address]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_connections_at_rest_leave_half_of_the_budget_to_those_that_send(world: World) -> None:
    """A thousand consumers wait while one producer sends."""
    world.renew()
    for _ in range(3):
        world.received[ONE] += 25 * _MIB
        world.renew()
    assert world.left_bytes(ONE) == 30 * _MIB
    assert [world.left_bytes(address) for address in (TWO, THREE, FOUR)] == [15 * _MIB] * 3
    assert world.credits.least_bytes == 10 * _MIB


def test_connections_with_most_recent_messages_may_send_most(world: World) -> None:
    """They complete what they have begun."""
    world.of_late |= {ONE: 300.0, TWO: 100.0}
    world.renew()
    assert [world.left_bytes(address) >> 20 for address in world.received] == [30, 20, 15, 15]


def test_idle_connections_keep_their_credit_while_the_budget_allows(world: World) -> None:
    """Otherwise each change of who sends would set all filters."""
    world.renew()
    count = world.set_count
    for _ in range(20):
        world.renew()
    assert world.set_count == count
    world.renew(_BUDGET_BYTES // 2)
    assert [world.left_bytes(address) for address in world.received] == [5 * _MIB] * 4


def test_all_connections_together_receive_at_most_five_quarters_of_the_budget(world: World) -> None:
    """This holds whichever of them send, and however the budget shrinks."""
    budget_bytes = 512 * _MIB
    for number in range(60):
        world.renew(budget_bytes, is_crowded=True)
        assert 0 < sum(world.left_bytes(address) for address in world.received) <= budget_bytes * 5 // 4
        for address in world.received:
            if number % address.port == 0:
                world.received[address] += world.left_bytes(address) // (1 + number % 3)
        budget_bytes = max(_MIB, int(budget_bytes * 0.8))


@pytest.mark.parametrize(("is_crowded", "mebibytes"), [(False, 2), (True, 1)])
def test_each_of_many_connections_may_begin_a_large_message_unless_they_are_crowded(
    world: World, *, is_crowded: bool, mebibytes: int
) -> None:
    """Two hundred idle producers must not wait for a check."""
    world.renew(8 * _MIB, is_crowded=is_crowded)
    for _ in range(3):
        world.renew(8 * _MIB, is_crowded=is_crowded)
    assert world.credits.least_bytes == mebibytes * _MIB
    assert world.left_bytes(ONE) >= world.credits.least_bytes


def test_credit_that_is_hardly_used_is_left_as_it_is(world: World) -> None:
    """Setting a filter costs more than a look."""
    world.renew()
    world.renew()
    before = world.set_count
    for _ in range(20):
        world.received[ONE] += 10 * _KIB
        world.renew()
    assert world.set_count <= before + 1


def test_budget_of_one_connection_fits_sequence_numbers(world: World) -> None:
    """Half of a sequence space of four gibibytes is the past."""
    world.received = {ONE: 5 << 30}
    world.renew(64 << 30)
    assert world.left_bytes(ONE) == 512 * _MIB


def test_new_connections_are_confined_while_connections_are_crowded(world: World) -> None:
    """And have a credit like all others from the next renewal on."""
    world.renew()
    assert not world.is_confined
    new = PeerAddress("127.0.0.1", 9)
    world.received[new], world.filters[new], world.unreported[new] = 0, TAKES_SMALL, 9
    world.renew(is_crowded=True)
    assert world.is_confined
    assert isinstance(world.filters[new], Until)
    world.renew()
    assert not world.is_confined


def test_another_connection_from_the_same_port_starts_from_zero(world: World) -> None:
    """The first one's credit does not apply to it, even if it has sent more by now."""
    world.renew()
    world.cookies[ONE], world.unreported[ONE], world.received[ONE] = 77, 7, 3 * _MIB
    world.renew()
    wanted = world.filters[ONE]
    assert isinstance(wanted, Until)
    assert wanted.first_sequence == 7


def test_connection_that_nobody_saw_begin_does_not_inherit_the_beginning_of_another(world: World) -> None:
    """The kernel reports no first packet while it is flooded with connections; the port was another's before."""
    world.received[ONE] = 3 * _MIB
    world.renew()
    world.cookies[ONE], world.received[ONE] = 77, 4 * _MIB
    world.renew()
    assert world.filters[ONE] in TAKES_TO_BARRIER


def test_connection_that_is_to_be_cut_receives_nothing(world: World) -> None:
    """Nor is its credit passed on to another one."""
    world.renew()
    world.credits.take_nothing(ONE, 1)
    assert world.filters[ONE] is TAKES_NOTHING
    others = {address: 0.0 for address in world.received if address != ONE}
    world.credits.renew(world.found(), others, _BUDGET_BYTES)
    assert world.filters[ONE] is TAKES_NOTHING


def test_connection_of_unknown_beginning_goes_on_where_a_barrier_stopped_it_and_meets_none_again(world: World) -> None:
    """Where it stopped shows where it is; from then on each renewal moves the barrier away in time."""
    del world.unreported[ONE]
    place_bytes = 3 * _MIB + 4321  # of its first byte, which nobody knows
    stops, come = 0, 0
    for _ in range(200):
        world.renew()
        wanted = world.filters[ONE]
        assert isinstance(wanted, Filter)
        barrier_bytes = TAKES_TO_BARRIER.index(wanted) * (BETWEEN_BARRIERS_BYTES // 16) - 64 * _KIB
        room_bytes = (barrier_bytes - place_bytes - world.received[ONE]) % BETWEEN_BARRIERS_BYTES
        assert room_bytes <= BETWEEN_BARRIERS_BYTES - 64 * _KIB, "it stands in the barrier"
        more_bytes = min(room_bytes + 500, 1 * _MIB)  # the last segment may end in the barrier
        come += more_bytes
        world.received[ONE] += more_bytes
        if more_bytes > room_bytes:
            stops += 1
            world.refused[ONE] += 1
    assert stops == 1
    assert come > 150 * _MIB


def test_connection_of_unknown_beginning_that_is_idle_keeps_its_filter(world: World) -> None:
    """Nothing shows that it has to wait."""
    del world.unreported[ONE]
    for _ in range(20):
        world.renew()
    assert world.filters[ONE] is TAKES_TO_BARRIER[0]


def test_credit_that_could_not_be_given_is_given_by_the_next_renewal(world: World) -> None:
    """There may have been no descriptor left for a moment."""
    world.renew()
    world.received[ONE] += world.left_bytes(ONE)
    world.can_set = False
    world.renew()
    assert world.left_bytes(ONE) == 0
    world.can_set = True
    world.renew()
    assert world.left_bytes(ONE) > 0
