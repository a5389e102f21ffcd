"""What administrators ask about users, access control lists and quotas, and the tokens that users ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_runtime.contract.acls import (
    AclsResponse,
    AlterUsersRequest,
    CreateAclsRequest,
    CreateTokenRequest,
    CreateTokenResponse,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUsersRequest,
    UsersResponse,
)
from broker_runtime.contract.errors import NotSupportedError
from broker_runtime.contract.quotas import AlterQuotasRequest, DescribeQuotasRequest, QuotasResponse
from broker_runtime.security.credentials import KnownCredentials
from broker_runtime.security.records import SecurityRecords
from broker_runtime.services.caller import Caller, logged_change, some_of

_logger = logging.getLogger(__name__)


class SecurityService:
    """Thread-safe. Blocks on ZooKeeper; raises `ZooKeeperUnavailableError`."""

    def __init__(self, records: SecurityRecords, credentials: KnownCredentials, *, now_ms: Callable[[], int]) -> None:
        self._records = records
        self._credentials = credentials
        self._now_ms = now_ms

    def create_acls(self, caller: Caller, request: CreateAclsRequest) -> AclsResponse:
        """All, or none; answers with those that are new."""
        with logged_change(_logger, "create acls", caller, acls=some_of(map(str, request.acls))):
            return AclsResponse(acls=self._records.create_acls(request.acls))

    def delete_acls(self, caller: Caller, request: DeleteAclsRequest) -> AclsResponse:
        """All that match; answers with those that are gone."""
        with logged_change(_logger, "delete acls", caller, filters=len(request.filters)):
            return AclsResponse(acls=self._records.delete_acls(request.filters))

    def describe_acls(self, caller: Caller, request: DescribeAclsRequest) -> AclsResponse:
        """Those that match."""
        return AclsResponse(acls=self._records.acls(request.filter))

    def alter_users(self, caller: Caller, request: AlterUsersRequest) -> UsersResponse:
        """New users, new passwords, and users that are to be gone; answers with those there are then."""
        upserts = {each.user: each.password for each in request.upserts}
        deletions = request.deletions
        with logged_change(_logger, "alter users", caller, upserts=some_of(upserts), deletions=some_of(deletions)):
            return UsersResponse(users=self._records.alter_users(upserts, deletions))

    def describe_users(self, caller: Caller, request: DescribeUsersRequest) -> UsersResponse:
        """All users."""
        return UsersResponse(users=self._records.user_names())

    def alter_quotas(self, caller: Caller, request: AlterQuotasRequest) -> QuotasResponse:
        """All changes, or none; answers with the quotas there are then."""
        entities = some_of(str(each.entity) for each in request.changes)
        with logged_change(_logger, "alter quotas", caller, entities=entities):
            return QuotasResponse(quotas=self._records.alter_quotas(request.changes))

    def describe_quotas(self, caller: Caller, request: DescribeQuotasRequest) -> QuotasResponse:
        """All quotas."""
        return QuotasResponse(quotas=self._records.quotas())

    def create_token(self, caller: Caller, request: CreateTokenRequest) -> CreateTokenResponse:
        """A token of the caller's. Raises `NotSupportedError` where it is no user with a password."""
        if caller.expires_ms:
            raise NotSupportedError("a token makes no other: its user's password does")
        expires_ms = self._now_ms() + request.lifetime_ms
        token = self._credentials.new_token(caller.principal, caller.credential, end_ms=expires_ms)
        return CreateTokenResponse(token=token, expires_ms=expires_ms)
