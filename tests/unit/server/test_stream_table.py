"""Which streams the watchdog cuts; the clock is the test's, and fakes stand in for sockets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker_runtime.contract import errors
from broker_runtime.server import connections, streams
from broker_runtime.server.connections import PeerAddress, parse_peer
from broker_runtime.server.openings import Patience
from broker_runtime.server.streams import OpenStream, Phase, StreamTable
from tests.callers import CLIENT
from tests.clocks import ReadClock

_PEER = "ipv4:127.0.0.1:1234"
_ADDRESS = PeerAddress("127.0.0.1", 1234)


@dataclass
class FakeConnection:
    """Stands in for a peer's socket."""

    acknowledged: int | None = 0
    is_cut: bool = False

    def close(self) -> None:
        return


@dataclass
class Watch:
    """A table, its clock and the connection of one peer."""

    connection: FakeConnection = field(default_factory=FakeConnection)
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        self.table = StreamTable(2, clock=ReadClock(lambda: self.now_s))

    def run(self, seconds: int, acknowledges: int = 0) -> int:
        """Steps each second, in which the peer reads that many bytes. Returns the number of cuts."""
        cuts = 0
        for _ in range(seconds):
            self.now_s += 1
            if self.connection.acknowledged is not None:
                self.connection.acknowledged += acknowledges
            cuts += self.table.step()
        return cuts


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(connections, "connections_to", lambda peers: dict.fromkeys(peers, watch.connection))
    monkeypatch.setattr(connections, "bytes_acknowledged", lambda connection: connection.acknowledged)
    monkeypatch.setattr(connections, "cut", lambda connection: setattr(connection, "is_cut", True))
    monkeypatch.setattr(streams.time, "monotonic", lambda: watch.now_s)
    return watch


def test_silent_peer_is_cut_after_the_limit_and_not_before(watch: Watch) -> None:
    """A watchdog cuts silent peers."""
    stream = watch.table.open("fetch", CLIENT, parse_peer(_PEER))
    assert stream.address == _ADDRESS
    with stream.reading:
        assert watch.run(8, acknowledges=100) == 0
        assert watch.run(1, acknowledges=100) == 1
        assert watch.connection.is_cut
        assert watch.run(8) == 0
        assert watch.run(1) == 1, "again, should the first cut not have helped"
    assert watch.run(100) == 0


def test_stream_that_works_is_never_cut(watch: Watch) -> None:
    """A long poll is the broker's own wait, not the peer's silence."""
    watch.table.open("fetch", CLIENT, parse_peer(_PEER))
    assert watch.run(1000) == 0


def test_slow_reader_is_not_cut_until_the_write_lasts_too_long(watch: Watch) -> None:
    """A slow peer is not a silent one; yet no write lasts forever."""
    stream = watch.table.open("fetch", CLIENT, parse_peer(_PEER))
    with stream.writing:
        assert watch.run(int(streams.MAX_WRITE_S), acknowledges=1) == 0
        assert watch.run(10, acknowledges=1) == 1


@pytest.mark.parametrize("acknowledged", [0, None])
def test_peer_that_reads_nothing_is_cut_in_a_write(watch: Watch, acknowledged: int | None) -> None:
    """A client stopped reading; this also works where the system does not report what the peer read."""
    watch.connection.acknowledged = acknowledged
    stream = watch.table.open("fetch", CLIENT, parse_peer(_PEER))
    with stream.writing:
        assert watch.run(8) == 0
        assert watch.run(3) == 1


def test_streams_have_limits_of_their_own(watch: Watch) -> None:
    """Readers may pause for longer."""
    stream = watch.table.open("read", CLIENT, parse_peer(_PEER), write_limit_s=15)
    with stream.writing:
        assert watch.run(15) == 0
        assert watch.run(3) == 1


def test_table_is_bounded_and_refuses_when_stopping(watch: Watch) -> None:
    """1,000 streams per broker, then a retriable refusal."""
    first, _ = watch.table.open("a", CLIENT, parse_peer(_PEER)), watch.table.open("b", CLIENT, parse_peer(_PEER))
    with pytest.raises(errors.TooManyStreamsError):
        watch.table.open("c", CLIENT, parse_peer(_PEER))
    watch.table.close(first)
    watch.table.close(first)
    assert (watch.table.kinds(), len(watch.table)) == (["b"], 1)
    watch.table.refuse_new()
    with pytest.raises(errors.BrokerUnavailableError):
        watch.table.open("c", CLIENT, parse_peer(_PEER))


def test_followers_are_admitted_when_clients_have_all_room(watch: Watch) -> None:
    """A broker full of clients still feeds its followers, which use up no client's place."""
    follower = watch.table.open("follower", CLIENT, parse_peer(_PEER), is_limited=False)
    for kind in ("a", "b"):
        watch.table.open(kind, CLIENT, parse_peer(_PEER))
    watch.table.open("follower", CLIENT, parse_peer(_PEER), is_limited=False)
    watch.table.close(follower)
    with pytest.raises(errors.TooManyStreamsError, match="2 streams are open"):
        watch.table.open("c", CLIENT, parse_peer(_PEER))


def test_stream_of_a_peer_without_tcp_is_left_alone(watch: Watch) -> None:
    """A connection that cannot be found cannot be cut."""
    stream = watch.table.open("fetch", CLIENT, parse_peer("unix:/tmp/socket"))
    with stream.reading:
        assert watch.run(100) == 0


def test_phase_is_entered_and_left() -> None:
    """Both are plain assignments."""
    stream = OpenStream("x", _PEER, None, Phase(1.0), Phase(1.0))
    with stream.reading:
        assert stream.reading.since_s is not None
    assert stream.reading.since_s is None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("ipv6:%5B::1%5D:50051", ("::1", 50051)),
        ("ipv6:[2001:db8:0:0::1]:1", ("2001:db8::1", 1)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:9", ("10.0.0.1", 9)),
        ("unix:/tmp/x", None),
        ("ipv4:127.0.0.1:", None),
        ("", None),
    ],
)
def test_peer_names_of_grpc_are_parsed(peer: str, address: tuple[str, int] | None) -> None:
    """Both address families, escaped brackets and mapped addresses are parsed."""
    assert parse_peer(peer) == address


def test_silent_connections_are_cut_unless_they_have_a_stream_or_an_action(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown whose a silent call is: connections with nothing else are cut after the same patience."""
    patience: list[Patience | None] = [None]
    watch.table = StreamTable(2, patience=lambda: patience[0], clock=ReadClock(lambda: watch.now_s))
    addresses = [PeerAddress("127.0.0.1", port) for port in (1, 2, 3, 4)]
    sockets = {address: FakeConnection() for address in addresses}
    monkeypatch.setattr(connections, "idle_connections", lambda port, idle_s: dict(sockets))
    watch.table.open("fetch", CLIENT, parse_peer("ipv4:127.0.0.1:1"))
    acting = watch.table.acting(parse_peer("ipv4:127.0.0.1:2"))
    acting.__enter__()
    assert watch.table.cut_silent(frozenset({9})) == 0
    patience[0] = Patience(2.0, actions_excuse=True, streams_excuse=True)
    assert watch.table.cut_silent(frozenset({9})) == 0  # seen for the first time
    watch.now_s += 1
    with watch.table.acting(parse_peer("ipv4:127.0.0.1:3")):
        pass
    watch.now_s += 1.5
    assert watch.table.cut_silent(frozenset({9})) == 1
    assert [sockets[address].is_cut for address in addresses] == [False, False, False, True]
    watch.now_s += 1
    acting.__exit__(None, None, None)
    watch.table.cut_silent(frozenset({9}))
    assert [sockets[address].is_cut for address in addresses] == [False, False, True, True]


def test_actions_excuse_no_connection_when_silent_calls_are_many(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one refused action a second would keep a flood alive; a stream is left alone, a current action for
    long.
    """
    flood = Patience(2.0, actions_excuse=False, streams_excuse=True)
    watch.table = StreamTable(2, patience=lambda: flood, clock=ReadClock(lambda: watch.now_s))
    sockets = {PeerAddress("127.0.0.1", port): FakeConnection() for port in (1, 2, 3)}
    monkeypatch.setattr(connections, "idle_connections", lambda port, idle_s: dict(sockets))
    watch.table.open("fetch", CLIENT, parse_peer("ipv4:127.0.0.1:1"))
    acting = watch.table.acting(parse_peer("ipv4:127.0.0.1:2"))
    acting.__enter__()
    cuts: list[list[bool]] = []
    for _ in range(10):
        with watch.table.acting(parse_peer("ipv4:127.0.0.1:3")):
            pass
        watch.table.cut_silent(frozenset({9}))
        cuts.append([each.is_cut for each in sockets.values()])
        watch.now_s += 1
    assert cuts[1] == [False, False, False]
    assert cuts[2] == cuts[7] == [False, False, True]
    assert cuts[8] == [False, True, True]


def test_clients_streams_are_cut_one_at_a_time_when_nothing_else_helps(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood hides beside a good stream: the newest is cut first, another broker's never."""
    stuck = Patience(2.0, actions_excuse=False, streams_excuse=False)
    watch.table = StreamTable(9, patience=lambda: stuck, clock=ReadClock(lambda: watch.now_s))
    sockets = {PeerAddress("127.0.0.1", port): FakeConnection() for port in (1, 2, 3)}
    monkeypatch.setattr(
        connections, "idle_connections", lambda port, idle_s: {at: s for at, s in sockets.items() if not s.is_cut}
    )
    for port in (1, 2, 3):
        watch.table.open("fetch", CLIENT, parse_peer(f"ipv4:127.0.0.1:{port}"), is_limited=port != 3)
        watch.now_s += 1
    cuts = []
    for _ in range(4):
        watch.table.cut_silent(frozenset({9}))
        cuts.append([each.is_cut for each in sockets.values()])
        watch.now_s += 1
    assert cuts == [[False, True, False], [True, True, False], [True, True, False], [True, True, False]]


def test_taken_bytes_are_those_of_streams_and_of_calls_that_have_ended(watch: Watch) -> None:
    """Each message has a small allowance for its envelope, and nothing counts for other connections."""
    stream = watch.table.open("fetch", CLIENT, parse_peer(_PEER))
    with watch.table.acting(parse_peer(_PEER), 8 << 20):
        assert watch.table.taken_bytes()[_ADDRESS] < 1 << 20
    taken = watch.table.taken_bytes()[_ADDRESS]
    assert 9 << 20 <= taken < 10 << 20
    watch.table.close(stream)
    assert watch.table.taken_bytes() == {_ADDRESS: taken}


def test_bytes_of_actions_count_from_their_beginning(watch: Watch) -> None:
    """Their requests are decoded then, and need many times their bytes."""
    with watch.table.acting(parse_peer("ipv4:127.0.0.1:2"), 700):
        assert watch.table.acted_bytes() == 700
    with watch.table.acting(parse_peer("ipv4:127.0.0.1:3"), 50):
        assert watch.table.acted_bytes() == 750
