"""Whether a caller may do something: what services ask before they do it.

Rule: nothing is allowed that no ACL allows (`AclAuthorizer`), but super users and brokers may do everything. What is
refused is logged, and the error does not tell whether the thing exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from broker_runtime.contract.acls import CLUSTER_RESOURCE, MOST_NAME_CHARS
from broker_runtime.contract.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.security.access_list import AccessList
from broker_runtime.security.audit import Audit

_MOST_REMEMBERED: Final = 10_000
_ERRORS: Final[dict[str, type[AuthorizationError]]] = {
    "Topic": TopicAuthorizationError,
    "Group": GroupAuthorizationError,
    "TransactionalId": TransactionalIdAuthorizationError,
    "Cluster": ClusterAuthorizationError,
}


class Identified(Protocol):
    """Who asks; see `services.caller.Caller`."""

    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def is_broker(self) -> bool: ...


class Authorizer:
    """Allows everything (``authorizer.class.name=none``)."""

    is_enforced: bool = False

    def __init__(self, meters: Meters = NO_METERS) -> None:
        self._meters = meters
        self._audit = Audit()

    def allows(self, caller: Identified, operation: str, resource_type: str, name: str = CLUSTER_RESOURCE) -> bool:
        """Whether ``caller`` may. Any thread; takes a microsecond where it was asked before."""
        return True

    def require(self, caller: Identified, operation: str, resource_type: str, name: str = CLUSTER_RESOURCE) -> None:
        """Raises the `AuthorizationError` of the resource's type unless ``caller`` may; that is logged."""
        if self.allows(caller, operation, resource_type, name):
            return
        self._meters.request_denied()
        self._log_denial(caller, operation, resource_type, name)
        what = "the cluster" if resource_type == "Cluster" else f"{resource_type.lower()} {name!r:.260}"
        raise _ERRORS[resource_type](f"User:{caller.principal} may not {operation} {what}: no ACL allows it")

    def _log_denial(self, caller: Identified, operation: str, resource_type: str, name: str) -> None:
        self._audit.denied(
            principal=caller.principal,
            address=caller.address,
            operation=operation,
            resource=f"{resource_type} {name}",
        )

    def require_broker(self, caller: Identified) -> None:
        """Raises `ClusterAuthorizationError` unless the caller has proved to be a broker of this cluster."""

    def require_any(self, caller: Identified, operation: str, resource_type: str) -> None:
        """Raises `ClusterAuthorizationError` unless ``caller`` may do this with some resource of the type."""

    def allows_creation(self, caller: Identified, topic: str) -> bool:
        """Whether ``caller`` may create that topic: by an ACL on it or on the cluster, as in Kafka."""
        return self.allows(caller, "Create", "Topic", topic) or self.allows(caller, "Create", "Cluster")


class AclAuthorizer(Authorizer):
    """Asks the access list."""

    is_enforced = True

    def __init__(
        self, access_list: Callable[[], AccessList], *, super_users: Collection[str], meters: Meters = NO_METERS
    ) -> None:
        """``access_list``: as it is now; another object where it has changed."""
        super().__init__(meters)
        self._access_list = access_list
        self._super_users = frozenset(super_users)
        self._remembered: tuple[AccessList | None, dict[tuple[str, str, str, str, str], bool]] = (None, {})

    def allows(self, caller: Identified, operation: str, resource_type: str, name: str = CLUSTER_RESOURCE) -> bool:
        if caller.is_broker or caller.principal in self._super_users:
            return True
        if len(name) > MOST_NAME_CHARS:
            return False  # nothing has such a name; and what is remembered is bounded by its size, too
        now, (known, answers) = self._access_list(), self._remembered
        if known is not now or len(answers) > _MOST_REMEMBERED:
            answers = {}
            self._remembered = (now, answers)
        key = (caller.principal, caller.host, operation, resource_type, name)
        answer = answers.get(key)
        if answer is None:
            answer = answers[key] = now.allows(*key)
        return answer

    def require_any(self, caller: Identified, operation: str, resource_type: str) -> None:
        if caller.is_broker or caller.principal in self._super_users:
            return
        if not self._access_list().allows_any(caller.principal, caller.host, operation, resource_type):
            self._meters.request_denied()
            self._log_denial(caller, operation, resource_type, "*")
            raise ClusterAuthorizationError(
                f"User:{caller.principal} may not {operation} any {resource_type.lower()}: no ACL allows it"
            )

    def require_broker(self, caller: Identified) -> None:
        if not caller.is_broker and caller.principal not in self._super_users:
            self._meters.request_denied()
            self._log_denial(caller, "ClusterAction", "Cluster", CLUSTER_RESOURCE)
            raise ClusterAuthorizationError(f"User:{caller.principal} is no broker of this cluster")


ALLOW_ALL: Final = Authorizer()
