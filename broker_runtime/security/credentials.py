"""Passwords and tokens, verified.

A password is checked with scrypt once; after that its keyed digest is remembered, so that further calls cost
microseconds. One check runs at a time: whoever guesses passwords takes one processor, and no memory. A token is
signed with the cluster's key, so every broker can check it:

    pylog.<base64url of the JSON {"p": principal, "c": credential, "e": end in ms}>.<base64url of its HMAC-SHA256>

Rule: a user that is deleted, or has another password, is known to be so as soon as this broker has read it; what its
old password and tokens opened ends then (`Caller.credential`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from broker_runtime.contract.acls import ANONYMOUS, MOST_NAME_CHARS, PasswordHash
from broker_runtime.contract.errors import BrokerOverloadedError, NotSupportedError, SaslAuthenticationError
from broker_runtime.contract.passwords import hash_of_nobody, verify_password

_MOST_REMEMBERED: Final = 10_000
_CHECK_WAIT_S: Final = 5.0
_MOST_WAITING: Final = 16
_MOST_PASSWORD_BYTES: Final = 1_024
_TOKEN_PREFIX: Final = "pylog."  # noqa: S105 - how every token begins
_MOST_TOKEN_CHARS: Final = 7_000  # gRPC takes 8 KiB of headers
_REFUSED: Final = "the user or the password is wrong"
_TOKEN_REFUSED: Final = "the token is not valid, or no longer"  # noqa: S105 - an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the headers of a call prove. ``credential``, ``expires_ms``: see `Caller`."""

    principal: str = ANONYMOUS
    is_broker: bool = False
    credential: str = ""
    expires_ms: int = 0


NO_PROOF: Final = Proof()


class KnownCredentials:
    """Verifies them against what this broker has read. Thread-safe."""

    def __init__(
        self,
        users: Callable[[], Mapping[str, PasswordHash]],
        token_key: Callable[[], bytes | None],
        *,
        now_ms: Callable[[], int],
        foreign: Callable[[str], Proof] | None = None,
    ) -> None:
        """``users``, ``token_key``: as they are now. ``now_ms``: the wall clock. ``foreign``: verifies tokens that are
        not ours, as `of_token`; None: there are none."""
        self._foreign = foreign
        self._users = users
        self._token_key = token_key
        self._now_ms = now_ms
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[str, bytes], tuple[PasswordHash | None, bool]] = OrderedDict()
        self._checking = threading.Lock()
        self._waiting = threading.Semaphore(_MOST_WAITING)  # each holds a thread of gRPC's
        self._nobody = hash_of_nobody()

    def of_password(self, user: str, password: str) -> Proof:
        """Raises `SaslAuthenticationError` where it is not the user's password, `BrokerOverloadedError` where too many
        are being checked."""
        if len(password.encode(errors="replace")) > _MOST_PASSWORD_BYTES or len(user) > MOST_NAME_CHARS:
            raise SaslAuthenticationError(_REFUSED)
        kept = self._users().get(user)
        digest = hmac.digest(self._key, f"{user}:{password}".encode(errors="replace"), "sha256")
        with self._lock:
            found = self._results.get((user, digest))
            if found is not None:
                self._results.move_to_end((user, digest))
        if found is None or found[0] != kept:
            found = (kept, self._check(password, kept))
            with self._lock:
                self._results[user, digest] = found
                while len(self._results) > _MOST_REMEMBERED:
                    self._results.popitem(last=False)
        if kept is None or not found[1]:
            raise SaslAuthenticationError(_REFUSED)
        return Proof(principal=user, credential=credential_of(kept))

    def _check(self, password: str, kept: PasswordHash | None) -> bool:
        """Whether it is the password. Of a user that does not exist, it takes as long."""
        is_let_wait = self._waiting.acquire(blocking=False)
        try:
            if not is_let_wait or not self._checking.acquire(timeout=_CHECK_WAIT_S):
                raise BrokerOverloadedError("more passwords are being checked than this broker can; try again")
        finally:
            if is_let_wait:
                self._waiting.release()
        try:
            return verify_password(password, self._nobody if kept is None else kept) and kept is not None
        finally:
            self._checking.release()

    def of_token(self, token: str) -> Proof:
        """Raises `SaslAuthenticationError` for a token that is not, or no longer, one."""
        if self._foreign is not None and not token.startswith(_TOKEN_PREFIX) and len(token) <= _MOST_TOKEN_CHARS:
            return self._foreign(token)
        key = self._token_key()
        body, _, signature = token.removeprefix(_TOKEN_PREFIX).partition(".")
        if key is None or not token.startswith(_TOKEN_PREFIX) or len(token) > _MOST_TOKEN_CHARS or not token.isascii():
            raise SaslAuthenticationError(_TOKEN_REFUSED)
        if not hmac.compare_digest(_signature(key, body), signature):
            raise SaslAuthenticationError(_TOKEN_REFUSED)
        try:
            content = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            principal, credential, end_ms = str(content["p"]), str(content["c"]), int(content["e"])
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise SaslAuthenticationError(_TOKEN_REFUSED) from None
        if end_ms <= self._now_ms() or not self.is_current(principal, credential):
            raise SaslAuthenticationError(_TOKEN_REFUSED)
        return Proof(principal=principal, credential=credential, expires_ms=end_ms)

    def new_token(self, principal: str, credential: str, *, end_ms: int) -> str:
        """A token of that principal. Raises `NotSupportedError` for one that none of our users is."""
        key = self._token_key()
        if key is None or not credential:
            raise NotSupportedError("tokens are for users with a password, over a listener that speaks SASL")
        content = json.dumps({"p": principal, "c": credential, "e": end_ms}, separators=(",", ":"))
        body = base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")
        return f"{_TOKEN_PREFIX}{body}.{_signature(key, body)}"

    def is_current(self, principal: str, credential: str, expires_ms: int = 0) -> bool:
        """Whether the principal still has that credential; "" is one that is never withdrawn. ``expires_ms``: when it
        ends by itself; 0: never."""
        if expires_ms and expires_ms <= self._now_ms():
            return False
        kept = self._users().get(principal)
        return not credential or (kept is not None and credential_of(kept) == credential)


def credential_of(kept: PasswordHash) -> str:
    """What tells this password from an earlier or later one of the same user, and nothing about it."""
    return hashlib.sha256(kept.salt + kept.hash).hexdigest()[:16]


def _signature(key: bytes, body: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, body.encode(), "sha256")).decode().rstrip("=")
