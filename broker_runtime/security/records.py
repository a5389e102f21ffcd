"""What ZooKeeper keeps of users, access control lists, quotas and the tokens' key: read, watched, changed.

Rule: every broker watches these few znodes, so a change is in force everywhere within a second. A broker that ZooKeeper
does not answer goes on with what it read last. What cannot be decoded changes nothing: nobody is let in by damage.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from broker_runtime.contract.acls import Acl, AclFilter, PasswordHash, check_acl, check_user_name
from broker_runtime.contract.errors import CorruptRecordError, PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.quotas import Quota, QuotaChange, altered, check_change
from broker_runtime.contract.waiting import Signal
from broker_runtime.security.access_list import AccessList
from broker_runtime.security.quotas import QuotaTable
from broker_runtime.zookeeper.guarded import Planned, change
from broker_runtime.zookeeper.session import (
    NoNodeError,
    Set,
    ZNode,
    ZNodeError,
    ZooKeeperClient,
    require_connection,
)
from broker_runtime.zookeeper.znodes import (
    SECURITY_ACLS,
    SECURITY_QUOTAS,
    SECURITY_TOKEN_KEY,
    SECURITY_USERS,
    AclsRecord,
    QuotasRecord,
    Record,
    TokenKey,
    UsersRecord,
    from_json,
    to_compact_json,
    to_json,
)

_logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 10.0  # in case a watch was lost
_AGAIN_S: Final = 0.5
_KEY_BYTES: Final = 32

_R = TypeVar("_R", bound=Record)
_T = TypeVar("_T")


class SecurityRecords:
    """One broker's. Thread-safe. What is returned is as of the last `read`, and never changes."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._signal = Signal()
        self._versions: dict[str, tuple[int, int]] = {}
        self.access_list = AccessList()
        self.quota_table = QuotaTable()
        self.users: Mapping[str, PasswordHash] = MappingProxyType({})
        self.token_key: bytes | None = None
        client.listen(lambda state: self._signal.set())  # the watches of a session that ended are gone

    def read(self) -> None:
        """Reads what has changed. Makes the tokens' key if there is none. Raises `ZooKeeperUnavailableError`."""
        for path in (SECURITY_USERS, SECURITY_ACLS, SECURITY_QUOTAS, SECURITY_TOKEN_KEY):
            self._client.ensure_path(path)
        self._look()
        if self.token_key is None:
            self._make_key()
            self._look()

    def step(self) -> float | None:
        """Waits for a change, and reads it; returns the seconds to pause where that failed."""
        self._signal.wait(_LOOK_EVERY_S)
        try:
            try:
                self._look()
            except NoNodeError as error:  # one was deleted, perhaps because it was damaged; others are behind it
                event(_logger, "make security records", level=logging.WARNING, error=error)
                self.read()
        except (PylogError, ZNodeError) as error:
            event(_logger, "read security records", level=logging.WARNING, error=error)
            self._signal.set()
            return _AGAIN_S
        return None

    def wake(self) -> None:
        """Ends the wait of `step`."""
        self._signal.set()

    # --- changes ------------------------------------------------------------------------------------------------

    def acls(self, wanted: AclFilter) -> tuple[Acl, ...]:
        """Those that match, sorted; from ZooKeeper, now. Raises `ZooKeeperUnavailableError`."""
        self._require_zookeeper()
        return tuple(acl for acl in self._read_acls()[0].acls if wanted.matches(acl))

    def create_acls(self, acls: Sequence[Acl]) -> tuple[Acl, ...]:
        """Returns those that are new. Raises `InvalidRequestError`: nothing is created; `ZooKeeperUnavailableError`."""
        for acl in acls:
            check_acl(acl)

        def plan() -> Planned[tuple[Acl, ...]]:
            record, node = self._read_acls()
            new = tuple(sorted(set(acls) - set(record.acls)))
            wanted = AclsRecord(acls=tuple(sorted({*record.acls, *new})))
            return Planned(new, [_replaced(SECURITY_ACLS, wanted, node)] if new else ())

        return self._change(SECURITY_ACLS, plan)

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[Acl, ...]:
        """Returns those that are gone now. Raises `ZooKeeperUnavailableError`."""

        def plan() -> Planned[tuple[Acl, ...]]:
            record, node = self._read_acls()
            gone = tuple(acl for acl in record.acls if any(each.matches(acl) for each in filters))
            wanted = AclsRecord(acls=tuple(acl for acl in record.acls if acl not in set(gone)))
            return Planned(gone, [_replaced(SECURITY_ACLS, wanted, node)] if gone else ())

        return self._change(SECURITY_ACLS, plan)

    def user_names(self) -> tuple[str, ...]:
        """Sorted; from ZooKeeper, now. Raises `ZooKeeperUnavailableError`."""
        self._require_zookeeper()
        record = _decoded(self._client.get(SECURITY_USERS), UsersRecord, SECURITY_USERS) or UsersRecord()
        return tuple(sorted(record.users))

    def alter_users(self, upserts: Mapping[str, PasswordHash], deletions: Sequence[str]) -> tuple[str, ...]:
        """Returns the users there are now, sorted. Who is to be deleted and does not exist is not missed. Raises
        `InvalidRequestError` for a name that no user may have, `ZooKeeperUnavailableError`."""
        for name in upserts:
            check_user_name(name)

        def plan() -> Planned[tuple[str, ...]]:
            node = self._client.get(SECURITY_USERS)
            record = _decoded(node, UsersRecord, SECURITY_USERS) or UsersRecord()
            users = {name: kept for name, kept in {**record.users, **upserts}.items() if name not in deletions}
            operations = [] if users == record.users else [_replaced(SECURITY_USERS, UsersRecord(users=users), node)]
            return Planned(tuple(sorted(users)), operations)

        return self._change(SECURITY_USERS, plan)

    def quotas(self) -> tuple[Quota, ...]:
        """All, sorted; from ZooKeeper, now. Raises `ZooKeeperUnavailableError`."""
        self._require_zookeeper()
        return self._read_quotas()[0].quotas

    def alter_quotas(self, changes: Sequence[QuotaChange]) -> tuple[Quota, ...]:
        """Returns the quotas there are now. Raises `InvalidRequestError`: nothing is changed;
        `ZooKeeperUnavailableError`."""
        for each in changes:
            check_change(each)

        def plan() -> Planned[tuple[Quota, ...]]:
            record, node = self._read_quotas()
            wanted = QuotasRecord(quotas=altered(record.quotas, changes))
            return Planned(wanted.quotas, [] if wanted == record else [_replaced(SECURITY_QUOTAS, wanted, node)])

        return self._change(SECURITY_QUOTAS, plan)

    # --- private ------------------------------------------------------------------------------------------------

    def _require_zookeeper(self) -> None:
        require_connection(self._client, "users, ACLs and quotas")

    def _change(self, path: str, plan: Callable[[], Planned[_T]]) -> _T:
        self._require_zookeeper()
        result = change(self._client, plan, what=path)
        self._signal.set()
        return result

    def _read_acls(self) -> tuple[AclsRecord, ZNode]:
        node = self._client.get(SECURITY_ACLS)
        return _decoded(node, AclsRecord, SECURITY_ACLS) or AclsRecord(), node

    def _read_quotas(self) -> tuple[QuotasRecord, ZNode]:
        node = self._client.get(SECURITY_QUOTAS)
        return _decoded(node, QuotasRecord, SECURITY_QUOTAS) or QuotasRecord(), node

    def _make_key(self) -> None:
        def plan() -> Planned[None]:
            node = self._client.get(SECURITY_TOKEN_KEY)
            if node.data:  # another broker was quicker
                return Planned(None)
            made = TokenKey(key=secrets.token_bytes(_KEY_BYTES))
            return Planned(None, [Set(SECURITY_TOKEN_KEY, to_json(made), node.version)])

        change(self._client, plan, what=SECURITY_TOKEN_KEY)

    def _look(self) -> None:
        acls = self._if_changed(SECURITY_ACLS, AclsRecord, AclsRecord())
        if acls is not None:
            self.access_list = AccessList(acls.acls)
        quotas = self._if_changed(SECURITY_QUOTAS, QuotasRecord, QuotasRecord())
        if quotas is not None:
            self.quota_table = QuotaTable(quotas.quotas)
        key = self._if_changed(SECURITY_TOKEN_KEY, TokenKey, TokenKey(key=b""))
        if key is not None:
            self.token_key = key.key or None
        users = self._if_changed(SECURITY_USERS, UsersRecord, UsersRecord())
        if users is not None:
            self.users = MappingProxyType(dict(users.users))

    def _on_change(self, path: str) -> None:
        self._signal.set()

    def _if_changed(self, path: str, kind: type[_R], empty: _R) -> _R | None:
        """The record if it is not the one read last; None: it is, or it is damaged."""
        node = self._client.get(path, watch=self._on_change)  # the same one each time, or they add up
        version = (node.created, node.version)  # one that was deleted and made anew begins at 0 again
        if self._versions.get(path) == version:
            return None
        self._versions[path] = version
        try:
            return _decoded(node, kind, path) or empty
        except CorruptRecordError as error:
            event(_logger, "read security records", level=logging.ERROR, znode=path, error=error)
            return None


def _decoded(node: ZNode, kind: type[_R], path: str) -> _R | None:
    """The record; None: there is none yet. Raises `CorruptRecordError`."""
    return from_json(node.data, kind, path) if node.data else None


def _replaced(path: str, record: Record, node: ZNode) -> Set:
    return Set(path, to_compact_json(record, path), node.version)
