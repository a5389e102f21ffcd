"""Certificates that are renewed while a broker serves: who comes then sees the new one, and streams go on."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from pyspark_log import Admin, Consumer, Producer
from tests.secured import HOST, Secured, secured_cluster
from tests.waiting import SOON_S, wait_until

RENEWED_S = 20.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("renewed"), 1) as made:
        with made.admin() as admin:
            admin.create_topic("t")
        yield made


def serial(secured: Secured, listener: str = "SASL_SSL") -> str | None:
    """Of the certificate that is shown now; None: nobody listens at this moment."""
    context = ssl.create_default_context(cafile=str(secured.pki.ca))
    context.set_alpn_protocols(["h2"])
    port = int(secured.cluster.bootstrap_servers_of(listener).rpartition(":")[2])
    try:
        with (
            socket.create_connection((HOST, port), 5) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as tls,
        ):
            shown = tls.getpeercert()
            assert shown is not None
            return str(shown["serialNumber"])
    except OSError:
        return None


def root(secured: Secured) -> dict[str, str]:
    return {"bootstrap.servers": secured.cluster.bootstrap_servers_of("IN"), **secured.root}


def output(secured: Secured) -> str:
    return secured.cluster._broker(1).output_file.read_text()


def test_streams_go_on_and_who_comes_sees_the_new_certificate(secured: Secured) -> None:
    """Three times: a listener that was renewed is renewed again. No record is refused, lost or sent twice."""
    config = root(secured)
    with (
        Producer(config=config) as producer,
        closing(Consumer("t", config=config, auto_offset_reset="earliest")) as consumer,
    ):
        sent = got = 0
        for _ in range(3):
            before = serial(secured)
            secured.pki.issue("broker", HOST)

            def is_new(before: str | None = before) -> bool:
                nonlocal sent, got
                producer.send("t", b"x").result(SOON_S)
                sent += 1
                got += len(consumer.poll(0.01))
                return serial(secured) not in (None, before)

            wait_until(is_new, "the new certificate", RENEWED_S, pause_s=0.05)
        assert serial(secured, "IN") == serial(secured)

        def are_all() -> bool:
            nonlocal got
            got += len(consumer.poll(0.2))
            return got >= sent

        wait_until(are_all, "all records", SOON_S)
        assert got == sent
    assert "open stream kind=produce" in output(secured)
    with Admin(config=root(secured)) as admin:
        assert admin.list_topics() == ["t"]


def _garbage(secured: Secured) -> dict[Path, bytes]:
    return {secured.pki.directory / "broker.pem": b"garbage"}


def _anothers_key(secured: Secured) -> dict[Path, bytes]:
    return {secured.pki.directory / "broker.key": trustme.CA().issue_cert(HOST).private_key_pem.bytes()}


def _only_revocations(secured: Secured) -> dict[Path, bytes]:
    """A list of revoked certificates: Python's ssl takes it for CAs, and gRPC does not start with it."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    builder = x509.CertificateRevocationListBuilder().issuer_name(name).last_update(now)
    revoked = builder.next_update(now + datetime.timedelta(days=1)).sign(
        ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
    )
    return {secured.pki.ca: revoked.public_bytes(serialization.Encoding.PEM)}


@pytest.mark.parametrize("wrong", [_garbage, _anothers_key, _only_revocations])
def test_files_that_are_not_right_change_nothing_and_are_used_once_repaired(
    secured: Secured, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = wait_until(lambda: serial(secured), "a certificate", SOON_S)
    config = root(secured)
    lines = output(secured).count("ERROR broker_runtime.server.flight renew certificate")
    changed: dict[Path, bytes] = wrong(secured)  # type: ignore[operator]
    kept = {path: path.read_bytes() for path in changed}
    with Producer(config=config) as producer:
        producer.send("t", b"x").result(SOON_S)
        for path, data in changed.items():
            path.write_bytes(data)
        try:
            wait_until(
                lambda: output(secured).count("ERROR broker_runtime.server.flight renew certificate") > lines,
                "the error",
                RENEWED_S,
            )
            producer.send("t", b"x").result(SOON_S)
        finally:
            for path, data in kept.items():
                path.write_bytes(data)
        assert serial(secured) == shown
        secured.pki.issue("broker", HOST)
        wait_until(lambda: serial(secured) not in (None, shown), "the new certificate", RENEWED_S)
        producer.send("t", b"x").result(SOON_S)
    assert "CRITICAL" not in output(secured)
