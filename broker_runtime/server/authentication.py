"""Who a listener's callers are: what the headers of a call prove, and what the name in a certificate stands for.

    PLAINTEXT, SSL          nothing is asked: ANONYMOUS
    SSL with certificates   the certificate's name, mapped by `ssl.principal.mapping.rules`; gRPC has verified it
    SASL_…                  a user and a password, or a token, in the header of every call; brokers have theirs

Rule: who has proved nothing where proof is asked for is refused, and nobody else's call waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from broker_runtime.contract.errors import BrokerUnavailableError, SaslAuthenticationError, SslAuthenticationError
from broker_runtime.contract.flight import BROKER_HEADER
from broker_runtime.contract.security import AUTHORIZATION_HEADER, NOT_KNOWN_YET, SecurityProtocol, parse_authorization
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.security.audit import Audit
from broker_runtime.security.credentials import NO_PROOF, Proof

_MOST_NAME_CHARS: Final = 255

Headers = Mapping[str, Sequence[Any]]


class Credentials(Protocol):
    """Who has which password or token. Thread-safe."""

    def of_password(self, user: str, password: str) -> Proof:
        """Raises `SaslAuthenticationError`, and `BrokerOverloadedError` where too many are being checked."""
        ...

    def of_token(self, token: str) -> Proof:
        """Raises `SaslAuthenticationError`."""
        ...


class Authenticator:
    """One listener's."""

    def __init__(
        self,
        name: str,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        *,
        asks_for_certificates: bool = False,
        map_name: Callable[[str], str | None] = lambda name: name,
        credentials: Credentials | None = None,
        meters: Meters = NO_METERS,
    ) -> None:
        """``map_name``: the principal of a certificate's name; None: nobody's. ``credentials``: needed for SASL."""
        assert credentials is not None or not protocol.uses_sasl
        self.name = name
        self.protocol = protocol
        self.asks_for_certificates = asks_for_certificates
        self._map_name = map_name
        self._credentials = credentials
        self._meters = meters
        self._audit = Audit()

    @property
    def takes_names_from_certificates(self) -> bool:
        """Whether the principal is the name in the certificate; with SASL it is the user, certificate or not."""
        return self.asks_for_certificates and not self.protocol.uses_sasl

    def authenticate(self, headers: Headers) -> Proof:
        """What the headers prove. Raises `SaslAuthenticationError` if more is asked for; may take 0.1 s and more."""
        if not self.protocol.uses_sasl:
            return NO_PROOF
        try:
            return self._proof_in(headers)
        except SaslAuthenticationError as error:
            self._meters.login_refused()
            self._audit.refused_login(listener=self.name, error=error)
            raise

    def _proof_in(self, headers: Headers) -> Proof:
        assert self._credentials is not None
        given = headers.get(AUTHORIZATION_HEADER, ())
        if not given and headers.get(BROKER_HEADER):
            raise BrokerUnavailableError(NOT_KNOWN_YET)
        if len(given) != 1:
            raise SaslAuthenticationError(
                f"listener {self.name} speaks {self.protocol.value}: a user and a password, or a token, are needed"
            )
        found = parse_authorization(str(given[0]))
        if found is None:
            raise SaslAuthenticationError("the authorization header holds neither a user and a password nor a token")
        if isinstance(found, tuple):
            return self._credentials.of_password(*found)
        return self._credentials.of_token(found)

    def principal_of(self, identity: bytes) -> str:
        """The principal of the certificate's name. Raises `SslAuthenticationError` if it has none, or is nobody."""
        try:
            return self._principal_of(identity)
        except SslAuthenticationError as error:
            self._meters.login_refused()
            self._audit.refused_login(listener=self.name, error=error)
            raise

    def _principal_of(self, identity: bytes) -> str:
        try:
            name = identity.decode()
        except UnicodeDecodeError:
            name = ""
        if not name or not name.isprintable() or len(name) > _MOST_NAME_CHARS:
            raise SslAuthenticationError("the client's certificate has no name (SAN or CN) that can be a principal")
        principal = self._map_name(name)
        if not principal:
            raise SslAuthenticationError(f"ssl.principal.mapping.rules make no principal of {name!r}")
        return principal


OPEN: Final = Authenticator("PLAINTEXT")
