"""What brokers keep in ZooKeeper is closed to others: TLS, a password, ACLs on znodes, and the way there and back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kazoo.exceptions as kz
import pytest
from cryptography.hazmat.primitives import serialization
from kazoo.client import KazooClient

from broker_runtime.contract.errors import InvalidConfigError, ZooKeeperUnavailableError
from broker_runtime.ports import choose_port
from broker_runtime.zookeeper.bundled import BundledZooKeeper
from pyspark_log import Admin, Producer
from pyspark_log.local.broker_process import BrokerProcess
from tests.secured import Pki

ROOT = "/pylog"
SECRET = "zookeeper's password"
LIMIT_S = 20


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def zookeeper(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BundledZooKeeper, str]]:
    """A real server with a port for TLS beside the plain one; where the first is."""
    files = pki.issue("zookeeper", "127.0.0.1")
    key = serialization.load_pem_private_key(Path(files["ssl.keyfile"]).read_bytes(), None)
    # ZooKeeper reads keys in PKCS8 alone, and chain and key from one file.
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    store = pki.directory / "zookeeper-store.pem"
    store.write_bytes(Path(files["ssl.certfile"]).read_bytes() + pkcs8)
    port = choose_port()
    lines = [
        f"secureClientPort={port}", "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={store}", "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={pki.ca}", "ssl.trustStore.type=PEM", "ssl.clientAuth=none",
    ]  # fmt: skip
    with BundledZooKeeper(tmp_path_factory.mktemp("zk"), more_settings=lines) as server:
        yield server, f"127.0.0.1:{port}"


@pytest.fixture
def anybody(zookeeper: tuple[BundledZooKeeper, str]) -> Iterator[KazooClient]:
    """Who reaches ZooKeeper's plain port, and is nobody."""
    client = KazooClient(zookeeper[0].connect_string)
    client.start(LIMIT_S)
    yield client
    client.stop()
    client.close()


def broker(directory: Path, connect: str, **settings: str) -> BrokerProcess:
    return BrokerProcess(
        directory,
        broker_id=1,
        zookeeper_connect=connect,
        settings={name.replace("_", "."): value for name, value in settings.items()},
    )


def closed(pki: Pki) -> dict[str, str]:
    return {
        "zookeeper_ssl_cafile": str(pki.ca),
        "zookeeper_username": "brokers",
        "zookeeper_password": SECRET,
        "zookeeper_set_acl": "true",
    }


def use(started: BrokerProcess, topic: str) -> None:
    """Makes the broker write znodes of all kinds."""
    with Admin(started.address) as admin, Producer(started.address) as producer:
        admin.create_topic(topic)
        producer.send(topic, b"x").result(LIMIT_S)
        admin.set_password("alice", "alice's password")


def paths(client: KazooClient, path: str) -> list[str]:
    return [path, *(each for name in client.get_children(path) for each in paths(client, f"{path}/{name}"))]


def test_strangers_read_write_and_create_nothing_where_brokers_set_acls(
    pki: Pki, zookeeper: tuple[BundledZooKeeper, str], anybody: KazooClient, tmp_path: Path
) -> None:
    started = broker(tmp_path, f"{zookeeper[1]}{ROOT}-closed", **closed(pki))
    started.start()
    try:
        use(started, "t")
        for call in (
            lambda: anybody.get_children(f"{ROOT}-closed"),
            lambda: anybody.create(f"{ROOT}-closed/mine"),
            lambda: anybody.get(f"{ROOT}-closed/security/users"),
            lambda: anybody.get(f"{ROOT}-closed/brokers/ids/1"),
            lambda: anybody.set(f"{ROOT}-closed/security/acls", b"{}"),
            lambda: anybody.delete(f"{ROOT}-closed/topics/t", recursive=True),
        ):
            with pytest.raises(kz.NoAuthError):
                call()
        anybody.add_auth("digest", "brokers:another")
        with pytest.raises(kz.NoAuthError):
            anybody.get(f"{ROOT}-closed/security/users")
        anybody.add_auth("digest", f"brokers:{SECRET}")
        everything = paths(anybody, f"{ROOT}-closed")
        assert f"{ROOT}-closed/brokers/ids/1" in everything
        open_ones = [path for path in everything if any(acl.id.scheme == "world" for acl in anybody.get_acls(path)[0])]
        assert open_ones == []
        assert SECRET not in started.output_file.read_text()
    finally:
        started.stop()


def acl(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyspark_log.cli", "zookeeper", "acl", "--broker-config", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_cluster_that_began_open_is_closed_and_opened_again(
    pki: Pki, zookeeper: tuple[BundledZooKeeper, str], anybody: KazooClient, tmp_path: Path
) -> None:
    """Restarted with a username, its znodes are closed by one command; another opens them before it is taken away."""
    root = f"{ROOT}-grown"
    first = broker(tmp_path, f"{zookeeper[0].connect_string}{root}")
    first.start()
    try:
        use(first, "t")
    finally:
        first.stop()
    assert anybody.get(f"{root}/security/users")[0]
    second = broker(tmp_path, f"{zookeeper[1]}{root}", **closed(pki))
    second.start()
    try:
        assert anybody.get(f"{root}/security/users")[0]
        done = acl(second.config_file)
        assert done.returncode == 0, done.stderr
        assert "Closed " in done.stderr + done.stdout
        with pytest.raises(kz.NoAuthError):
            anybody.get(f"{root}/security/users")
        use(second, "u")
        assert acl(second.config_file, "--unsecure").returncode == 0
        assert anybody.get(f"{root}/security/users")[0]
    finally:
        second.stop()


def test_broker_with_another_password_does_not_start(
    pki: Pki, zookeeper: tuple[BundledZooKeeper, str], tmp_path: Path
) -> None:
    right = broker(tmp_path / "right", f"{zookeeper[1]}{ROOT}-pair", **closed(pki))
    right.start()
    right.stop()
    wrong = broker(tmp_path / "wrong", f"{zookeeper[1]}{ROOT}-pair", **closed(pki) | {"zookeeper_password": "another"})
    with pytest.raises(ZooKeeperUnavailableError, match=r"refuses it to this broker.*zookeeper\.password"):
        wrong.start()
    wrong.stop()


def test_server_that_the_ca_does_not_vouch_for_is_not_talked_to(
    zookeeper: tuple[BundledZooKeeper, str], tmp_path: Path
) -> None:
    other = Pki(tmp_path / "other")
    started = broker(
        tmp_path / "b",
        f"{zookeeper[1]}{ROOT}",
        zookeeper_ssl_cafile=str(other.ca),
        zookeeper_session_timeout_ms="6s",
    )
    with pytest.raises(ZooKeeperUnavailableError, match=r"over TLS with the certificates of zookeeper\.ssl\.cafile"):
        started.start()
    started.stop()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"zookeeper_set_acl": "true"}, "zookeeper.set.acl=true needs zookeeper.username"),
        ({"zookeeper_username": "a"}, "zookeeper.username and zookeeper.password need each other"),
        ({"zookeeper_ssl_cafile": "/no/ca.pem"}, "zookeeper.ssl.cafile=/no/ca.pem: cannot be read"),
        ({"zookeeper_ssl_certfile": "a", "zookeeper_ssl_keyfile": "b"}, "needs zookeeper.ssl.cafile"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_the_start(tmp_path: Path, given: dict[str, str], says: str) -> None:
    started = broker(tmp_path, "127.0.0.1:1/x", **given)
    with pytest.raises(InvalidConfigError, match=says):
        started.start()
