"""An idempotent producer writes while the leaders of its partitions are killed one after the other."""

from __future__ import annotations

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster
from tests.integration.client.test_idempotent_producer import Load, assert_exactly_once


def test_every_record_is_there_once_though_its_leader_is_killed(monkeypatch) -> None:
    """W9, W13: the next leader learns from the frames which ones its predecessor appended."""
    with LocalCluster(brokers=3) as cluster:
        monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
        with Admin() as admin:
            admin.create_topic("failover", partitions=2, replication_factor=3)
            load = Load("failover")
            for _ in range(4):
                load.wait_for(300)
                leader = admin.describe_topic("failover").partitions[0].leader
                assert leader is not None
                cluster.kill(leader)
                load.wait_for(300)
                cluster.start(leader)
                cluster.wait_until_ready()
            load.finish()
        assert_exactly_once("failover", len(load.futures))
