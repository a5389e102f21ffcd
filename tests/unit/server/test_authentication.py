"""Who a listener's callers are: what their headers and certificates prove there, and when that is not enough."""

from __future__ import annotations

import logging

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError, SaslAuthenticationError, SslAuthenticationError
from broker_runtime.contract.security import SecurityProtocol, basic_header, bearer_header, parse_authorization
from broker_runtime.meters import Meters
from broker_runtime.security.credentials import NO_PROOF, Proof
from broker_runtime.server.authentication import Authenticator


class Known:
    """Whatever it is asked is right if it says so."""

    def of_password(self, user: str, password: str) -> Proof:
        if password != "right":
            raise SaslAuthenticationError("wrong")
        return Proof(principal=user, credential="c")

    def of_token(self, token: str) -> Proof:
        return Proof(principal=f"of {token}", credential="t")


class Counting(Meters):
    refused_logins = 0

    def login_refused(self) -> None:
        self.refused_logins += 1


def listener(protocol: str = "SASL_SSL", *, asks: bool = False, meters: Meters | None = None) -> Authenticator:
    return Authenticator(
        "L",
        SecurityProtocol(protocol),
        asks_for_certificates=asks,
        map_name=lambda name: None if name == "nobody" else name.lower(),
        credentials=Known(),
        meters=meters or Counting(),
    )


def headers(*pairs: tuple[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_nobody_is_asked_without_sasl_and_what_is_said_proves_nothing(protocol: str) -> None:
    """A password that somebody sends where none is asked for does not make it a user."""
    assert listener(protocol).authenticate(headers(basic_header("root", "right"))) == NO_PROOF


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_user_and_token_are_asked_for_with_sasl(protocol: str) -> None:
    assert listener(protocol).authenticate(headers(basic_header("alice", "right"))).principal == "alice"
    assert listener(protocol).authenticate(headers(bearer_header("t"))).principal == "of t"


@pytest.mark.parametrize(
    "given",
    [
        headers(),
        headers(basic_header("alice", "wrong")),
        headers(basic_header("alice", "right"), basic_header("root", "right")),
        headers(("authorization", "Basic")),
        headers(("authorization", "Basic !!!")),
        headers(("authorization", "Basic YWxpY2U=")),  # no colon
        headers(("authorization", "Basic //79")),  # not UTF-8
        headers(("authorization", "Digest x")),
        headers(("authorization", "Bearer ")),
        headers(("authorization", "")),
    ],
)
def test_what_is_no_proof_is_refused_counted_and_logged(
    given: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    meters = Counting()
    with pytest.raises(SaslAuthenticationError):
        listener(meters=meters).authenticate(given)
    assert meters.refused_logins == 1
    (logged,) = caplog.records
    assert logged.levelno == logging.WARNING
    assert logged.getMessage().startswith("refuse login listener=L error=")
    assert "right" not in logged.getMessage()


def test_broker_that_is_not_known_yet_is_told_to_try_again() -> None:
    """It registered a moment ago, and this broker has not read that: it is no login that failed."""
    with pytest.raises(BrokerUnavailableError, match="does not know yet"):
        listener().authenticate(headers(("pylog-broker", "1:x")))
    with pytest.raises(SaslAuthenticationError):
        listener().authenticate(headers(("pylog-broker", "1:x"), basic_header("alice", "wrong")))


@pytest.mark.parametrize(
    ("password", "user"), [("a:b:c", "alice"), ("", "alice"), ("pä\u20ac", "ü"), ("with space ", " x")]
)
def test_header_of_a_user_keeps_every_character(user: str, password: str) -> None:
    assert parse_authorization(basic_header(user, password)[1]) == (user, password)


def test_certificates_name_is_mapped() -> None:
    assert listener("SSL", asks=True).principal_of(b"Alice") == "alice"


@pytest.mark.parametrize("name", [b"", b"\xff", b"a\nb", b"x" * 256, b"nobody"])
def test_certificate_without_a_name_that_is_somebody_is_refused(name: bytes) -> None:
    """gRPC gives an empty name for a certificate that is valid and has none: it must not mean "anybody"."""
    meters = Counting()
    with pytest.raises(SslAuthenticationError):
        listener("SSL", asks=True, meters=meters).principal_of(name)
    assert meters.refused_logins == 1


def test_with_sasl_the_user_is_the_principal_whatever_the_certificate_says() -> None:
    assert listener("SSL", asks=True).takes_names_from_certificates
    assert not listener("SASL_SSL", asks=True).takes_names_from_certificates
    assert not listener("SSL").takes_names_from_certificates
