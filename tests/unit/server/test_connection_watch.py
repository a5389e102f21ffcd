"""Too many connections: which are cut, and when new ones are accepted again."""

from __future__ import annotations

import pytest

from broker_runtime.server import connections
from broker_runtime.server.connection_watch import ConnectionWatch
from broker_runtime.server.connections import PeerAddress, Traffic

_LIMIT = 100


class World:
    """The connections and open files of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: dict[PeerAddress, int] = {}
        self.streaming: set[PeerAddress] = set()
        self.files = 50
        self.is_held = False
        self.looks = 0
        self.watch = ConnectionWatch(
            _LIMIT, streaming=lambda: self.streaming, open_files=lambda few: self.files + len(self.received)
        )
        monkeypatch.setattr(connections, "traffic", self._traffic)
        monkeypatch.setattr(connections, "reset_now", self._reset)
        monkeypatch.setattr(connections, "hold_new", self._hold_new)

    def connect(self, host: str, count: int, received_bytes: int = 0) -> list[PeerAddress]:
        """Opens that many more connections that have sent that much."""
        made = [PeerAddress(host, len(self.received) + number) for number in range(count)]
        self.received.update(dict.fromkeys(made, received_bytes))
        return made

    def _traffic(self, port: int) -> dict[PeerAddress, Traffic]:
        self.looks += 1
        return {address: Traffic(0, received_bytes, 0) for address, received_bytes in self.received.items()}

    def _reset(self, descriptor: int, ports: connections.Ports, address: PeerAddress) -> bool:
        del self.received[address]
        return True

    def _hold_new(self, ports: connections.Ports, is_held: bool, *, why: str) -> None:
        self.is_held = is_held


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_idle_connections_beyond_the_limit_are_cut_and_those_with_a_stream_stay(world: World) -> None:
    """The one that has sent least goes first, and nobody can connect until there are few again."""
    world.streaming = set(world.connect("producer", 40))
    clients = world.connect("client", 30, received_bytes=500)
    assert world.watch.step() == 0
    world.connect("stranger", 500)
    assert world.watch.step() == 570 - _LIMIT * 3 // 4
    assert world.is_held
    assert world.streaming <= world.received.keys()
    assert set(clients) <= world.received.keys()
    assert world.watch.step() == 0
    assert not world.is_held


def test_connections_with_streams_are_never_cut(world: World) -> None:
    """There are never more than `max.connections` of them."""
    world.streaming = set(world.connect("producer", _LIMIT + 20))
    assert world.watch.step() == 0
    assert world.is_held


def test_no_look_is_made_while_few_files_are_open_and_log_files_do_not_count(world: World) -> None:
    """One look counts them."""
    for _ in range(5):
        world.watch.step()
    assert world.looks == 0
    world.files = 5_000
    world.connect("client", 20)
    for _ in range(5):
        assert world.watch.step() == 0
    assert world.looks == 1
    world.connect("stranger", 200)
    assert world.watch.step() > 0
