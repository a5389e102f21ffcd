"""Users, access control lists and quotas, as an administrator sees and changes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker_runtime.contract.acls import (
    Acl,
    AclFilter,
    AclsResponse,
    AlterUsersRequest,
    CreateAclsRequest,
    CreateTokenRequest,
    CreateTokenResponse,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUsersRequest,
    UserPassword,
    UsersResponse,
    check_acl,
    check_user_name,
)
from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.contract.passwords import hash_password
from broker_runtime.contract.quotas import (
    AlterQuotasRequest,
    DescribeQuotasRequest,
    Quota,
    QuotaChange,
    QuotaEntity,
    QuotasResponse,
    check_change,
)
from broker_runtime.contract.requests import portions
from broker_runtime.contract.settings.kinds import is_unicode
from pyspark_log.client.connection.cluster import Cluster

_LEAST_PASSWORD_CHARS = 8
_MOST_PASSWORD_BYTES = 1_024
_SHORTEST_TOKEN_S, _LONGEST_TOKEN_S = 1.0, 86_400.0


def create_acls(cluster: Cluster, acls: Iterable[Acl]) -> list[Acl]:
    """Those that are new. Raises `InvalidRequestError` before anything is created."""
    wanted = list(acls)
    for acl in wanted:
        check_acl(acl)
    created: list[Acl] = []
    for portion in portions(wanted):
        created += cluster.call("create_acls", CreateAclsRequest(acls=portion), AclsResponse).acls
    return created


def delete_acls(cluster: Cluster, filters: Sequence[AclFilter]) -> list[Acl]:
    """Those that are gone."""
    deleted: list[Acl] = []
    for portion in portions(filters):
        deleted += cluster.call("delete_acls", DeleteAclsRequest(filters=portion), AclsResponse).acls
    return deleted


def describe_acls(cluster: Cluster, wanted: AclFilter) -> list[Acl]:
    """Those that match, sorted."""
    return list(cluster.call("describe_acls", DescribeAclsRequest(filter=wanted), AclsResponse).acls)


def set_password(cluster: Cluster, user: str, password: str) -> None:
    """Makes the user, or gives it another password."""
    check_user_name(user)
    check_password(password)
    wanted = UserPassword(user=user, password=hash_password(password))
    cluster.call("alter_users", AlterUsersRequest(upserts=(wanted,)), UsersResponse)


def delete_user(cluster: Cluster, user: str) -> None:
    """Nothing happens if there is none of that name."""
    cluster.call("alter_users", AlterUsersRequest(deletions=(user,)), UsersResponse)


def list_users(cluster: Cluster) -> list[str]:
    """The names, sorted."""
    return list(cluster.call("describe_users", DescribeUsersRequest(), UsersResponse).users)


def alter_quotas(cluster: Cluster, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> None:
    """None: the limit is to be gone."""
    wanted = [QuotaChange(entity=entity, limits=tuple(limits.items())) for entity, limits in changes.items()]
    for change in wanted:
        check_change(change)
    for portion in portions(wanted):
        cluster.call("alter_quotas", AlterQuotasRequest(changes=portion), QuotasResponse)


def describe_quotas(cluster: Cluster) -> list[Quota]:
    """All, sorted."""
    return list(cluster.call("describe_quotas", DescribeQuotasRequest(), QuotasResponse).quotas)


def create_token(cluster: Cluster, lifetime_s: float) -> str:
    """A token of the caller's. Raises `InvalidRequestError` for a lifetime that no token can have."""
    if not _SHORTEST_TOKEN_S <= lifetime_s <= _LONGEST_TOKEN_S:
        raise InvalidRequestError(
            f"lifetime_s={lifetime_s}: must be from {_SHORTEST_TOKEN_S:g} to {_LONGEST_TOKEN_S:g} (a day)"
        )
    request = CreateTokenRequest(lifetime_ms=round(lifetime_s * 1000))
    return cluster.call("create_token", request, CreateTokenResponse).token


def check_password(password: str) -> None:
    """Raises `InvalidRequestError` for one that is too short, too long or no valid Unicode. The error does not show
    it."""
    if not is_unicode(password):
        raise InvalidRequestError("the password is not valid Unicode: only text that UTF-8 can hold is allowed")
    if len(password) < _LEAST_PASSWORD_CHARS or len(password.encode()) > _MOST_PASSWORD_BYTES:
        raise InvalidRequestError(
            f"the password has {len(password)} characters: from {_LEAST_PASSWORD_CHARS} on, and up to "
            f"{_MOST_PASSWORD_BYTES} bytes, are allowed"
        )
