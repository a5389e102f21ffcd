"""Passwords and tokens: who is let in, who is not, and when that ends."""

from __future__ import annotations

import base64
import hashlib
import json
import time

import pytest

from broker_runtime.contract.acls import PasswordHash
from broker_runtime.contract.errors import BrokerOverloadedError, NotSupportedError, SaslAuthenticationError
from broker_runtime.contract.passwords import hash_of_nobody, hash_password, verify_password
from broker_runtime.security import credentials
from broker_runtime.security.credentials import KnownCredentials, Proof, credential_of

CHEAP = 2**14
ALICE = hash_password("correct horse", cost=CHEAP)


class World:
    def __init__(self) -> None:
        self.users: dict[str, PasswordHash] = {"alice": ALICE}
        self.key: bytes | None = b"k" * 32
        self.now_ms = 1_000
        self.known = KnownCredentials(lambda: self.users, lambda: self.key, now_ms=lambda: self.now_ms)

    def token(self, **more: int) -> str:
        return self.known.new_token("alice", credential_of(self.users["alice"]), end_ms=more.get("end_ms", 2_000))

    def refuses(self, token: str) -> bool:
        try:
            self.known.of_token(token)
        except SaslAuthenticationError:
            return True
        return False


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were checked with scrypt."""
    made: list[str] = []

    def verify(password: str, kept: PasswordHash) -> bool:
        made.append(password)
        return verify_password(password, kept)

    monkeypatch.setattr(credentials, "verify_password", verify)
    return made


def test_password_has_another_salt_each_time_and_is_not_in_its_hash() -> None:
    again = hash_password("correct horse", cost=CHEAP)
    assert again != ALICE
    assert verify_password("correct horse", again)
    assert not verify_password("correct hors", again)
    assert "correct" not in repr(again)
    assert b"correct" not in again.hash + again.salt


def test_hash_of_nobody_fits_no_password_and_costs_as_much_as_any_to_verify() -> None:
    nobody, ordinary = hash_of_nobody(), hash_password("correct horse")
    assert not verify_password("correct horse", nobody)
    assert nobody.cost == ordinary.cost
    assert [len(nobody.salt), len(nobody.hash)] == [len(ordinary.salt), len(ordinary.hash)]
    assert nobody != hash_of_nobody()


def test_broker_computes_no_hash_before_somebody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a broker would take a tenth of a second of a processor longer."""
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "scrypt", lambda *_, **__: pytest.fail("scrypt"))
        world = World()
    with pytest.raises(SaslAuthenticationError):
        world.known.of_password("bob", "correct horse")


def test_right_password_is_let_in_and_checked_once(world: World, checks: list[str]) -> None:
    for _ in range(3):
        assert world.known.of_password("alice", "correct horse") == Proof(
            principal="alice", credential=credential_of(ALICE)
        )
    assert checks == ["correct horse"]


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("alice", ""), ("bob", "correct horse"), ("", "")])
def test_wrong_password_and_unknown_user_are_refused_alike(
    world: World, checks: list[str], user: str, password: str
) -> None:
    """The error is the same, and so is the work: neither says whether the user exists."""
    for _ in range(2):
        with pytest.raises(SaslAuthenticationError, match="the user or the password is wrong"):
            world.known.of_password(user, password)
    assert checks == [password]


def test_new_password_counts_at_once_and_the_old_one_no_more(world: World) -> None:
    before = world.known.of_password("alice", "correct horse")
    world.users = {"alice": hash_password("battery staple", cost=CHEAP)}
    with pytest.raises(SaslAuthenticationError):
        world.known.of_password("alice", "correct horse")
    now = world.known.of_password("alice", "battery staple")
    assert before.credential != now.credential
    assert not world.known.is_current("alice", before.credential)
    assert world.known.is_current("alice", now.credential)


def test_deleted_user_is_refused_though_it_was_let_in_before(world: World) -> None:
    proof = world.known.of_password("alice", "correct horse")
    world.users = {}
    with pytest.raises(SaslAuthenticationError):
        world.known.of_password("alice", "correct horse")
    assert not world.known.is_current("alice", proof.credential)


def test_credential_that_is_never_withdrawn_stays_current(world: World) -> None:
    assert world.known.is_current("ANONYMOUS", "")
    assert world.known.is_current("CN of a certificate", "")


def test_what_ends_by_itself_is_not_current_afterwards(world: World) -> None:
    """The streams that a token opened end with it."""
    world.now_ms = 1_999
    assert world.known.is_current("alice", credential_of(ALICE), 2_000)
    assert world.known.is_current("of a provider", "", 2_000)
    world.now_ms = 2_000
    assert not world.known.is_current("alice", credential_of(ALICE), 2_000)
    assert not world.known.is_current("of a provider", "", 2_000)


def test_very_long_password_costs_nothing(world: World, checks: list[str]) -> None:
    with pytest.raises(SaslAuthenticationError):
        world.known.of_password("alice", "x" * 1_025)
    assert checks == []


def test_checks_come_one_after_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever guesses takes one processor, and is told to wait where others guess."""
    monkeypatch.setattr(credentials, "_CHECK_WAIT_S", 0.01)
    with world.known._checking, pytest.raises(BrokerOverloadedError):
        world.known.of_password("alice", "correct horse")
    assert world.known.of_password("alice", "correct horse").principal == "alice"


def test_those_who_wait_for_a_check_are_few(world: World) -> None:
    """Each holds a thread of gRPC's: the others are refused at once."""
    with world.known._checking:
        for _ in range(credentials._MOST_WAITING):
            assert world.known._waiting.acquire(blocking=False)
        began_s = time.monotonic()
        with pytest.raises(BrokerOverloadedError):
            world.known.of_password("alice", "correct horse")
        assert time.monotonic() - began_s < credentials._CHECK_WAIT_S / 2
        for _ in range(credentials._MOST_WAITING):
            world.known._waiting.release()
    assert world.known.of_password("alice", "correct horse").principal == "alice"


def test_results_that_are_remembered_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_MOST_REMEMBERED", 2)
    monkeypatch.setattr(credentials, "verify_password", lambda password, kept: False)
    for number in range(5):
        with pytest.raises(SaslAuthenticationError):
            world.known.of_password("alice", f"guess {number}")
    assert len(world.known._results) == 2


def test_token_stands_for_its_user_until_its_end(world: World) -> None:
    token = world.token()
    assert world.known.of_token(token) == Proof(principal="alice", credential=credential_of(ALICE), expires_ms=2_000)
    world.now_ms = 1_999
    assert not world.refuses(token)
    world.now_ms = 2_000
    assert world.refuses(token)


def test_token_ends_with_its_users_password_and_with_the_key(world: World) -> None:
    token = world.token()
    world.users = {"alice": hash_password("battery staple", cost=CHEAP)}
    assert world.refuses(token)
    world.users = {}
    assert world.refuses(token)
    world.users = {"alice": ALICE}
    assert not world.refuses(token)
    world.key = b"o" * 32
    assert world.refuses(token)
    world.key = None
    assert world.refuses(token)


def test_token_that_was_changed_is_refused(world: World) -> None:
    token = world.token()
    _, body, signature = token.split(".")
    content = json.loads(base64.urlsafe_b64decode(body + "=="))
    forged = base64.urlsafe_b64encode(json.dumps({**content, "e": 10**15}).encode()).decode().rstrip("=")
    admin = base64.urlsafe_b64encode(json.dumps({**content, "p": "root"}).encode()).decode().rstrip("=")
    changed = [f"pylog.{forged}.{signature}", f"pylog.{admin}.{signature}", f"pylog.{body}.", f"pylog.{body}"]
    changed += [f"pylog.{body}.{signature}x", f"pylog.{body}.{signature[:-1]}", body, "", "pylog.", "pylog..", "é.é.é"]
    changed += [
        f"PYLOG.{body}.{signature}",
        "pylog." + "x" * 10_000,
        f"pylog.{body}{' ' * 8_000}.{signature}",
        f"pylog.{signature}.{body}",
    ]
    for each in changed:
        assert world.refuses(each), each


def test_token_that_is_too_long_is_refused_though_it_is_signed(world: World) -> None:
    assert world.key is not None
    body = "e" * 8_000
    assert world.refuses(f"pylog.{body}.{credentials._signature(world.key, body)}")


def test_tokens_are_only_for_those_who_came_with_a_password(world: World) -> None:
    for principal in ("ANONYMOUS", "a certificate's name"):
        with pytest.raises(NotSupportedError, match="tokens are for users with a password"):
            world.known.new_token(principal, "", end_ms=2_000)
