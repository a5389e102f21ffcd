"""A ZooKeeper in simulated time: sessions that expire, watches that come late, writes whose outcome nobody knows.

`SimZooKeeper` is the ensemble, `connect` gives a broker's process its client. The tree is the in-memory one that unit
tests use; here are time, connections and what goes wrong. As with the real thing:

- a session ends when its client has sent nothing for the session time-out, and the client learns it only when it
  reaches ZooKeeper again: until then it believes what it believed;
- a write may be carried out though its answer is lost;
- a watch fires some time after the change, in order; those of a client that is cut off, when it is back.

Rule: what a dead or expired session sends changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.zookeeper.memory import MemoryClient, MemoryZooKeeper
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    Create,
    Delete,
    Listener,
    Operation,
    SessionState,
    Set,
    Watch,
    ZNode,
    ZNodeError,
    check_request_size,
)
from tests.simulation.simulator.scheduler import MS, Scheduler
from tests.simulation.simulator.trace import Trace

_T = TypeVar("_T")
ZK = "zk"
LOST_BEFORE, LOST_AFTER = "lost before", "lost after"


TransactionHook = Callable[["SimClient", Sequence[Operation]], None]


@dataclass(slots=True)
class ZooKeeperWeather:
    """How well ZooKeeper is reached. Probabilities per write."""

    call_us: tuple[int, int] = (MS // 2, 4 * MS)
    watch_us: tuple[int, int] = (MS // 2, 20 * MS)
    late_watch: float = 0.0  # a watch takes up to late_watch_us instead
    late_watch_us: int = 1_500 * MS
    lost_before: float = 0.0  # the connection breaks before the write is carried out
    lost_after: float = 0.0  # … after it
    session_timeout_us: int = 6_000 * MS
    give_up_us: int = 300 * MS  # a call without a connection
    reconnect_us: tuple[int, int] = (10 * MS, 400 * MS)


class SimZooKeeper:
    """The ensemble. Observers are called when something happens: ``on_write`` for every change of the tree,
    ``on_refusal`` for a transaction that the tree refuses, ``on_ended_session`` for one that fails and was to be
    written in another session than its client has now."""

    def __init__(self, scheduler: Scheduler, trace: Trace, weather: ZooKeeperWeather) -> None:
        self.scheduler = scheduler
        self.trace = trace
        self.weather = weather
        self.tree = MemoryZooKeeper()
        self.on_write: Callable[[Sequence[Operation]], None] = lambda operations: None
        self.on_refusal: Callable[[Sequence[Operation], ZNodeError], None] = lambda operations, refusal: None
        self.on_ended_session: Callable[[Sequence[Operation]], None] = lambda operations: None
        self.is_down = False
        self.before_transaction: dict[str, TransactionHook] = {}
        """Actor → what is called before its transactions, in its thread; may wait, and break its connection."""
        self.after_transaction: dict[str, TransactionHook] = {}
        """Likewise, when one was carried out and its answer is on the way."""
        self._clients: list[SimClient] = []
        self._reader = self.tree.client()

    def connect(self, actor: str) -> SimClient:
        """A client for the process that ``actor`` is in its present life."""
        client = SimClient(self, actor)
        self._clients.append(client)
        return client

    def find(self, path: str) -> ZNode | None:
        """The znode as it is now, for observers."""
        return self._reader.find(path)

    def children(self, path: str) -> list[str]:
        """The children as they are now, for observers."""
        return self._reader.children(path) if self._reader.find(path) is not None else []

    def process_died(self, actor: str) -> None:
        """The actor's sessions go when their time is over."""
        for client in self._of(actor):
            client.abandon()

    def cut_off(self, actor: str) -> None:
        """The actor reaches ZooKeeper no more."""
        for client in self._of(actor):
            client.cut()

    def reconnect(self, actor: str) -> None:
        """The actor reaches ZooKeeper again."""
        for client in self._of(actor):
            client.mend()

    def expire(self, actor: str) -> None:
        """ZooKeeper ends the actor's session; it learns so a little later."""
        for client in self._of(actor):
            client.expire()

    def silent_for(self, actor: str, duration_us: int) -> None:
        """The actor stands still: its session is lost if that is longer than the time-out."""
        for client in self._of(actor):
            client.silent_for(duration_us)

    def awake(self, actor: str) -> None:
        """The actor stands still no more."""
        for client in self._of(actor):
            client.find_out()

    def go_down(self) -> None:
        """Nobody reaches ZooKeeper, and no session ends."""
        self.is_down = True
        for client in self._clients:
            client.cut()

    def come_back(self) -> None:
        """ZooKeeper is there again, and so are the sessions it had."""
        self.is_down = False
        for client in self._clients:
            client.mend()

    def calm(self) -> None:
        """No answer is lost from now on, and no watch is late."""
        self.weather.lost_before = self.weather.lost_after = self.weather.late_watch = 0.0

    def heal(self, actor: str) -> None:
        """Nothing is wrong with the actor's connection any more."""
        self.reconnect(actor)
        self.awake(actor)

    def _of(self, actor: str) -> list[SimClient]:
        self._clients = [client for client in self._clients if not client.is_over]
        return [client for client in self._clients if client.actor == actor]


class SimClient:
    """A `ZooKeeperClient` of one broker's process."""

    def __init__(self, server: SimZooKeeper, actor: str) -> None:
        self.actor = actor
        self.is_over = False  # the process died, or the client was closed
        self.next_write: str | None = None  # what becomes of it: LOST_BEFORE or LOST_AFTER
        self.on_news: Callable[[], None] = lambda: None  # after a watch or a listener was called
        self._server = server
        self._scheduler = server.scheduler
        self._listeners: list[Listener] = []
        self._raw: MemoryClient = server.tree.client()
        self._session = self._raw.session_id
        self._is_connected = not server.is_down
        self._is_cut = server.is_down
        self._is_expired = False  # ZooKeeper ended the session; the client does not know yet
        self._cuts = 0
        self._silences = 0
        self._watches: set[tuple[str, str, Watch | None]] = set()
        self._missed: list[tuple[Watch, str]] = []
        self._last_watch_us = 0

    # --- what happens to it ---------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks and none comes about."""
        self._is_cut = True
        self._disconnect()
        if not self._server.is_down:
            self._expire_unless_mended()

    def mend(self) -> None:
        """A connection is possible again."""
        if self._is_cut and not self.is_over and not self._server.is_down:
            self._is_cut = False
            self._reconnect_soon()

    def abandon(self) -> None:
        """The process died."""
        self.is_over = True
        self._is_connected = False
        self._listeners.clear()
        self._cuts += 1
        self._after(self._time_left_us(), self._end_session)

    def expire(self) -> None:
        """The session ends; the client learns it after it has reconnected."""
        self._end_session()
        self._disconnect()
        if not self._is_cut:
            self._reconnect_soon()

    def reconnect_at_once(self) -> None:
        """The connection is there again, in a new session where the old one has ended."""
        self._reconnect()

    def silent_for(self, duration_us: int) -> None:
        """No sign of life for so long."""
        timeout_us = self._server.weather.session_timeout_us
        if duration_us <= timeout_us or self._server.is_down:
            return
        self._silences += 1
        silence = self._silences

        def end() -> None:
            if self._silences == silence:
                self._end_session()

        self._after(timeout_us, end)
        self._after(duration_us, self.find_out)

    def find_out(self) -> None:
        """The client is awake, and learns what became of its session."""
        self._silences += 1
        if self._is_expired and not self.is_over:
            self._disconnect()
            self._reconnect_soon()

    # --- ZooKeeperClient ------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, path: str, *, watch: Watch | None = None) -> ZNode:
        return self._call(
            path, lambda raw: self._watched("data", path, watch, lambda fired: raw.get(path, watch=fired))
        )

    def find(self, path: str) -> ZNode | None:
        return self._call(path, lambda raw: raw.find(path))

    def find_all(self, paths: Sequence[str], *, are_small: bool = False) -> list[ZNode | None]:
        return self._call(paths[0], lambda raw: raw.find_all(paths)) if paths else []

    def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        return self._call(
            path, lambda raw: self._watched("children", path, watch, lambda fired: raw.children(path, watch=fired))
        )

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, session: int | None = None) -> None:
        self.transaction([Create(path, data, ephemeral)], session=session)

    def set(self, path: str, data: bytes, *, version: int, session: int | None = None) -> int:
        return self.transaction([Set(path, data, version)], session=session)[0]

    def delete(self, path: str, *, version: int = ANY_VERSION, session: int | None = None) -> None:
        self.transaction([Delete(path, version)], session=session)

    def transaction(self, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        check_request_size(operations)
        before = self._server.before_transaction.get(self.actor)
        if before is not None:
            before(self, operations)

        def apply(raw: MemoryClient) -> list[int]:
            try:
                versions = raw.transaction(operations)
            except ZNodeError as error:
                self._server.on_refusal(operations, error)
                raise
            self._server.on_write(operations)
            after = self._server.after_transaction.get(self.actor)
            if after is not None:
                after(self, operations)
            return versions

        try:
            return self._call(operations[0].path, apply, session=session, is_write=True)
        except ZooKeeperUnavailableError:
            if session not in {None, self._session}:
                self._server.on_ended_session(operations)
            raise

    def ensure_path(self, path: str) -> None:
        parts = path.strip("/").split("/") if path.strip("/") else []
        for depth in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:depth])
            if self._call(prefix, lambda raw, prefix=prefix: raw.find(prefix)) is None:
                self._call(prefix, lambda raw, prefix=prefix: raw.ensure_path(prefix), is_write=True)

    def close(self) -> None:
        if not self.is_over:
            self._end_session()
            self._session, self._is_connected = 0, False
            self._tell(SessionState.LOST)
            self.is_over = True

    # --- a call ---------------------------------------------------------------------------------------------------

    def _call(
        self, path: str, apply: Callable[[MemoryClient], _T], *, session: int | None = None, is_write: bool = False
    ) -> _T:
        weather, rng = self._server.weather, self._scheduler.rng
        self._scheduler.check_alive()
        self._wait_for_connection(path, session)
        begun_in = self._cuts
        half_us = self._scheduler.between(*weather.call_us) // 2
        self._scheduler.block(half_us)
        if is_write and (self._is_next(LOST_BEFORE) or (weather.lost_before and rng.random() < weather.lost_before)):
            self._break(f"before the write of {path}")
        if self._cuts != begun_in or self._is_expired:
            raise ZooKeeperUnavailableError(f"{path}: ZooKeeper did not answer (ConnectionLoss)")
        answer = apply(self._raw)
        if is_write and (self._is_next(LOST_AFTER) or (weather.lost_after and rng.random() < weather.lost_after)):
            self._break(f"after the write of {path}")
        self._scheduler.block(half_us)
        if self._cuts != begun_in:
            raise ZooKeeperUnavailableError(f"{path}: ZooKeeper did not answer (ConnectionLoss)")
        return answer

    def _wait_for_connection(self, path: str, session: int | None) -> None:
        give_up_at_us = self._scheduler.now_us + self._server.weather.give_up_us
        while not self._is_connected and not self.is_over and self._scheduler.now_us < give_up_at_us:
            self._scheduler.block(self._server.weather.give_up_us // 4)
        if session is not None and session != self._session:
            raise ZooKeeperUnavailableError(f"{path}: the session it was to be written in has ended")
        if not self._is_connected:
            raise ZooKeeperUnavailableError(f"{path}: no connection to ZooKeeper")

    def _is_next(self, fate: str) -> bool:
        if self.next_write != fate:
            return False
        self.next_write = None
        return True

    def _break(self, when: str) -> None:
        self._server.trace.fault("zookeeper connection lost", self.actor, when)
        self._disconnect()
        self._reconnect_soon()

    # --- sessions -------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        self._cuts += 1
        if self._is_connected:
            self._is_connected = False
            self._tell(SessionState.SUSPENDED)

    def _reconnect_soon(self) -> None:
        self._after(self._scheduler.between(*self._server.weather.reconnect_us), self._reconnect)

    def _reconnect(self) -> None:
        if self.is_over or self._is_connected or self._is_cut:
            return
        if self._scheduler.is_paused(self.actor):
            self._reconnect_soon()
            return
        if self._is_expired:
            self._session = 0
            self._watches.clear()
            self._missed.clear()
            self._tell(SessionState.LOST)
            self._raw = self._server.tree.client()
            self._session, self._is_expired = self._raw.session_id, False
        self._is_connected = True
        self._server.trace.line(self.actor, f"connected to zookeeper, session {self._session}")
        self._tell(SessionState.CONNECTED)
        missed, self._missed = self._missed, []
        for watch, path in missed:
            self._deliver(watch, path)

    def _expire_unless_mended(self) -> None:
        cuts = self._cuts

        def end() -> None:
            if self._cuts == cuts and self._is_cut and not self._server.is_down:
                self._end_session()

        self._after(self._time_left_us(), end)

    def _end_session(self) -> None:
        if not self._is_expired:
            self._is_expired = True
            self._server.trace.line(ZK, f"session {self._session} of {self.actor} ends")
            self._raw.close()

    def _time_left_us(self) -> int:
        timeout_us = self._server.weather.session_timeout_us
        return self._scheduler.between(timeout_us * 2 // 3, timeout_us)

    # --- news -----------------------------------------------------------------------------------------------------

    def _watched(self, kind: str, path: str, watch: Watch | None, read: Callable[[Watch | None], _T]) -> _T:
        key = (kind, path, watch)
        if watch is None or key in self._watches:
            return read(None)  # an equal watch that is set already is the same one
        raw = self._raw

        def fired(at: str) -> None:
            if not self.is_over and self._raw is raw:
                self._watches.discard(key)
                self._deliver_later(watch, at)

        answer = read(fired)
        self._watches.add(key)
        return answer

    def _deliver_later(self, watch: Watch, path: str) -> None:
        weather, rng = self._server.weather, self._scheduler.rng
        delay_us = self._scheduler.between(*weather.watch_us)
        if weather.late_watch and rng.random() < weather.late_watch:
            delay_us = rng.randrange(weather.late_watch_us)
            self._server.trace.counts["fault watch late"] += 1
        due_us = max(self._scheduler.now_us + delay_us, self._last_watch_us)  # in order
        self._last_watch_us = due_us
        raw = self._raw

        def deliver() -> None:
            if self.is_over or self._raw is not raw:
                return
            if self._is_connected:
                self._deliver(watch, path)
            else:
                self._missed.append((watch, path))

        self._after(due_us - self._scheduler.now_us, deliver)

    def _deliver(self, watch: Watch, path: str) -> None:
        watch(path)
        self.on_news()

    def _tell(self, news: SessionState) -> None:
        for listener in list(self._listeners):
            listener(news)
        if not self.is_over:
            self.on_news()

    def _after(self, delay_us: int, action: Callable[[], None]) -> None:
        self._scheduler.after(delay_us, ZK, action)
