"""Tokens of an OpenID provider: a small real one publishes its keys over HTTP, and rotates them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from broker_runtime.contract.errors import InvalidConfigError, SaslAuthenticationError
from broker_runtime.contract.settings import BrokerSettings, resolve
from broker_runtime.security import openid
from broker_runtime.security.openid import OpenIdTokens, check_url

ISSUER, AUDIENCE = "https://id.example.org", "pylog"


class Provider:
    """Signs tokens, and publishes keys at ``url``."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.more: list[dict[str, Any]] = []
        self.status = 200
        self.asked = 0
        self.pause_s = 0.0  # before each byte
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                body = json.dumps({"keys": [*map(provider.jwk, provider.keys), *provider.more]}).encode()
                self.send_response(provider.status)
                if provider.status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/keys")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                for piece in (bytes([byte]) for byte in body) if provider.pause_s else [body]:
                    time.sleep(provider.pause_s)
                    try:
                        self.wfile.write(piece)
                    except OSError:
                        return

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def jwk(self, name: str) -> dict[str, Any]:
        key = self.keys[name]
        algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"}

    def token(self, key: str, *, algorithm: str = "RS256", signer: Any = None, **claims: Any) -> str:
        now = int(time.time())
        body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 600, "iat": now} | claims
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, signer or self.keys[key], algorithm=algorithm, headers={"kid": key})


@pytest.fixture(scope="module")
def rsa_keys() -> list[Any]:
    return [rsa.generate_private_key(65_537, 2_048) for _ in range(3)]


@pytest.fixture
def provider(rsa_keys: list[Any]) -> Iterator[Provider]:
    made = Provider()
    made.keys = {"first": rsa_keys[0], "curve": ec.generate_private_key(ec.SECP256R1())}
    yield made
    made.close()


def settings(url: str, **more: object) -> BrokerSettings:
    given = {
        "broker.id": 1, "log.dirs": "unused", "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": ISSUER, "sasl.oauthbearer.expected.audience": AUDIENCE, **more,
    }  # fmt: skip
    return resolve("broker", given)


@pytest.fixture
def tokens(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> OpenIdTokens:
    monkeypatch.setattr(openid, "_EVERY_S", 0.0)  # `step` returns when it has fetched
    made = OpenIdTokens(settings(provider.url))
    made.step()
    return made


def test_token_of_the_provider_is_its_subject_until_it_ends(tokens: OpenIdTokens, provider: Provider) -> None:
    end = int(time.time()) + 60
    for name, algorithm in (("first", "RS256"), ("first", "PS512"), ("curve", "ES256")):
        proof = tokens.proof(provider.token(name, algorithm=algorithm, exp=end))
        assert (proof.principal, proof.expires_ms) == ("alice", (end + 30) * 1_000)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"iss": "https://evil.example.org"}, "InvalidIssuerError"),
        ({"aud": "another service"}, "InvalidAudienceError"),
        ({"exp": 1}, "ExpiredSignatureError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "MissingRequiredClaimError"),
        ({"nbf": 10**11}, "ImmatureSignatureError"),
        ({"sub": ""}, "is no name"),
        ({"sub": "a\nb"}, "is no name"),
    ],
)
def test_token_with_another_claim_is_refused(
    tokens: OpenIdTokens, provider: Provider, claims: dict[str, Any], says: str
) -> None:
    with pytest.raises(SaslAuthenticationError, match=says):
        tokens.proof(provider.token("first", **claims))


@pytest.mark.parametrize(("key", "algorithm"), [("first", "ES256"), ("curve", "RS256"), ("first", "EdDSA")])
def test_token_that_names_an_algorithm_for_other_keys_is_refused(
    tokens: OpenIdTokens, provider: Provider, key: str, algorithm: str
) -> None:
    """As one that is not valid: its client does not try again, and the refusal is counted."""
    _, claims, signature = provider.token(key, algorithm="ES256" if key == "curve" else "RS256").split(".")
    header = jwt.utils.base64url_encode(json.dumps({"alg": algorithm, "kid": key}).encode()).decode()
    with pytest.raises(SaslAuthenticationError, match="not valid"):
        tokens.proof(f"{header}.{claims}.{signature}")


def test_token_signed_by_others_is_refused(tokens: OpenIdTokens, provider: Provider, rsa_keys: list[Any]) -> None:
    public = (
        provider.keys["first"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(SaslAuthenticationError, match="InvalidSignatureError"):
        tokens.proof(provider.token("first", signer=rsa_keys[2]))
    head, body, _ = provider.token("first").split(".")
    unsigned = jwt.encode({"sub": "alice"}, None, algorithm="none", headers={"kid": "first"})
    for forged in (unsigned, f"{head}.{body}.", "x.y.z", "", "é", unsigned.split(".")[0] + f".{body}."):
        with pytest.raises(SaslAuthenticationError):
            tokens.proof(forged)
    # The public key taken for a secret that both sides share: PyJWT refuses to make such a token, so by hand.
    import base64
    import hashlib
    import hmac

    def encoded(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    signed = f"{encoded({'alg': 'HS256', 'kid': 'first', 'typ': 'JWT'})}.{body}"
    mac = base64.urlsafe_b64encode(hmac.new(public, signed.encode(), hashlib.sha256).digest()).decode().rstrip("=")
    with pytest.raises(SaslAuthenticationError, match="InvalidAlgorithmError"):
        tokens.proof(f"{signed}.{mac}")


def test_shared_secrets_that_are_published_are_no_keys(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openid, "_EVERY_S", 0.0)
    provider.more = [{"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}, {"kty": "new", "kid": "unknown"}]
    tokens = OpenIdTokens(settings(provider.url))
    tokens.step()
    for name in ("shared", "unknown"):
        with pytest.raises(SaslAuthenticationError, match="has not published"):
            tokens.proof(provider.token(name, algorithm="HS256", signer="secret" * 10))


def test_keys_are_rotated_and_a_withdrawn_one_counts_no_more(
    tokens: OpenIdTokens, provider: Provider, rsa_keys: list[Any]
) -> None:
    old = provider.token("first")
    provider.keys = {"second": rsa_keys[1]}
    new = provider.token("second")
    with pytest.raises(SaslAuthenticationError, match="has not published"):
        tokens.proof(new)
    tokens.step()  # which the unknown key has woken
    assert tokens.proof(new).principal == "alice"
    with pytest.raises(SaslAuthenticationError, match="has not published"):
        tokens.proof(old)


@pytest.mark.parametrize("status", [500, 302])
def test_provider_that_does_not_answer_changes_nothing(tokens: OpenIdTokens, provider: Provider, status: int) -> None:
    """Nor one that sends elsewhere: keys come from where the settings say."""
    token = provider.token("first")
    provider.status = status
    assert tokens.step() > 0
    assert tokens.proof(token).principal == "alice"


def test_tokens_do_not_make_a_broker_ask_more_often_than_every_ten_seconds(
    tokens: OpenIdTokens, provider: Provider
) -> None:
    """`step` says how long to pause, however many unknown keys woke it."""
    asked = provider.asked
    assert tokens.step() > 9
    assert provider.asked == asked + 1


def test_another_claim_may_be_the_principal(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openid, "_EVERY_S", 0.0)
    tokens = OpenIdTokens(settings(provider.url, **{"sasl.oauthbearer.sub.claim.name": "azp"}))
    tokens.step()
    assert tokens.proof(provider.token("first", azp="etl")).principal == "etl"


@pytest.mark.parametrize("url", ["http://id.example.org/keys", "ftp://127.0.0.1/keys", "keys.json", ""])
def test_keys_come_only_from_where_nobody_can_change_them(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="must be https"):
        check_url(url)


def test_provider_without_issuer_or_audience_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="a provider signs tokens for others, too"):
        resolve(
            "broker",
            {"broker.id": 1, "log.dirs": "x", "sasl.oauthbearer.jwks.endpoint.url": "https://id.example.org/keys"},
        )


@pytest.mark.parametrize(
    "published",
    [
        *(b"", b"{", b"[]", b"{}", b"null", b'{"keys":null}', b'{"keys":{"a":1}}', b'{"keys":[1,null,"x",[]]}'),
        *(b"\xff", b"[" * 100_000),
    ],
)
def test_garbage_from_the_provider_changes_nothing(tokens: OpenIdTokens, provider: Provider, published: bytes) -> None:
    """Nor does it end the thread that fetches, and the broker with it."""
    token = provider.token("first")
    tokens._fetch = lambda url: published
    assert tokens.step() > 0
    assert tokens.proof(token).principal == "alice"


def test_provider_that_sends_its_keys_a_byte_at_a_time_is_given_up(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time; all of them would take hours, in which no key is renewed."""
    monkeypatch.setattr(openid, "_FETCH_LIMIT_S", 0.3)
    provider.pause_s = 0.05
    with pytest.raises(TimeoutError, match="not all"):
        openid._fetch(provider.url)


def test_provider_that_speaks_no_http_changes_nothing(tokens: OpenIdTokens, provider: Provider) -> None:
    def no_http(url: str) -> bytes:
        raise BadStatusLine("SSH-2.0")

    tokens._fetch = no_http
    assert tokens.step() > 0
    assert tokens.proof(provider.token("first")).principal == "alice"


def test_key_that_is_garbage_takes_no_other_with_it(tokens: OpenIdTokens, provider: Provider) -> None:
    garbage = [
        {},
        {"kty": 5},
        {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": "EC", "crv": "P-256"},
        {"kid": [], "kty": "RSA"},
        {**provider.jwk("first"), "kid": "none", "alg": "none"},
    ]
    keys = {"keys": [*garbage, provider.jwk("first")]}
    tokens._fetch = lambda url: json.dumps(keys).encode()
    tokens.step()
    assert tokens.proof(provider.token("first")).principal == "alice"
