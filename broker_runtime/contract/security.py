"""What a connection needs beside an address: certificates, what its caller proves itself with, a proxy.

    security.protocol   PLAINTEXT        nothing is encrypted, nobody is asked who they are
                        SSL              TLS; the client may have a certificate, too, and is known by its name
                        SASL_PLAINTEXT   a user and a password, or a token, that others can read on their way
                        SASL_SSL         the same within TLS

A caller's proof is a header of each call. TLS is Flight's; certificates and keys are PEM files, as with librdkafka.
They are read again for every connection, so renewed files are used without a restart.

Rule: no secret is in a `repr`, an error or a log line.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import ssl
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pyarrow import flight

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import AdminSettings

AUTHORIZATION_HEADER: Final = "authorization"
NOT_KNOWN_YET: Final = "this broker does not know yet that the caller is one, too"
"""What a broker answers another that registered a moment ago."""
_BASIC: Final = "Basic "
_BEARER: Final = "Bearer "
_MOST_FILE_BYTES: Final = 1 << 20
_MOST_TOKEN_BYTES: Final = 16 << 10

_logger = logging.getLogger(__name__)

Credentials = Callable[[], Sequence[tuple[str, str]]]
"""The headers of a call, by which its caller proves who it is; asked for at every call. Any thread, must not block."""


class SecurityProtocol(Enum):
    """How a listener, and who connects to it, speak. The values are what users type."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPem:
    """What was in `PemFiles`, at one time. ``fingerprint``: of the files just before."""

    roots: bytes | None
    chain: bytes
    key: bytes = field(repr=False)
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFiles:
    """Where certificates and keys are. ``ca``: whom to trust; None: whom the system trusts. ``certificate``: one's own,
    with those between it and the CA behind it; ``key``: its key, not encrypted."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def check(self, prefix: str = "") -> None:
        """Raises `InvalidConfigError` if a file cannot be read, holds no certificate or key, or the two do not fit.
        ``prefix``: of the settings' names."""
        try:
            if self.ca is not None:
                _loaded("ssl.cafile", self.ca, lambda path: ssl.create_default_context(cafile=path))
            if self.certificate is not None:
                assert self.key is not None
                self.own_pair()
        except InvalidConfigError as error:
            raise InvalidConfigError(prefix + error.message) from None

    def fingerprint(self) -> bytes:
        """Another one where a file has other contents, is missing, or is there again. Never raises."""
        found = hashlib.sha256()
        for path in (self.ca, self.certificate, self.key):
            try:
                content = b"" if path is None else path.read_bytes()[:_MOST_FILE_BYTES]
            except OSError as error:
                content = str(error.errno).encode()
            found.update(hashlib.sha256(content).digest())
        return found.digest()

    def load(self) -> LoadedPem:
        """What is in the files now. Raises as `check`; that the pair fits is known when it is used."""
        fingerprint = self.fingerprint()
        assert self.certificate is not None
        assert self.key is not None
        return LoadedPem(
            roots=self.roots(),
            chain=_read("ssl.certfile", self.certificate),
            key=_read("ssl.keyfile", self.key),
            fingerprint=fingerprint,
        )

    def roots(self) -> bytes | None:
        """The certificates to trust; None: those of the system, where gRPC finds them. Raises as `check`."""
        if self.ca is not None:
            return _read("ssl.cafile", self.ca)
        found = ssl.get_default_verify_paths().cafile
        return None if found is None else _read("the system's certificates", Path(found))

    def own_pair(self) -> tuple[bytes, bytes]:
        """One's own certificates and their key. Raises as `check`."""
        assert self.certificate is not None
        assert self.key is not None
        for name, path in (("ssl.certfile", self.certificate), ("ssl.keyfile", self.key)):
            _read(name, path)

        def load(path: str) -> None:
            # A password that is asked for on the terminal would block.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, self.key, password=_no_password)

        _loaded("ssl.certfile and ssl.keyfile", self.certificate, load)
        return _read("ssl.certfile", self.certificate), _read("ssl.keyfile", self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to connect. ``tls`` None: not encrypted. ``uses_proxy``: through the proxy that the environment names."""

    tls: PemFiles | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    uses_proxy: bool = False

    @property
    def scheme(self) -> str:
        """Of Flight's locations."""
        return "grpc" if self.tls is None else "grpc+tls"

    def client_arguments(self) -> dict[str, Any]:
        """For Flight's client, beside its location and options. Raises `InvalidConfigError` for a file that is no
        longer there, or no longer right."""
        arguments: dict[str, Any] = {}
        if self.tls is not None:
            arguments["tls_root_certs"] = self.tls.roots()
            if self.tls.certificate is not None:
                arguments["cert_chain"], arguments["private_key"] = self.tls.own_pair()
        if self.credentials is not None:
            arguments["middleware"] = [_Proving(self.credentials)]
        return arguments


UNPROTECTED: Final = Access()
"""Not encrypted; says nothing of who connects."""


def access_of(settings: AdminSettings) -> Access:
    """How a client with these settings connects. Raises `InvalidConfigError` for files that are not right."""
    protocol = SecurityProtocol(settings.security_protocol)
    tls = None
    if protocol.uses_tls:
        tls = PemFiles(ca=settings.ssl_cafile, certificate=settings.ssl_certfile, key=settings.ssl_keyfile)
        tls.check()
    credentials = None
    if protocol.uses_sasl:
        if settings.token_file is not None:
            token_file = TokenFile(settings.token_file)
            token_file.read()

            def renewed() -> Sequence[tuple[str, str]]:
                return [bearer_header(token_file.token)]

            return Access(tls=tls, credentials=renewed, uses_proxy=settings.enable_http_proxy)
        if settings.token is not None:
            headers = [bearer_header(settings.token.reveal())]
        else:
            assert settings.sasl_username is not None
            assert settings.sasl_password is not None
            headers = [basic_header(settings.sasl_username, settings.sasl_password.reveal())]

        def given() -> Sequence[tuple[str, str]]:
            return headers

        credentials = given
    return Access(tls=tls, credentials=credentials, uses_proxy=settings.enable_http_proxy)


class TokenFile:
    """A token that somebody else renews in a file: each call begins with the newest. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    @property
    def token(self) -> str:
        """The newest. Where the file is missing or is no token, the one before: its writer may be at it just now, and
        a broker says what it thinks of an old one. Raises nothing."""
        try:
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_ino, found.st_size) != self._seen:
                self.read()
        except (OSError, InvalidConfigError) as error:
            if self._seen is not None:  # once: there may be a thousand calls before it is right again
                event(_logger, "read token", level=logging.WARNING, path=self._path, error=error)
            self._seen = None
        return self._token

    def read(self) -> str:
        """The token. Raises `InvalidConfigError` if the file cannot be read, or holds none."""
        try:
            with open(self._path, "rb", opener=_open_at_once) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):  # reading would wait for whoever writes, and nobody may
                    raise InvalidConfigError(f"token.file={self._path}: must be a file, not a pipe or a device")
                token = file.read(_MOST_TOKEN_BYTES + 1).decode("ascii").strip()
        except OSError as error:
            raise InvalidConfigError(f"token.file={self._path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            token = ""
        if not token or len(token) > _MOST_TOKEN_BYTES or not token.isprintable() or " " in token:
            raise InvalidConfigError(
                f"token.file={self._path}: must be one token, of at most {_MOST_TOKEN_BYTES >> 10} KiB"
            )
        self._token, self._seen = token, (found.st_mtime_ns, found.st_ino, found.st_size)
        return token


def _open_at_once(path: str, flags: int) -> int:
    """A pipe that nobody writes to would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def basic_header(user: str, password: str) -> tuple[str, str]:
    """The header of a user with a password (RFC 7617)."""
    return AUTHORIZATION_HEADER, _BASIC + base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer_header(token: str) -> tuple[str, str]:
    """The header of whoever has a token (RFC 6750)."""
    return AUTHORIZATION_HEADER, _BEARER + token


def parse_authorization(value: str) -> tuple[str, str] | str | None:
    """The user and password of such a header, or the token; None: it is neither."""
    if value.startswith(_BEARER):
        return value.removeprefix(_BEARER).strip() or None
    if not value.startswith(_BASIC):
        return None
    try:
        user, separator, password = base64.b64decode(value.removeprefix(_BASIC), validate=True).decode().partition(":")
    except ValueError:  # not base64, or not UTF-8
        return None
    return (user, password) if separator else None


class _Proving(flight.ClientMiddlewareFactory):
    """Puts the caller's proof into the headers of every call."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def start_call(self, info: Any) -> Any:
        return _ProvingCall(self._credentials)


class _ProvingCall(flight.ClientMiddleware):
    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def sending_headers(self) -> Mapping[str, str]:
        return dict(self._credentials())


def _read(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(f"{name}={path}: cannot be read: {error.strerror}") from None
    if len(data) > _MOST_FILE_BYTES or b"-----BEGIN " not in data:
        raise InvalidConfigError(f"{name}={path}: must be a PEM file, of at most {_MOST_FILE_BYTES >> 20} MiB")
    return data


def _loaded(name: str, path: Path, load: Callable[[str], object]) -> None:
    _read(name.partition(" ")[0], path)
    try:
        load(str(path))
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidConfigError(f"{name}={path}: is not a PEM file that can be used: {reason}") from None


def _no_password() -> bytes:
    raise ValueError("the key is encrypted; it must not be")
