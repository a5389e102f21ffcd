"""Which streams are open, and which of them have waited too long for their peer.

Rule: a stream notes when a wait for its peer begins and ends, to read or to write; that costs two assignments. The
watchdog checks all of them once a second, and closes the connection of a peer that let a stream wait longer than its
limit. A peer that takes bytes, however slowly, is not silent (its kernel's acknowledgements show it), up to
`MAX_WRITE_S` for one write.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from broker_runtime.contract.errors import BrokerUnavailableError, TooManyStreamsError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import PEER_SILENCE_LIMIT_S
from broker_runtime.contract.waiting import CLOCK, Clock, Worker
from broker_runtime.security.quotas import UNLIMITED, Allowance
from broker_runtime.server import connections
from broker_runtime.server.connections import PeerAddress
from broker_runtime.server.openings import Patience
from broker_runtime.server.thread_watch import Streaming
from broker_runtime.services.caller import BrokerCaller, Caller

MAX_WRITE_S = 300.0
"""No single write lasts longer, even to a peer that takes a byte now and then."""
MAX_IDLE_S = 300.0
"""A connection without streams on which nothing came for this long is closed; its client opens another when it calls.

It may hold a thread of gRPC's: that of a call that stopped before its first message, of which no stream is known yet.
"""
_HEARD_S = 60.0
_MAX_ACTION_S = 8.0  # an action under way excuses a connection for so long while there are many silent calls
_ENVELOPE_BYTES = 1 << 10  # what a message is sent in, at most
_COLUMN_BYTES = 256  # its part of a message, without its values
_MESSAGE_BYTES = 256  # of a stream: its own part, hardly more
_ONE_REQUEST = frozenset({"read", "plain-get"})
_STEP_S = 1.0
_STEPS_PER_SWEEP = 60
_JOIN_LIMIT_S = 2.0

_WITHDRAWN = "its user was deleted, or has another password, or its token has ended"

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Phase:
    """One way in which a stream waits for its peer. One thread enters and leaves; the watchdog reads."""

    limit_s: float
    since_s: float | None = None  # of the monotonic clock; None: not waiting
    count: int = 0  # how often it has ended
    # The watchdog's own: when it last saw the peer take bytes (or cut it), and how many in all.
    moved_s: float = 0.0
    acknowledged: int = -1

    def __enter__(self) -> None:
        self.since_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.since_s = None
        self.count += 1


@dataclass(slots=True, eq=False)
class OpenStream:
    """A stream under watch: ``with stream.reading: …`` around each read of the network, likewise ``writing``."""

    kind: str
    caller: Caller
    address: PeerAddress | None
    reading: Phase
    writing: Phase
    is_limited: bool = True
    allowance: Allowance = UNLIMITED
    opened_s: float = field(default_factory=time.monotonic)
    taken_bytes: int = 0
    content_bytes: int = 0

    @property
    def log_level(self) -> int:
        """Of the lines about its beginning and its end: a range that is read is one request of a client."""
        return logging.DEBUG if self.kind in _ONE_REQUEST else logging.INFO

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """For log lines about it. ``broker``: the follower that has proved that it is this one."""
        broker = self.caller.broker_id if isinstance(self.caller, BrokerCaller) else None
        return {"kind": self.kind, "broker": broker, **self.caller.log_fields}

    def took(self, chunk: Any) -> None:
        """A message has been read, and what it asks for is done: its bytes are no longer needed."""
        size_bytes = 0 if chunk.app_metadata is None else chunk.app_metadata.size
        if chunk.data is not None:
            size_bytes += chunk.data.get_total_buffer_size() + _COLUMN_BYTES * chunk.data.num_columns
        self.taken_bytes += _sent_bytes(size_bytes)
        self.content_bytes += size_bytes + _MESSAGE_BYTES


class StreamTable:
    """All open streams of the broker. Thread-safe."""

    def __init__(
        self,
        max_streams: int,
        *,
        patience: Callable[[], Patience | None] = lambda: None,
        is_current: Callable[[Caller], bool] = lambda caller: True,
        clock: Clock = CLOCK,
    ) -> None:
        """``patience``: how long connections without a stream may stay now, because calls on some of them hold threads;
        None: up to `MAX_IDLE_S`. ``is_current``: whether a caller's credential still counts; looked at every second."""
        self._max_streams = max_streams
        self._patience = patience
        self._is_current = is_current
        self._clock = clock
        self._ended_bytes: Counter[PeerAddress] = Counter()  # sent in calls that ended, of connections that may be open
        self._ended_content_bytes: Counter[PeerAddress] = Counter()  # likewise, without what they were sent in
        self._acted_bytes = 0
        self._acting: Counter[PeerAddress | None] = Counter()  # actions under way
        self._heard_s: dict[PeerAddress, float] = {}  # when a call from there ended; in the last `_HEARD_S`
        self._seen_s: dict[PeerAddress, float] = {}  # while calls are silent: when a connection was first seen
        self._lock = threading.Lock()
        self._open: set[OpenStream] = set()
        self._limited = 0  # of them count for max.connections
        self._is_stopping = False
        self._ports: connections.Ports = frozenset()
        self._steps = 0
        # Retried: there was no descriptor or memory left to check with, and there may be in a second.
        self._watchdog = Worker("stream-watchdog", self._watch, retried=(OSError, MemoryError), again_s=_STEP_S)

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        kind: str,
        caller: Caller,
        address: PeerAddress | None,
        *,
        read_limit_s: float = PEER_SILENCE_LIMIT_S,
        write_limit_s: float = PEER_SILENCE_LIMIT_S,
        is_limited: bool = True,
        allowance: Allowance = UNLIMITED,
    ) -> OpenStream:
        """Registers a stream of ``caller``, on the connection from ``address`` (None: it is no TCP connection, and
        cannot be cut); `close` it. Raises `TooManyStreamsError` (but for one that is not ``is_limited``: other
        brokers', which are few), `BrokerUnavailableError` when stopping. ``allowance``: what it may take."""
        stream = OpenStream(kind, caller, address, Phase(read_limit_s), Phase(write_limit_s), is_limited, allowance)
        with self._lock:
            if self._is_stopping:
                raise BrokerUnavailableError("the broker is stopping")
            if is_limited and self._limited >= self._max_streams:
                raise TooManyStreamsError(f"{self._limited} streams are open, max.connections is {self._max_streams}")
            self._open.add(stream)
            self._limited += is_limited
        event(_logger, "open stream", level=stream.log_level, **stream.log_fields)
        return stream

    def close(self, stream: OpenStream, error: Exception | None = None) -> None:
        """The stream has ended, with ``error`` if there is one. Idempotent."""
        with self._lock:
            if stream not in self._open:
                return
            self._open.remove(stream)
            self._limited -= stream.is_limited
            self._ended(stream.address, stream.taken_bytes + _ENVELOPE_BYTES, stream.content_bytes)
        open_s = time.monotonic() - stream.opened_s
        event(_logger, "close stream", level=stream.log_level, **stream.log_fields, open_s=open_s, error=error)

    def kinds(self) -> list[str]:
        """The kind of every open stream, sorted."""
        with self._lock:
            return sorted(stream.kind for stream in self._open)

    # --- the watchdog ---

    def start(self, ports: connections.Ports) -> None:
        """Starts the thread that calls `step` once a second, and `sweep` once a minute for connections to ``ports``."""
        self._ports = ports
        self._watchdog.start()

    def sweep(self, ports: connections.Ports, max_idle_s: float = MAX_IDLE_S) -> int:
        """Closes connections to ``ports`` that have no streams and on which nothing comes; returns how many. Forgets
        those that are closed."""
        open_now = connections.traffic(ports).keys()
        with self._lock:
            known = open_now | self._heard_s.keys()
            self._ended_bytes = Counter({at: sent for at, sent in self._ended_bytes.items() if at in known})
            self._ended_content_bytes = Counter({at: n for at, n in self._ended_content_bytes.items() if at in known})
            busy = {stream.address for stream in self._open}
        idle = connections.idle_connections(ports, max_idle_s)
        cut = [connection for address, connection in idle.items() if address not in busy]
        for connection in cut:
            connections.cut(connection)
        for connection in idle.values():
            connection.close()
        if cut:
            event(_logger, "cut idle connections", count=len(cut))
        return len(cut)

    def step(self) -> int:
        """Closes the connections of silent peers, and of callers whose credential was withdrawn; returns how many.
        Blocks for system calls only."""
        now_s = self._clock.now_s()
        withdrawn = [stream for stream in tuple(self._open) if not self._is_current(stream.caller)]
        if withdrawn:
            self._cut_withdrawn(withdrawn)
        waiting = self._waiting(now_s)
        if not waiting:
            return 0
        sockets = connections.connections_to({stream.address for stream, *_ in waiting if stream.address is not None})
        cut: set[PeerAddress] = set()
        try:
            for stream, phase, since_s in waiting:
                connection = sockets.get(stream.address) if stream.address is not None else None
                if connection is None:
                    continue
                if phase is stream.writing and _moves(phase, since_s, connection, now_s):
                    continue
                silent_s = now_s - max(since_s, phase.moved_s)
                if silent_s > phase.limit_s:
                    event(_logger, "cut connection", **stream.log_fields, silent_s=silent_s)
                    connections.cut(connection)
                    phase.moved_s = now_s
                    assert stream.address is not None
                    cut.add(stream.address)
        finally:
            for connection in sockets.values():
                connection.close()
        return len(cut)

    def _cut_withdrawn(self, streams: list[OpenStream]) -> None:
        sockets = connections.connections_to({each.address for each in streams if each.address is not None})
        try:
            for stream in streams:
                event(_logger, "cut connection", **stream.log_fields, error=_WITHDRAWN)
                if stream.address in sockets and stream.address is not None:
                    connections.cut(sockets[stream.address])
        finally:
            for connection in sockets.values():
                connection.close()

    @contextmanager
    def acting(self, address: PeerAddress | None, size_bytes: int = 0) -> Iterator[None]:
        """Around an action of that peer, with so many bytes: it shows that the connection is in use, during the action
        and for a while after."""
        with self._lock:
            self._acting[address] += 1
            self._acted_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._acting[address] -= 1
                if not self._acting[address]:
                    del self._acting[address]
                self._ended(address, _sent_bytes(size_bytes), size_bytes)

    def _ended(self, address: PeerAddress | None, sent_bytes: int, content_bytes: int) -> None:
        """A call has ended, in which so many bytes were sent, and so many of them were its content. Under the lock."""
        if address is not None:
            self._ended_bytes[address] += sent_bytes
            self._ended_content_bytes[address] += content_bytes
            self._heard_s[address] = self._clock.now_s()

    def taken_bytes(self) -> dict[PeerAddress, int]:
        """The most bytes in which the messages taken from each peer can have been sent, of peers that have streams or
        had calls recently."""
        with self._lock:
            taken = Counter(self._ended_bytes)
            for stream in self._open:
                if stream.address is not None:
                    # The opening counts too, so that a stream is known before its first message.
                    taken[stream.address] += stream.taken_bytes + _ENVELOPE_BYTES
        return taken

    def content_bytes(self) -> dict[PeerAddress, int]:
        """As `taken_bytes`, of the content of messages: hardly more than was sent."""
        with self._lock:
            content = Counter(self._ended_content_bytes)
            for stream in self._open:
                if stream.address is not None:
                    content[stream.address] += stream.content_bytes
        return content

    def acted_bytes(self) -> int:
        """Bytes of the requests of all actions that have begun."""
        return self._acted_bytes

    def streaming(self) -> dict[PeerAddress, Streaming]:
        """The connections that have streams. Takes no lock: its holder may be waiting for the interpreter's."""
        found: dict[PeerAddress, Streaming] = {}
        for stream in tuple(self._open):  # in one step
            if stream.address is not None:
                taken_bytes, is_broker = found.get(stream.address, (0, False))
                found[stream.address] = Streaming(taken_bytes + stream.taken_bytes, is_broker or not stream.is_limited)
        return found

    def cut_silent(self, ports: connections.Ports) -> int:
        """Closes connections to ``ports`` that may be those of silent calls, or of calls whose answers nobody takes, as
        `Patience` says; returns how many.

        Of those without a stream, all; their clients open others when they call. An action excuses them while silent
        calls are few; an action under way, for a while longer. Of those with clients' streams, one at a time, and only
        when cutting all others did not help.
        """
        now_s = self._clock.now_s()
        with self._lock:
            self._heard_s = {at: heard_s for at, heard_s in self._heard_s.items() if now_s - heard_s < _HEARD_S}
            streaming = {stream.address: stream for stream in sorted(self._open, key=lambda each: each.opened_s)}
            other_brokers = {stream.address for stream in self._open if not stream.is_limited}
            acting = set(self._acting)
            heard_s = dict(self._heard_s)
        patience = self._patience()
        if patience is None:
            self._seen_s = {}
            return 0
        found = connections.idle_connections(ports, 0.0)
        self._seen_s = {at: self._seen_s.get(at, now_s) for at in found}
        cut = []
        for address, seen_s in self._seen_s.items():
            if address in streaming or (patience.actions_excuse and address in acting):
                continue
            limit_s = _MAX_ACTION_S if address in acting else patience.limit_s
            if now_s - max(seen_s, heard_s.get(address, 0.0) if patience.actions_excuse else 0.0) >= limit_s:
                cut.append(address)
        suspects = [at for at in self._seen_s if at in streaming and at not in other_brokers]
        if suspects and not patience.streams_excuse and not cut:
            # A peer that was cut comes back as one first seen later, so none is cut twice before the others. The newest
            # streams go first.
            cut.append(min(suspects, key=lambda at: (self._seen_s[at], -streaming[at].opened_s)))
        for address in cut:
            connections.cut(found[address])
        for connection in found.values():
            connection.close()
        if cut:
            event(_logger, "cut silent connections", count=len(cut))
        return len(cut)

    def refuse_new(self) -> None:
        """From now on `open` raises `BrokerUnavailableError`."""
        with self._lock:
            self._is_stopping = True

    def cut_all(self) -> None:
        """Closes the connections of all open streams, which ends their threads now, whatever they wait for."""
        with self._lock:
            peers = {stream.address for stream in self._open if stream.address is not None}
        for connection in connections.connections_to(peers).values():
            connections.cut(connection)
            connection.close()

    def stop(self) -> None:
        """Ends the watchdog's thread; waits up to two seconds for it."""
        self._watchdog.stop()
        self._watchdog.join(_JOIN_LIMIT_S)

    def _waiting(self, now_s: float) -> list[tuple[OpenStream, Phase, float]]:
        """Phases whose connection is to be checked, with when they began."""
        with self._lock:
            streams = list(self._open)
        found = []
        for stream in streams:
            for phase in (stream.reading, stream.writing):
                since_s = phase.since_s
                if since_s is None:
                    continue
                patience_s = _STEP_S if phase is stream.writing else phase.limit_s
                if now_s - max(since_s, phase.moved_s if phase is stream.reading else 0.0) > patience_s:
                    found.append((stream, phase, since_s))
        return found

    def _watch(self) -> float:
        self._steps += 1
        self.step()
        self.cut_silent(self._ports)
        if self._steps % _STEPS_PER_SWEEP == 0:
            self.sweep(self._ports)
        return _STEP_S


def _sent_bytes(size_bytes: int) -> int:
    """The most bytes in which a message of that size can have been sent."""
    return size_bytes + size_bytes // 8 + _ENVELOPE_BYTES


def _moves(phase: Phase, since_s: float, connection: socket.socket, now_s: float) -> bool:
    """Whether the peer has taken bytes since the watchdog's last check."""
    if now_s - since_s > MAX_WRITE_S:
        return False
    acknowledged = connections.bytes_acknowledged(connection)
    if acknowledged is None or acknowledged == phase.acknowledged:
        return False
    phase.acknowledged = acknowledged
    phase.moved_s = now_s
    return True
