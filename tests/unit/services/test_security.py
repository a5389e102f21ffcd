"""Tokens that users ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_runtime.contract.acls import CreateTokenRequest
from broker_runtime.contract.errors import NotSupportedError
from broker_runtime.contract.passwords import hash_password
from broker_runtime.security.credentials import KnownCredentials, credential_of
from broker_runtime.security.records import SecurityRecords
from broker_runtime.services.security import SecurityService
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.callers import client

ALICE = hash_password("correct horse", cost=2**14)
BY_PASSWORD = replace(client(), principal="alice", credential=credential_of(ALICE))


@pytest.fixture
def known() -> KnownCredentials:
    return KnownCredentials(lambda: {"alice": ALICE}, lambda: b"k" * 32, now_ms=lambda: 1_000)


@pytest.fixture
def service(known: KnownCredentials) -> SecurityService:
    return SecurityService(SecurityRecords(MemoryZooKeeper().client()), known, now_ms=lambda: 1_000)


def test_user_gets_a_token_for_as_long_as_it_asks(service: SecurityService, known: KnownCredentials) -> None:
    made = service.create_token(BY_PASSWORD, CreateTokenRequest(lifetime_ms=5_000))
    assert made.expires_ms == 6_000
    assert known.of_token(made.token).principal == "alice"
    assert made.token not in repr(made)


def test_token_makes_no_other(service: SecurityService) -> None:
    """Or one that was stolen could be kept alive for ever."""
    with pytest.raises(NotSupportedError, match="a token makes no other"):
        service.create_token(replace(BY_PASSWORD, expires_ms=2_000), CreateTokenRequest())


@pytest.mark.parametrize("caller", [client(), replace(client(), principal="name in a certificate")])
def test_who_has_no_password_gets_none(service: SecurityService, caller: object) -> None:
    with pytest.raises(NotSupportedError, match="tokens are for users with a password"):
        service.create_token(caller, CreateTokenRequest())  # type: ignore[arg-type]
