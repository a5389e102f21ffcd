"""The only code that speaks to kazoo: `KazooClient` as a `ZooKeeperClient`.

This corrects what kazoo does: 0.2 s after a session expired it has a new one, in which a write that was meant for the
old one succeeds (so writes name their session); ``transaction().commit()`` returns errors instead of raising them; a
request that is too large drops the connection with every other request on it; calls without a timeout wait for ever;
a connection that nobody answers takes the session's whole time.
None of its recipes and none of its retries are used: only the caller knows whether a write may be repeated.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import kazoo
import kazoo.exceptions as kz
from kazoo.client import KazooClient as _Kazoo
from kazoo.client import KazooState
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.paths import normpath
from kazoo.protocol.serialization import Connect, GetData, MultiHeader, int_struct, stat_struct
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from broker_runtime.contract.errors import InvalidConfigError, SetupError, ZooKeeperUnavailableError
from broker_runtime.contract.security import PemFiles
from broker_runtime.contract.settings import BrokerSettings, Secret
from broker_runtime.contract.waiting import Deadline
from broker_runtime.meters import NO_METERS, Meters
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
    ZNodeError,
    check_request_size,
)

OPERATION_LIMIT_S: Final = 10.0
_READS: Final = 16  # znodes in one request; the largest have 448 KiB
_SMALL_READS: Final = 512
_READ_REQUESTS: Final = 32  # under way
_RECONNECT_DELAYS_S: Final = (0.05, 1.0)
_ATTEMPTS_PER_SESSION: Final = 3  # to reach it again, before it ends
_REFUSALS: Final[tuple[tuple[type[Exception], type[ZNodeError]], ...]] = (
    (kz.NoNodeError, NoNodeError),
    (kz.NodeExistsError, NodeExistsError),
    (kz.BadVersionError, BadVersionError),
    (kz.NotEmptyError, NotEmptyError),
)
_AWAY: Final = (
    kz.ConnectionLoss,
    kz.SessionExpiredError,
    kz.ConnectionClosedError,
    kz.OperationTimeoutError,
    kz.ConnectionDropped,
    kz.SessionMovedError,
    KazooTimeoutError,
)

_ERROR: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperAccess:
    """How to connect, and who one is then. ``ca`` None: without TLS. ``sets_acl``: what is created is closed to all who
    are somebody else."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    username: str | None = None
    password: Secret | None = None
    sets_acl: bool = False

    @classmethod
    def of(cls, settings: BrokerSettings) -> ZooKeeperAccess:
        """As a broker with these settings. Raises `InvalidConfigError` for files that are not right."""
        if settings.zookeeper_ssl_cafile is not None:
            PemFiles(
                ca=settings.zookeeper_ssl_cafile,
                certificate=settings.zookeeper_ssl_certfile,
                key=settings.zookeeper_ssl_keyfile,
            ).check("zookeeper.")
        return cls(
            ca=settings.zookeeper_ssl_cafile,
            certificate=settings.zookeeper_ssl_certfile,
            key=settings.zookeeper_ssl_keyfile,
            username=settings.zookeeper_username,
            password=settings.zookeeper_password,
            sets_acl=settings.zookeeper_set_acl,
        )

    def arguments(self) -> dict[str, Any]:
        """For kazoo's client."""
        found: dict[str, Any] = {}
        if self.ca is not None:
            # kazoo's defaults: no TLS, and any name in the certificate.
            found |= {"use_ssl": True, "check_hostname": True, "verify_certs": True, "ca": str(self.ca)}
        if self.certificate is not None and self.key is not None:
            found |= {"certfile": str(self.certificate), "keyfile": str(self.key)}
        if self.username is not None and self.password is not None:
            found["auth_data"] = [("digest", f"{self.username}:{self.password.reveal()}")]
        if self.sets_acl:
            found["default_acl"] = CREATOR_ALL_ACL
        return found


OPEN: Final = ZooKeeperAccess()


class KazooZooKeeper:
    """A `ZooKeeperClient` over a real ZooKeeper. Made by `connect`."""

    def __init__(self, client: _Kazoo, servers: str, operation_limit_s: float, meters: Meters = NO_METERS) -> None:
        self._client = client
        self._servers = servers
        self._limit_s = operation_limit_s
        self._meters = meters
        # Requests are queued under this lock, and the listener changes the session under it before kazoo clears its
        # queue: so what was queued for one session is never sent in the next.
        self._changed = threading.Condition()
        self._session_id = 0
        self._connected = False
        self._closed = False
        self._listeners: list[Listener] = []
        client.add_listener(self._on_state)

    @classmethod
    def connect(
        cls,
        connect_string: str,
        *,
        session_timeout_ms: int,
        connect_timeout_s: float = 15.0,
        operation_limit_s: float = OPERATION_LIMIT_S,
        access: ZooKeeperAccess = OPEN,
        meters: Meters = NO_METERS,
    ) -> KazooZooKeeper:
        """Connects, and creates the chroot of ``host:port,host:port/chroot`` if it is missing.

        Raises `ZooKeeperUnavailableError` after ``connect_timeout_s``, at once if none of the hosts' names is found;
        `InvalidConfigError` for a malformed string, `SetupError` if kazoo is a version that lacks what this needs.
        """
        # See `_read_many` and `_limit_attempts`.
        for owner, name in ((_Kazoo, "_call"), (ConnectionHandler, "_invoke")):
            if not hasattr(owner, name):
                raise SetupError(
                    f"kazoo {kazoo.__version__} has no {owner.__name__}.{name}, which pylog needs. Install kazoo 2.11"
                )
        servers, _, chroot = connect_string.partition("/")
        try:
            root = normpath(f"/{chroot}")  # as kazoo has it in most of its requests
            client = _Kazoo(
                hosts=servers,
                timeout=session_timeout_ms / 1_000,
                handler=_Handler(session_timeout_ms / 1_000 / _ATTEMPTS_PER_SESSION),
                connection_retry=KazooRetry(
                    max_tries=-1, delay=_RECONNECT_DELAYS_S[0], max_delay=_RECONNECT_DELAYS_S[1]
                ),
                **access.arguments(),
            )
        except (kz.KazooException, ValueError) as error:
            raise InvalidConfigError(f"zookeeper.connect={connect_string!r}: {error}") from None
        _check_names(servers)
        _limit_attempts(client, session_timeout_ms / 1_000 / _ATTEMPTS_PER_SESSION)
        self = cls(client, servers, operation_limit_s, meters)
        try:
            try:
                client.start(connect_timeout_s)
            except KazooTimeoutError:
                how = "" if access.ca is None else " over TLS with the certificates of zookeeper.ssl.cafile"
                raise ZooKeeperUnavailableError(
                    f"No ZooKeeper answers at {servers}{how} after {connect_timeout_s:g} s. "
                    "Start one (pylog zookeeper start), or correct zookeeper.connect"
                ) from None
            if root != "/":
                # Set only now: given it at once, kazoo checks that it exists, and warns that it does not. And made
                # before: afterwards kazoo makes its last level only.
                self._ensure_chroot(root)
                client.chroot = root
        except BaseException:
            self.close()
            raise
        return self

    @property
    def session_id(self) -> int:
        """See `ZooKeeperClient`."""
        with self._changed:
            return self._session_id

    @property
    def is_connected(self) -> bool:
        """See `ZooKeeperClient`."""
        with self._changed:
            return self._connected

    def listen(self, listener: Listener) -> None:
        """See `ZooKeeperClient`."""
        with self._changed:
            self._listeners.append(listener)

    def get(self, path: str, *, watch: Watch | None = None) -> ZNode:
        """See `ZooKeeperClient`."""
        found = self._ask(path, lambda: self._client.get_async(path, watch=_watch(watch, path)))
        return _znode(found)

    def find(self, path: str) -> ZNode | None:
        """See `ZooKeeperClient`."""
        return self.find_all([path])[0]

    def find_all(self, paths: Sequence[str], *, are_small: bool = False) -> list[ZNode | None]:
        """See `ZooKeeperClient`."""
        found: list[ZNode | None] = []
        step = _SMALL_READS if are_small else _READS
        requests = [paths[start : start + step] for start in range(0, len(paths), step)]
        for start in range(0, len(requests), _READ_REQUESTS):
            window = requests[start : start + _READ_REQUESTS]
            deadline = Deadline(self._limit_s)
            began_s = time.monotonic()
            pending = [self._send(part[0], None, deadline, self._read_many, part) for part in window]
            for part, result in zip(window, pending, strict=True):
                answers = self._await(part[0], result, deadline)
                self._meters.zookeeper_answered(time.monotonic() - began_s)
                found += [_answer(path, answer) for path, answer in zip(part, answers, strict=True)]
        return found

    def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        """See `ZooKeeperClient`."""
        return sorted(self._ask(path, lambda: self._client.get_children_async(path, watch=_watch(watch, path))))

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, session: int | None = None) -> None:
        """See `ZooKeeperClient`."""
        check_request_size([Create(path, data)])
        self._ask(path, lambda: self._client.create_async(path, data, ephemeral=ephemeral), session)

    def set(self, path: str, data: bytes, *, version: int, session: int | None = None) -> int:
        """See `ZooKeeperClient`."""
        check_request_size([Set(path, data, version)])
        stat = self._ask(path, lambda: self._client.set_async(path, data, version), session)
        return int(stat.version)

    def delete(self, path: str, *, version: int = ANY_VERSION, session: int | None = None) -> None:
        """See `ZooKeeperClient`."""
        self._ask(path, lambda: self._client.delete_async(path, version), session)

    def transaction(self, operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        """See `ZooKeeperClient`."""
        assert operations, "a transaction without operations"
        check_request_size(operations)
        request = self._client.transaction()
        for operation in operations:
            match operation:
                case Create():
                    request.create(operation.path, operation.data, ephemeral=operation.ephemeral)
                case Set():
                    request.set_data(operation.path, operation.data, operation.version)
                case Delete():
                    request.delete(operation.path, operation.version)
                case Check():
                    request.check(operation.path, operation.version)
        results = self._ask(operations[0].path, request.commit_async, session)
        for operation, result in zip(operations, results, strict=True):
            # Apart from the one operation that failed, the others only say that they were rolled back.
            if isinstance(result, Exception) and not isinstance(result, kz.RolledBackError | kz.RuntimeInconsistency):
                raise _translated(result, operation.path) from None
        assert not any(isinstance(result, Exception) for result in results), results
        return [int(getattr(result, "version", 0)) for result in results]

    def ensure_path(self, path: str) -> None:
        """See `ZooKeeperClient`."""
        self._ask(path, lambda: self._client.ensure_path_async(path))

    def _ensure_chroot(self, root: str) -> None:
        """Creates it. The levels above it are everybody's: other clusters may be below them."""
        above = root.rpartition("/")[0]
        if above:
            self._ask(above, lambda: self._client.ensure_path_async(above, acl=OPEN_ACL_UNSAFE))
        self.ensure_path(root)

    def set_acl(self, path: str, *, is_closed: bool) -> None:
        """Closes a znode to all who are somebody else than this client, or opens it to everybody. Raises `NoNodeError`,
        `ZooKeeperUnavailableError`."""
        acl = CREATOR_ALL_ACL if is_closed else OPEN_ACL_UNSAFE
        self._ask(path, lambda: self._client.set_acls_async(path, acl))

    def close(self) -> None:
        """See `ZooKeeperClient`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._client.stop()
        self._client.close()

    # --- private ----------------------------------------------------------------------------------------------

    def _on_state(self, state: str) -> None:
        with self._changed:
            if state == KazooState.CONNECTED:
                self._session_id, self._connected = int(self._client.client_id[0]), True
                news = SessionState.CONNECTED
            elif state == KazooState.SUSPENDED:
                self._connected, news = False, SessionState.SUSPENDED
            else:
                self._session_id, self._connected, news = 0, False, SessionState.LOST
            is_closed = self._closed
            self._changed.notify_all()
            listeners = list(self._listeners)
        if news is not SessionState.CONNECTED and not is_closed:
            self._meters.zookeeper_lost(is_expired=news is SessionState.LOST)
        for listener in listeners:
            listener(news)

    def _read_many(self, paths: Sequence[str]) -> Any:
        result = self._client.handler.async_result()
        # As kazoo's own requests do; it has no public way for a request that it does not know.
        self._client._call(ReadMany([self._client.chroot + path for path in paths]), result)
        return result

    def _ask(self, path: str, request: Callable[[], Any], session: int | None = None) -> Any:
        deadline = Deadline(self._limit_s)
        began_s = time.monotonic()
        try:
            return self._await(path, self._send(path, session, deadline, request), deadline)
        finally:
            self._meters.zookeeper_answered(time.monotonic() - began_s)

    def _send(self, path: str, session: int | None, deadline: Deadline, request: Callable[..., Any], *args: Any) -> Any:
        with self._changed:
            while not self._connected:
                if self._closed or deadline.expired or (session is not None and session != self._session_id):
                    break
                self._changed.wait(deadline.remaining_s())
            if session is not None and session != self._session_id:
                raise ZooKeeperUnavailableError(f"{path}: the session it was to be written in has ended")
            if not self._connected or self._closed:
                raise ZooKeeperUnavailableError(f"{path}: no connection to ZooKeeper at {self._servers}")
            return request(*args)

    def _await(self, path: str, result: Any, deadline: Deadline) -> Any:
        try:
            return result.get(timeout=deadline.remaining_s())
        except (kz.KazooException, KazooTimeoutError) as error:
            raise _translated(error, path) from None


class _Handler(SequentialThreadingHandler):
    """Kazoo's own, but for one server that does not answer: kazoo would try it for the session's whole time, and no
    other meanwhile."""

    def __init__(self, connect_limit_s: float) -> None:
        super().__init__()
        self._connect_limit_s = connect_limit_s

    def create_connection(self, *args: Any, timeout: float, **options: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._connect_limit_s), **options)


def _limit_attempts(client: _Kazoo, limit_s: float) -> None:
    """Has ``client`` give up an attempt to reach its session again after ``limit_s``; kazoo waits until it has ended.

    A ZooKeeper that is just starting can accept a connection and neither answer nor close it: what closes it fails
    while the database is not loaded. A new session may take the whole time: it is written before it is answered.
    """
    connection = client._connection
    invoke = connection._invoke

    def invoke_within_limit(timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect) and request.session_id:
            timeout = min(timeout, limit_s)
        return invoke(timeout, request, xid)

    connection._invoke = invoke_within_limit


def _translated(error: Exception, path: str) -> Exception:
    for foreign, ours in _REFUSALS:
        if isinstance(error, foreign):
            return ours(path)
    if isinstance(error, _AWAY):
        return ZooKeeperUnavailableError(f"{path}: ZooKeeper did not answer ({type(error).__name__})")
    if isinstance(error, kz.NoAuthError | kz.AuthFailedError | kz.InvalidACLError):
        return ZooKeeperUnavailableError(
            f"{path}: ZooKeeper refuses it to this broker ({type(error).__name__}). Correct zookeeper.username and "
            "zookeeper.password, or the znode's ACL"
        )
    return ZooKeeperUnavailableError(f"{path}: ZooKeeper refused it ({type(error).__name__}: {error})")


def _answer(path: str, answer: Any) -> ZNode | None:
    if not isinstance(answer, Exception):
        return _znode(answer)
    if isinstance(answer, kz.NoNodeError):
        return None
    raise _translated(answer, path)


@dataclass(frozen=True, slots=True)
class _PathWatch:
    """A watch as kazoo calls it. Equal ones are one: kazoo keeps a set, so setting a watch again adds nothing."""

    watch: Watch
    path: str

    def __call__(self, event: object) -> None:
        self.watch(self.path)


def _watch(watch: Watch | None, path: str) -> _PathWatch | None:
    return None if watch is None else _PathWatch(watch, path)


def _znode(found: Any) -> ZNode:
    data, stat = found
    return ZNode(data, stat.version, stat.ephemeralOwner, stat.czxid, stat.mtime)


class ReadMany:
    """A request for kazoo's queue. Its response: per path (data, stat), or the exception that answers it.

    Many znodes in one request: ZooKeeper's multiRead (3.6 and later), which kazoo does not know.

        request     per path a header (getData, false, -1), the path, no watch; last a header (-1, true, -1)
        response    per path a header (getData, false, 0), data and stat, or a header (-1, false, err) and err again;
                    last a header (-1, true, -1)

    Rule: this has what kazoo needs of a request and nothing else; its own codecs do the parts. An older ZooKeeper drops
    the connection on it, so 3.6 is what a cluster needs. A thousand reads in two requests take a tenth of the time of a
    thousand pipelined ones, which cost a wake-up of kazoo's thread each.
    """

    type: ClassVar[int] = 22

    def __init__(self, paths: Sequence[str]) -> None:
        """``paths`` as the server knows them, chroot included."""
        self._paths = tuple(paths)

    def __repr__(self) -> str:
        return f"ReadMany({len(self._paths)} paths from {self._paths[:1]})"

    def serialize(self) -> bytearray:
        """The request's bytes behind its type."""
        data = bytearray()
        for path in self._paths:
            data += MultiHeader(GetData.type, False, -1).serialize()
            data += GetData(path, None).serialize()
        data += MultiHeader(_ERROR, True, -1).serialize()
        return data

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """What is at ``offset`` of ``data``."""
        found: list[Any] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == _ERROR:
                (code,) = int_struct.unpack_from(data, offset)
                found.append(kz.EXCEPTIONS[code]())
                offset += int_struct.size
            else:
                (length,) = int_struct.unpack_from(data, offset)
                found.append(GetData.deserialize(data, offset))
                offset += int_struct.size + max(length, 0) + stat_struct.size
            header, offset = MultiHeader.deserialize(data, offset)
        return found


def _check_names(servers: str) -> None:
    """Raises `ZooKeeperUnavailableError` if the resolver knows none of the hosts: waiting would not help.

    A resolver that fails for the moment proves nothing.
    """
    names = [server.strip().rpartition(":")[0].strip("[]") or server.strip() for server in servers.split(",")]
    for name in names:
        try:
            socket.getaddrinfo(name, None)
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN:
                continue
        except (OSError, UnicodeError):
            pass
        return
    raise ZooKeeperUnavailableError(f"host name not found: {', '.join(names)}. Correct zookeeper.connect")
