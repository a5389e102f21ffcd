"""Who owns a broker id and a data directory: each mistake is one clear error and leaves the running broker alone."""

from __future__ import annotations

import shutil

import pytest

from broker_runtime.zookeeper.bundled import BundledZooKeeper


def test_copy_of_a_running_brokers_directory_is_refused(broker, new_broker):
    """W11: a broker on a copy of a running broker's directory does not take the original for dead."""
    second = new_broker("second")
    shutil.copytree(broker.directory / "log", second.directory / "log")
    second.launch()
    assert second.exit_code() == 1
    assert f"[SETUP] broker.id 1 is registered by 127.0.0.1:{broker.port} pid {broker.process.pid}" in second.output
    (registered,) = broker.call("metadata").brokers
    assert (registered.port, registered.epoch) == (broker.port, 1)


def test_killed_broker_takes_its_own_registration_over_at_once(broker):
    """W19: the broker takes over its registration without waiting for the dead process's session to end."""
    broker.kill()
    broker.start()
    (registered,) = broker.call("metadata").brokers
    assert registered.epoch == 2


def test_directory_of_another_broker_number_is_refused(broker, new_broker):
    """W11: an error names the directory's owner when broker.id was changed on an existing directory."""
    assert broker.stop() == 0
    renamed = new_broker("renamed", **{"log.dirs": str(broker.directory / "log"), "broker.id": 7})
    renamed.launch()
    assert renamed.exit_code() == 1
    assert f"[DIRECTORY_LOCKED] {broker.directory / 'log'} belongs to broker 1 of cluster" in renamed.output
    assert "; this is broker 7 of cluster" in renamed.output
    assert "Traceback" not in renamed.output


@pytest.mark.parametrize("broker_id", [1, 2])
def test_directory_of_another_cluster_is_refused(broker, new_broker, own_zookeeper: BundledZooKeeper, broker_id):
    """W25: the cluster's id is in ZooKeeper and in every data directory of its brokers."""
    assert broker.stop() == 0
    foreign = new_broker(
        "foreign",
        f"{own_zookeeper.address}/pylog",
        **{"log.dirs": str(broker.directory / "log"), "broker.id": broker_id},
    )
    foreign.launch()
    assert foreign.exit_code() == 1
    assert "[DIRECTORY_LOCKED]" in foreign.output
    assert f"; this is broker {broker_id} of cluster" in foreign.output
    assert "Traceback" not in foreign.output
