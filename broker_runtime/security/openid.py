"""Tokens of an OpenID provider (JWT, RFC 7519), checked against the keys that it publishes (JWKS, RFC 7517).

    a call with a token ─▶ `proof`: signature by one of the known keys, issuer, audience, expiry ─▶ principal
    `step` on a thread of its own: fetches the keys every five minutes, and soon when a token names another one

Rule: no call waits for the provider. While it does not answer, the keys that it published last count. A token without
an end, with another algorithm, or signed by the audience's own means (HMAC, ``none``) is refused.
"""

from __future__ import annotations

import json
import logging
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from broker_runtime.contract.errors import InvalidConfigError, SaslAuthenticationError, SetupError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import BrokerSettings
from broker_runtime.contract.waiting import Deadline, Signal
from broker_runtime.security.credentials import Proof

_logger = logging.getLogger(__name__)

_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_EVERY_S: Final = 300.0
_AGAIN_S: Final = 10.0  # after a failure, and between two fetches because of unknown keys
_FETCH_LIMIT_S: Final = 10.0
_MOST_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 100
_OTHERS_RAISE: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""What PyJWT and json raise besides their own errors for what strangers made: a key that does not fit the algorithm
that a token names, `RecursionError` for nested lists, a `RuntimeError` for a key of algorithm ``none``."""
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class OpenIdTokens:
    """One provider's. Thread-safe, but for `step`."""

    def __init__(self, settings: BrokerSettings, *, fetch: Callable[[str], bytes] | None = None) -> None:
        """Raises `SetupError` without PyJWT. ``fetch``: how the keys come from their URL; may raise `OSError`."""
        try:
            import jwt
        except ImportError:
            raise SetupError(
                "sasl.oauthbearer.jwks.endpoint.url needs PyJWT: pip install 'pyspark-log[openid]'"
            ) from None
        assert settings.sasl_oauthbearer_jwks_endpoint_url is not None
        self._jwt = jwt
        self._url = check_url(settings.sasl_oauthbearer_jwks_endpoint_url)
        self._issuer = settings.sasl_oauthbearer_expected_issuer
        self._audience = list(settings.sasl_oauthbearer_expected_audience or ())
        self._claim = settings.sasl_oauthbearer_sub_claim_name
        self._skew_s = settings.sasl_oauthbearer_clock_skew_seconds
        self._fetch = fetch or _fetch
        self._signal = Signal()
        self._keys: Mapping[str | None, Any] = {}

    def proof(self, token: str) -> Proof:
        """Whose the token is. Raises `SaslAuthenticationError`; never waits."""
        try:
            name = self._jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(name)
            if key is None:
                self._signal.set()
                raise SaslAuthenticationError("the token is signed with a key that its provider has not published")
            claims = self._jwt.decode(
                token,
                key.key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._skew_s,
                options={"require": ["exp", "iss", "aud", self._claim]},
            )
        except (self._jwt.PyJWTError, *_OTHERS_RAISE) as error:
            raise SaslAuthenticationError(f"the token is not valid, or no longer ({type(error).__name__})") from None
        principal = claims[self._claim]
        if not isinstance(principal, str) or not principal or not principal.isprintable() or len(principal) > 255:
            raise SaslAuthenticationError(f"the token's claim {self._claim!r} is no name")
        return Proof(principal=principal, expires_ms=(int(claims["exp"]) + self._skew_s) * 1_000)

    def step(self) -> float:
        """Fetches the keys, then waits until they are to be fetched again; returns how long to pause then."""
        began_s = time.monotonic()
        try:
            found = self._read()
        except (OSError, HTTPException, self._jwt.PyJWTError, *_OTHERS_RAISE) as error:
            event(_logger, "fetch keys of tokens", level=logging.WARNING, url=self._url, error=error)
        else:
            if found.keys() != self._keys.keys():
                event(_logger, "fetch keys of tokens", url=self._url, keys=len(found))
            self._keys = found
        self._signal.wait(_EVERY_S if self._keys else _AGAIN_S)
        return max(0.0, _AGAIN_S - (time.monotonic() - began_s))

    def wake(self) -> None:
        """Ends the wait of `step`."""
        self._signal.set()

    def _read(self) -> dict[str | None, Any]:
        published = json.loads(self._fetch(self._url))
        listed = published.get("keys") if isinstance(published, dict) else None
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise ValueError("what is published is no set of keys")
        found: dict[str | None, Any] = {}
        for each in listed[:_MOST_KEYS]:
            if each.get("kty") == "oct" or each.get("use", "sig") != "sig":
                continue  # a secret that both sides would share; a key to encrypt with
            try:
                found[each.get("kid")] = self._jwt.PyJWK(each)
            except (self._jwt.PyJWTError, *_OTHERS_RAISE):
                continue  # of a kind that is not known here, or garbage
        return found


def check_url(url: str) -> str:
    """The URL, if keys may come from there. Raises `InvalidConfigError`."""
    parts = urlsplit(url)
    is_here = parts.scheme == "file" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if parts.scheme != "https" and not is_here:
        raise InvalidConfigError(
            f"sasl.oauthbearer.jwks.endpoint.url={url!r}: must be https://…, or file:///… (whoever can change keys "
            "on their way can be anybody)"
        )
    return url


def _fetch(url: str) -> bytes:
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(parts.path).open("rb") as file:
            data: bytes = file.read(_MOST_BYTES + 1)
    else:
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}) if parts.hostname in _LOOPBACK else urllib.request.ProxyHandler(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
            _NoRedirect(),
        )
        deadline = Deadline(_FETCH_LIMIT_S)
        data = b""
        with opener.open(url, timeout=_FETCH_LIMIT_S) as answer:
            while len(data) <= _MOST_BYTES and (piece := answer.read1(_MOST_BYTES + 1 - len(data))):
                data += piece
                if deadline.expired:  # the limit above is one for each piece
                    raise TimeoutError(f"not all of it came within {_FETCH_LIMIT_S:g} s")
    if len(data) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    return data


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Keys come from where the settings say, and nowhere else."""
