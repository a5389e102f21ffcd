"""The access control lists as a decision: whether somebody may do something. Pure.

Kafka's order: an ACL that denies counts before any that allows, and without one that allows it is denied. An operation
is allowed by itself, by All, and by what implies it; it is denied only by itself and by All.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from broker_runtime.contract.acls import ANY, CLUSTER_RESOURCE, IMPLIES, USER, Acl

_EVERYBODY: Final = f"{USER}{ANY}"


class AccessList:
    """All ACLs at one time. Immutable."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._literal: dict[tuple[str, str], list[Acl]] = defaultdict(list)
        self._prefixed: dict[str, list[Acl]] = defaultdict(list)
        for acl in acls:
            if acl.pattern == "Prefixed":
                self._prefixed[acl.resource_type].append(acl)
            else:
                self._literal[acl.resource_type, acl.name].append(acl)

    def allows(self, principal: str, host: str, operation: str, resource_type: str, name: str) -> bool:
        """``principal``: without ``User:``. ``host``: the caller's address. ``name``: of the resource."""
        who = f"{USER}{principal}"
        concerned = [
            acl
            for acl in self._of_resource(resource_type, name)
            if acl.principal in (who, _EVERYBODY) and acl.host in (host, ANY)
        ]
        if any(acl.permission == "Deny" and acl.operation in (operation, "All") for acl in concerned):
            return False
        enough = {operation, "All", *IMPLIES.get(operation, ())}
        return any(acl.permission == "Allow" and acl.operation in enough for acl in concerned)

    def allows_any(self, principal: str, host: str, operation: str, resource_type: str) -> bool:
        """Whether it allows the operation with some resource of the type; whatever is denied elsewhere."""
        who, enough = f"{USER}{principal}", {operation, "All", *IMPLIES.get(operation, ())}
        of_type = [acl for (kind, _), acls in self._literal.items() if kind == resource_type for acl in acls]
        return any(
            acl.permission == "Allow"
            and acl.operation in enough
            and acl.principal in (who, _EVERYBODY)
            and acl.host in (host, ANY)
            for acl in (*of_type, *self._prefixed.get(resource_type, ()))
        )

    def _of_resource(self, resource_type: str, name: str) -> Iterable[Acl]:
        yield from self._literal.get((resource_type, name), ())
        if name != ANY:
            yield from self._literal.get((resource_type, ANY), ())
        if resource_type != "Cluster" or name != CLUSTER_RESOURCE:
            yield from (acl for acl in self._prefixed.get(resource_type, ()) if name.startswith(acl.name))
