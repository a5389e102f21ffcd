"""What a broker asks of ZooKeeper: the interface that `client` (kazoo) and `memory` (a fake) both keep.

Rules: every call is bounded in time; no request is larger than `MAX_REQUEST_BYTES`; an error is raised, never returned;
a write made for a role names the session it was made in and is refused in any other.

`ZooKeeperUnavailableError` from a write leaves open whether it happened: read back before deciding. The errors below
are answers of ZooKeeper, so they are certain. They never leave the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from broker_runtime.contract.errors import InvalidRequestError, ZooKeeperUnavailableError

MAX_REQUEST_BYTES: Final = 512 << 10
"""ZooKeeper drops the connection, and every request on it, at 1 MiB."""
ANY_VERSION: Final = -1


class ZNodeError(Exception):
    """ZooKeeper refused an operation. ``path``: of the znode."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNodeError(ZNodeError):
    """The znode, or the parent of one to be created, does not exist."""


class NodeExistsError(ZNodeError):
    """The znode to be created exists."""


class BadVersionError(ZNodeError):
    """The znode has another version than the one expected."""


class NotEmptyError(ZNodeError):
    """The znode to be deleted has children."""


class SessionState(Enum):
    """What listeners are called with; see `ZooKeeperClient.listen`."""

    CONNECTED = "connected"  # also a new session: compare session ids
    SUSPENDED = "suspended"  # the connection broke; the session may live
    LOST = "lost"  # the session ended: what it held is gone


@dataclass(frozen=True, slots=True)
class ZNode:
    """A znode as read. ``owner``: the session an ephemeral one belongs to, else 0. ``created``: its zxid.
    ``modified_ms``: when it was last written, by ZooKeeper's clock; 0: not known."""

    data: bytes
    version: int
    owner: int = 0
    created: int = 0
    modified_ms: int = 0


@dataclass(frozen=True, slots=True)
class Create:
    """An operation of a transaction."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """An operation of a transaction; ``version`` is the one the znode must have."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation of a transaction."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """An operation of a transaction: the znode has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
Watch = Callable[[str], None]
"""Called once, with the watched path, from the client's own thread: it may only put something on a queue."""
Listener = Callable[[SessionState], None]
"""Called from the client's own thread, before anything happens in the next session: it must not block."""


class ZooKeeperClient(Protocol):
    """One client over any number of sessions. Thread-safe.

    Every call blocks up to the client's operation time and raises `ZooKeeperUnavailableError` after it, or when the
    session ended. ``session`` of a write: the session id it belongs to (None: any); in another session it is not
    sent, which raises the same error.
    """

    @property
    def session_id(self) -> int:
        """The present session; 0 without one."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent now."""
        ...

    def listen(self, listener: Listener) -> None:
        """Calls ``listener`` at every later change."""
        ...

    def get(self, path: str, *, watch: Watch | None = None) -> ZNode:
        """The znode. Raises `NoNodeError`; then there is no watch."""
        ...

    def find(self, path: str) -> ZNode | None:
        """The znode, None if there is none."""
        ...

    def find_all(self, paths: Sequence[str], *, are_small: bool = False) -> list[ZNode | None]:
        """As `find`, for many at once, in few requests; fewest if all ``are_small``, some hundred bytes each.

        Not a snapshot.
        """
        ...

    def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        """The names of the children, sorted. Raises `NoNodeError`; then there is no watch."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, session: int | None = None) -> None:
        """Raises `NodeExistsError`, `NoNodeError` (no parent)."""
        ...

    def set(self, path: str, data: bytes, *, version: int, session: int | None = None) -> int:
        """Returns the new version. Raises `BadVersionError`, `NoNodeError`."""
        ...

    def delete(self, path: str, *, version: int = ANY_VERSION, session: int | None = None) -> None:
        """Raises `NotEmptyError`, `BadVersionError`, `NoNodeError`."""
        ...

    def transaction(self, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        """All or none. Returns a version per operation: the new one for a `Set`, otherwise 0. Raises the first
        refusal."""
        ...

    def ensure_path(self, path: str) -> None:
        """Creates the znode, empty, and those above it, unless they exist."""
        ...

    def close(self) -> None:
        """Ends the session; its ephemerals are gone afterwards. Bounded. A closed client stays closed."""
        ...


def check_request_size(operations: Sequence[Operation]) -> None:
    """Raises `InvalidRequestError` if the operations are too much for one request."""
    size = 0
    for operation in operations:
        size += len(operation.path.encode()) + 64
        if isinstance(operation, Create | Set):
            size += len(operation.data)
    if size > MAX_REQUEST_BYTES:
        raise InvalidRequestError(
            f"{operations[0].path} and what goes with it are {size} bytes; "
            f"at most {MAX_REQUEST_BYTES} go to ZooKeeper in one request"
        )


def require_connection(client: ZooKeeperClient, what_waits: str) -> None:
    """For requests: raises `ZooKeeperUnavailableError` at once while there is no connection.

    Requests must not pile up while ZooKeeper is away, and a client that gets no answer blames the broker.
    """
    if not client.is_connected:
        raise ZooKeeperUnavailableError(f"the broker has no connection to ZooKeeper; {what_waits} wait for it")
