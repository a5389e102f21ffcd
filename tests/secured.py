"""A cluster on which not everybody may do everything, and the certificates for it: for tests.

Listeners: ``IN`` (brokers and administrators, by certificate), ``SASL_SSL`` (users with passwords), ``MTLS`` (clients
with certificates), each over TLS. Super users: ``root`` by either.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster

HOST = "127.0.0.1"
ROOT_PASSWORD = "root's long password"
LISTENERS = f"IN://{HOST}:0,SASL_SSL://{HOST}:0,MTLS://{HOST}:0"


class Pki:
    """A CA of a test's own. Files are in ``directory``: ``ca.pem``, and two for each certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(self.ca))

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def issue(self, name: str, *identities: str, has_expired: bool = False) -> dict[str, str]:
        """Makes, or replaces, a certificate; returns the settings of who has it, apart from the protocol."""
        now = datetime.datetime.now(datetime.UTC)
        begin = now - datetime.timedelta(days=10) if has_expired else None
        end = now - datetime.timedelta(days=1) if has_expired else now + datetime.timedelta(days=1)
        made = self._ca.issue_cert(*(identities or (name,)), not_before=begin, not_after=end)
        chain, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        # Each in one step, as tools that renew certificates do it; the pair does not fit for a moment.
        for path, data in ((chain, b"".join(each.bytes() for each in made.cert_chain_pems)), (key, _pkcs8(made))):
            temporary = path.with_suffix(".new")
            temporary.write_bytes(data)
            temporary.replace(path)
        return {"ssl.cafile": str(self.ca), "ssl.certfile": str(chain), "ssl.keyfile": str(key)}


def _pkcs8(made: trustme.LeafCert) -> bytes:
    return made.private_key_pem.bytes()


@dataclass(frozen=True, slots=True)
class Secured:
    """The cluster, the CA, and what clients need."""

    cluster: LocalCluster
    pki: Pki

    @property
    def root(self) -> dict[str, str]:
        """Settings of an administrator, without ``bootstrap.servers``; at listener IN."""
        return {"security.protocol": "SSL", **self.pki.issue("root", "root.example.org")}

    def user(self, name: str, password: str) -> dict[str, str]:
        """Settings of a user, with ``bootstrap.servers``."""
        return {
            "bootstrap.servers": self.cluster.bootstrap_servers_of("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "ssl.cafile": str(self.pki.ca),
            "sasl.username": name,
            "sasl.password": password,
        }

    def certified(self, name: str) -> dict[str, str]:
        """Settings of a client with a certificate in that name, with ``bootstrap.servers``."""
        own = self.pki.issue(name, f"{name}.example.org")
        return {
            "bootstrap.servers": self.cluster.bootstrap_servers_of("MTLS"), "security.protocol": "SSL", **own
        }  # fmt: skip

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        with Admin(self.cluster.bootstrap_servers_of("IN"), config=self.root) as client:
            yield client


@contextmanager
def secured_cluster(directory: Path, brokers: int, **more: str) -> Iterator[Secured]:
    """``more``: further broker settings, with ``_`` for ``.``."""
    pki = Pki(directory / "pki")
    settings = {
        "listeners": LISTENERS,
        "listener.security.protocol.map": "IN:SSL,MTLS:SSL",
        "ssl.client.auth": "IN,MTLS",
        "ssl.principal.mapping.rules": r"RULE:^(.*)\.example\.org$/$1/L,DEFAULT",
        "authorizer.class.name": "AclAuthorizer",
        "super.users": "User:root",
        **pki.issue("broker", HOST),
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    root = {"security.protocol": "SSL", **pki.issue("root", "root.example.org")}
    with LocalCluster(brokers, directory=directory / "cluster", settings=settings, client_settings=root) as cluster:
        yield Secured(cluster, pki)
