"""A ZooKeeper in memory, for tests: `MemoryZooKeeper` is the tree, its `client()` a `ZooKeeperClient`.

It passes the same contract suite as the real one. Watches and listeners are called at once, on the caller's thread;
watches end with their session, and a watch that is set twice is one. Tests call a client's `expire`, `suspend` and
`resume`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    Listener,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionState,
    Set,
    Watch,
    ZNode,
    check_request_size,
)


@dataclass(slots=True)
class _Tree:
    nodes: dict[str, ZNode] = field(default_factory=lambda: {"/": ZNode(b"", 0)})
    # By path; per watch the session it was set in. A dict for its order: watches are called in the order they were set.
    data_watches: dict[str, dict[tuple[int, Watch], None]] = field(default_factory=dict)
    child_watches: dict[str, dict[tuple[int, Watch], None]] = field(default_factory=dict)


class MemoryZooKeeper:
    """The tree that clients share."""

    def __init__(self) -> None:
        self._tree = _Tree()
        self._lock = threading.RLock()
        self._sessions = itertools.count(1)
        self._zxids = itertools.count(1)

    def client(self) -> MemoryClient:
        """A client with a new session."""
        return MemoryClient(self, next(self._sessions))

    def _apply(self, operations: Sequence[Operation], session: int) -> list[int]:
        check_request_size(operations)
        with self._lock:
            nodes = dict(self._tree.nodes)
            results = [self._apply_one(nodes, operation, session) for operation in operations]
            self._tree.nodes = nodes  # all or none
            fired: list[tuple[Watch, str]] = []
            for operation in operations:
                fired += self._take_watches(operation)
        for watch, path in fired:
            watch(path)
        return results

    def _apply_one(self, nodes: dict[str, ZNode], operation: Operation, session: int) -> int:
        path = operation.path
        if isinstance(operation, Create):
            parent = nodes.get(_parent(path))
            if parent is None:
                raise NoNodeError(path)
            if path in nodes:
                raise NodeExistsError(path)
            nodes[path] = ZNode(operation.data, 0, session if operation.ephemeral else 0, next(self._zxids))
            return 0
        node = nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        if operation.version not in {ANY_VERSION, node.version}:
            raise BadVersionError(path)
        if isinstance(operation, Set):
            nodes[path] = ZNode(operation.data, node.version + 1, node.owner, node.created)
            return node.version + 1
        if isinstance(operation, Delete):
            if _children(nodes, path):
                raise NotEmptyError(path)
            del nodes[path]
        return 0

    def _take_watches(self, operation: Operation) -> list[tuple[Watch, str]]:
        if isinstance(operation, Check):
            return []
        path = operation.path
        fired = [(watch, path) for _, watch in self._tree.data_watches.pop(path, ())]
        if isinstance(operation, Create | Delete):
            parents = (_parent(path), path) if isinstance(operation, Delete) else (_parent(path),)
            for parent in parents:
                fired += [(watch, parent) for _, watch in self._tree.child_watches.pop(parent, ())]
        return fired

    def _end_session(self, session: int) -> None:
        with self._lock:
            for watches in (self._tree.data_watches, self._tree.child_watches):
                for path, set_here in list(watches.items()):
                    watches[path] = {key: None for key in set_here if key[0] != session}
            owned = [path for path, node in self._tree.nodes.items() if node.owner == session]
        for path in owned:
            self._apply([Delete(path)], session)


class MemoryClient:
    """A `ZooKeeperClient` over a `MemoryZooKeeper`; calls fail at once while it is suspended."""

    def __init__(self, server: MemoryZooKeeper, session: int) -> None:
        self._server = server
        self._session = session
        self._connected = True
        self._closed = False
        self._listeners: list[Listener] = []

    # --- what a test does to it -------------------------------------------------------------------------------

    def suspend(self) -> None:
        """The connection breaks; the session lives."""
        self._connected = False
        self._call_listeners(SessionState.SUSPENDED)

    def resume(self) -> None:
        """The connection is back, in the same session."""
        self._connected = True
        self._call_listeners(SessionState.CONNECTED)

    def expire(self) -> None:
        """The session ends, its ephemerals go, and a new one begins."""
        self._server._end_session(self._session)
        self._session, self._connected = 0, False
        self._call_listeners(SessionState.LOST)
        self._session, self._connected = next(self._server._sessions), True
        self._call_listeners(SessionState.CONNECTED)

    # --- ZooKeeperClient --------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        """See `ZooKeeperClient`."""
        return self._session

    @property
    def is_connected(self) -> bool:
        """See `ZooKeeperClient`."""
        return self._connected and not self._closed

    def listen(self, listener: Listener) -> None:
        """See `ZooKeeperClient`."""
        self._listeners.append(listener)

    def get(self, path: str, *, watch: Watch | None = None) -> ZNode:
        """See `ZooKeeperClient`."""
        self._check(path)
        with self._server._lock:
            node = self._server._tree.nodes.get(path)
            if node is None:
                raise NoNodeError(path)
            if watch is not None:
                self._server._tree.data_watches.setdefault(path, {})[self._session, watch] = None
            return node

    def find(self, path: str) -> ZNode | None:
        """See `ZooKeeperClient`."""
        self._check(path)
        return self._server._tree.nodes.get(path)

    def find_all(self, paths: Sequence[str], *, are_small: bool = False) -> list[ZNode | None]:
        """See `ZooKeeperClient`."""
        return [self.find(path) for path in paths]

    def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        """See `ZooKeeperClient`."""
        self._check(path)
        with self._server._lock:
            if path not in self._server._tree.nodes:
                raise NoNodeError(path)
            if watch is not None:
                self._server._tree.child_watches.setdefault(path, {})[self._session, watch] = None
            return _children(self._server._tree.nodes, path)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, session: int | None = None) -> None:
        """See `ZooKeeperClient`."""
        self.transaction([Create(path, data, ephemeral)], session=session)

    def set(self, path: str, data: bytes, *, version: int, session: int | None = None) -> int:
        """See `ZooKeeperClient`."""
        return self.transaction([Set(path, data, version)], session=session)[0]

    def delete(self, path: str, *, version: int = ANY_VERSION, session: int | None = None) -> None:
        """See `ZooKeeperClient`."""
        self.transaction([Delete(path, version)], session=session)

    def transaction(self, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        """See `ZooKeeperClient`."""
        check_request_size(operations)
        self._check(operations[0].path, session)
        return self._server._apply(operations, self._session)

    def ensure_path(self, path: str) -> None:
        """See `ZooKeeperClient`."""
        parts = path.strip("/").split("/") if path.strip("/") else []
        for depth in range(1, len(parts) + 1):
            prefix = "/" + "/".join(parts[:depth])
            if self.find(prefix) is None:
                self.create(prefix)

    def close(self) -> None:
        """See `ZooKeeperClient`."""
        if not self._closed:
            self._server._end_session(self._session)
            self._session, self._connected, self._closed = 0, False, True
            self._call_listeners(SessionState.LOST)

    def _check(self, path: str, session: int | None = None) -> None:
        if session is not None and session != self._session:
            raise ZooKeeperUnavailableError(f"{path}: the session it was to be written in has ended")
        if not self.is_connected:
            raise ZooKeeperUnavailableError(f"{path}: no connection to ZooKeeper")

    def _call_listeners(self, news: SessionState) -> None:
        for listener in list(self._listeners):
            listener(news)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _children(nodes: dict[str, ZNode], path: str) -> list[str]:
    prefix = path.rstrip("/") + "/"
    below = (node[len(prefix) :] for node in nodes if node.startswith(prefix))
    return sorted(name for name in below if name and "/" not in name)
