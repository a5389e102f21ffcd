"""Who may do what: Kafka's access control lists, and the users that prove themselves with a password; their messages.

    an `Acl` says:  a principal, from a host, may (or, if it denies, may not)  do an operation  with a resource

    operation         on a topic                     on a group           on a transactional id   on the cluster
    ---------------   ----------------------------   ------------------   ---------------------   ----------------------
    Read              fetch; commit its offsets      join, commit
    Write             produce                                             begin, end
    Create            create it                                                                   create any topic
    Delete            delete it, and its records     delete it
    Alter             add partitions, columns        change its offsets                           move, elect, users
    Describe          see it, and its offsets        see it               see it                  brokers, disks, ACLs
    DescribeConfigs   its settings                                                                brokers', and quotas
    AlterConfigs      change them                                                                 change quotas

Read, Write, Delete and Alter imply Describe, AlterConfigs implies DescribeConfigs, All is every one. What brokers do
among themselves is allowed to brokers alone.

The names are Kafka's (`AclBinding`, `AclOperation`, `ResourceType`, `PatternType`), without ``_``.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import msgspec

from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.contract.requests import Entries, Message, Request, make_decoders

AclOperation = Literal[
    "All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs"
]
AclResourceType = Literal["Topic", "Group", "TransactionalId", "Cluster"]
AclPattern = Literal["Literal", "Prefixed"]
AclPermission = Literal["Allow", "Deny"]

CLUSTER_RESOURCE: Final = "pylog-cluster"
"""The only resource of type Cluster (Kafka's is ``kafka-cluster``)."""
ANY: Final = "*"
"""Every principal (``User:*``), host, or resource name."""
USER: Final = "User:"
ANONYMOUS: Final = "ANONYMOUS"
"""The principal of callers that have not proved who they are; Kafka's name for it."""
MOST_NAME_CHARS: Final = 255

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME_CHARS)]


class Acl(Message, frozen=True, kw_only=True, order=True):
    """One rule.

    ``principal``: ``User:name``, or ``User:*`` for everybody. ``host``: an IP address, or ``*``. ``name``: of the
    resource, or how it begins where ``pattern`` is Prefixed; ``*`` (Literal) is every one of the type; of the cluster
    `CLUSTER_RESOURCE`.
    """

    principal: _Text
    operation: AclOperation
    resource_type: AclResourceType
    name: _Text = CLUSTER_RESOURCE
    pattern: AclPattern = "Literal"
    permission: AclPermission = "Allow"
    host: _Text = ANY

    def __str__(self) -> str:
        resource = self.resource_type if self.resource_type == "Cluster" else f"{self.resource_type} {self.name}"
        prefix = "…" if self.pattern == "Prefixed" else ""
        host = "" if self.host == ANY else f" from {self.host}"
        return f"{self.permission} {self.principal}{host} {self.operation} {resource}{prefix}"


class AclFilter(Message, frozen=True, kw_only=True):
    """Which ACLs are meant; None: whatever it is."""

    principal: _Text | None = None
    operation: AclOperation | None = None
    resource_type: AclResourceType | None = None
    name: _Text | None = None
    pattern: AclPattern | None = None
    permission: AclPermission | None = None
    host: _Text | None = None

    def matches(self, acl: Acl) -> bool:
        """Whether the ACL is one of those."""
        return all(
            wanted is None or wanted == getattr(acl, name) for name, wanted in msgspec.structs.asdict(self).items()
        )


def check_acl(acl: Acl) -> None:
    """Raises `InvalidRequestError`, which names the value and what is allowed, for an ACL that could mean nothing."""
    if not acl.principal.startswith(USER) or acl.principal == USER:
        raise InvalidRequestError(f"principal={acl.principal!r}: must be User:name, or User:* for everybody")
    if not all(text.isprintable() for text in (acl.principal, acl.host, acl.name)):
        raise InvalidRequestError(f"{acl!s:.200}: characters that are not printable")
    if acl.host != ANY and acl.host != _normal_address(acl.host):
        raise InvalidRequestError(f"host={acl.host!r}: must be an IP address as brokers see it (10.0.0.1, ::1), or '*'")
    if acl.name == ANY and acl.pattern == "Prefixed":
        raise InvalidRequestError("name='*' with pattern Prefixed: for all, it is Literal; for none, leave it out")
    if acl.resource_type == "Cluster" and (acl.name, acl.pattern) != (CLUSTER_RESOURCE, "Literal"):
        raise InvalidRequestError(f"name={acl.name!r}: the cluster's is {CLUSTER_RESOURCE!r}, Literal")
    if acl.operation != "All" and acl.operation not in OPERATIONS_ON[acl.resource_type]:
        raise InvalidRequestError(
            f"operation={acl.operation!r} on {acl.resource_type}: must be All or one of "
            f"{', '.join(OPERATIONS_ON[acl.resource_type])}"
        )


def _normal_address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


OPERATIONS_ON: Final[dict[str, tuple[str, ...]]] = {
    "Topic": ("Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs"),
    "Group": ("Read", "Delete", "Alter", "Describe"),
    "TransactionalId": ("Write", "Describe"),
    "Cluster": ("Create", "Alter", "Describe", "DescribeConfigs", "AlterConfigs"),
}
IMPLIES: Final[dict[str, frozenset[str]]] = {
    "Describe": frozenset({"Read", "Write", "Delete", "Alter"}),
    "DescribeConfigs": frozenset({"AlterConfigs"}),
}
"""An operation, and those of which each implies it where it is allowed."""


class CreateAclsRequest(Request, frozen=True, kw_only=True):
    """All of these, or none. Those that exist already change nothing."""

    MOST_BYTES: ClassVar[int] = 2 << 20

    acls: Entries[Acl]


class DeleteAclsRequest(Request, frozen=True, kw_only=True):
    """All that match any of these."""

    MOST_BYTES: ClassVar[int] = 2 << 20

    filters: Entries[AclFilter]


class DescribeAclsRequest(Request, frozen=True, kw_only=True):
    """Those that match."""

    filter: AclFilter = AclFilter()


class AclsResponse(Message, frozen=True, kw_only=True):
    """ACLs: those found, created or deleted; sorted."""

    acls: tuple[Acl, ...]


class PasswordHash(Message, frozen=True, kw_only=True):
    """What is kept of a password (`passwords`): scrypt's result, its salt and its cost."""

    salt: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
    hash: Annotated[bytes, msgspec.Meta(min_length=32, max_length=64)]
    cost: Annotated[int, msgspec.Meta(ge=2**14, le=2**17)]  # scrypt's n; r is 8, p is 1

    def __repr__(self) -> str:
        return f"PasswordHash(cost={self.cost})"


class UserPassword(Message, frozen=True, kw_only=True):
    """A user that is to have this password."""

    user: _Text
    password: PasswordHash


class AlterUsersRequest(Request, frozen=True, kw_only=True):
    """Users that are to have these passwords, new or not, and users that are to be gone. All, or none."""

    MOST_BYTES: ClassVar[int] = 2 << 20

    upserts: Entries[UserPassword] = ()
    deletions: Entries[_Text] = ()


class DescribeUsersRequest(Request, frozen=True, kw_only=True):
    """All users."""


class UsersResponse(Message, frozen=True, kw_only=True):
    """The names of users, sorted. Never anything of their passwords."""

    users: tuple[str, ...]


class CreateTokenRequest(Request, frozen=True, kw_only=True):
    """A token by which whoever has it is taken for the caller. ``lifetime_ms``: how long; at most a day."""

    lifetime_ms: Annotated[int, msgspec.Meta(ge=1_000, le=86_400_000)] = 3_600_000


class CreateTokenResponse(Message, frozen=True, kw_only=True):
    """``expires_ms``: when, by the broker's clock."""

    token: str
    expires_ms: int

    def __repr__(self) -> str:
        return f"CreateTokenResponse(expires_ms={self.expires_ms})"


def check_user_name(name: Any) -> str:
    """The name, if a user may have it. Raises `InvalidRequestError`."""
    is_text = isinstance(name, str) and 1 <= len(name) <= MOST_NAME_CHARS and name.isprintable()
    if not is_text or ":" in name or name in (ANY, ANONYMOUS) or name != name.strip():
        raise InvalidRequestError(
            f"user {name!r:.300}: must be 1 to {MOST_NAME_CHARS} printable characters, without ':', not '*' nor "
            f"{ANONYMOUS!r}"
        )
    return str(name)


OPERATIONS: Final[tuple[str, ...]] = get_args(AclOperation)
RESOURCE_TYPES: Final[tuple[str, ...]] = get_args(AclResourceType)


make_decoders()
