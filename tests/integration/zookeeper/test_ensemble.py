"""The bundled ZooKeeper as an ensemble of three: real servers out of PySpark's jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_runtime.contract.errors import SetupError, ZooKeeperUnavailableError
from broker_runtime.zookeeper.bundled import SESSION_LIMITS_MS
from broker_runtime.zookeeper.client import KazooZooKeeper
from pyspark_log.local.ensemble import ZooKeeperEnsemble
from tests.waiting import wait_until

LIMIT_S = 60.0


def get(client: KazooZooKeeper, path: str) -> bytes:
    """The znode's content; asks again while no server answers."""
    return wait_until(lambda: client.get(path), f"{path} is read", ignoring=(ZooKeeperUnavailableError,)).data


def test_ensemble_loses_one_server_and_keeps_its_state_over_a_restart_of_all(tmp_path: Path) -> None:
    """W26: with one server lost the cluster's state is complete; with two gone the client waits for one of them."""
    ensemble = ZooKeeperEnsemble(tmp_path, 3)
    ensemble.start()
    try:
        # The longest: the client may be late to return on a busy machine.
        client = KazooZooKeeper.connect(f"{ensemble.connect_string}/root", session_timeout_ms=SESSION_LIMITS_MS[1])
        client.create("/kept", b"x")
        session = client.session_id
        ensemble.servers[3].kill()
        assert ensemble.has_majority
        assert get(client, "/kept") == b"x"
        ensemble.servers[2].kill()
        assert not ensemble.has_majority
        ensemble.start_one(3)
        assert get(client, "/kept") == b"x"
        assert client.session_id == session
        client.close()
    finally:
        ensemble.stop()
    with pytest.raises(SetupError, match="contains the data of 3 ZooKeeper servers, not 1"):
        ZooKeeperEnsemble(tmp_path, 1)
    again = ZooKeeperEnsemble(tmp_path, 3)
    again.start()
    try:
        client = KazooZooKeeper.connect(f"{again.connect_string}/root", session_timeout_ms=10_000)
        assert client.get("/kept").data == b"x"
        client.close()
    finally:
        again.stop()
