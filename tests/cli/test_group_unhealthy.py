"""`pylog group describe` while a broker is away."""

from __future__ import annotations

import json

from pylog_command import Pylog

from pyspark_log import Admin, Producer, TopicPartition
from pyspark_log.testing import LocalCluster


def test_group_describe_shows_what_is_known_while_a_leader_is_away(run_pylog: Pylog) -> None:
    """W27: of two partitions one has no leader: its end and lag are blank, the other's are shown; with --max-lag the
    exit status is 5, as nobody knows how far the group is behind.
    """
    with LocalCluster(brokers=2) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t", replica_assignment=[[1], [2]])
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("t", b"a", partition=0)
        admin.alter_group_offsets("g", {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0})
        cluster.kill(2)
        done = run_pylog("group", "describe", "g", "-b", cluster.bootstrap_servers, "-o", "json", "--max-lag", "5",
                         "--timeout", "40")  # fmt: skip
        assert done.returncode == 5, done.stderr
        assert done.stderr == "[LEADER_NOT_AVAILABLE] The lag is unknown because no leader answers: t:1\n"
        rows = json.loads(done.stdout)["partitions"]
        assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in rows] == [
            (0, 0, 1, 1), (1, 0, None, None),
        ]  # fmt: skip
