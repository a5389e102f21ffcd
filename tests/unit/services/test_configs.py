"""A broker's answers about a topic's settings."""

from __future__ import annotations

import pytest

from broker_runtime.contract.requests import DescribeConfigRequest
from broker_runtime.contract.settings import resolve
from broker_runtime.services.configs import ConfigService
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState
from broker_runtime.zookeeper.znodes import TopicRecord
from tests.callers import CLIENT


@pytest.mark.parametrize(
    ("replicas", "config", "wanted", "source"),
    [
        ((1,), {}, "1", "default"),
        ((1, 2), {}, "1", "default"),
        ((1, 2, 3), {}, "2", "default"),
        ((1, 2, 3), {"min.insync.replicas": "1"}, "1", "topic"),
    ],
)
def test_min_insync_replicas_is_reported_as_in_force(replicas, config, wanted, source):
    """Its default depends on the number of replicas: the answer has a number, not "no value"."""
    record = TopicRecord(topic_id=bytes(16), assignment=(replicas,))
    topic = TopicState(name="t", record=record, version=0, partitions=(None,), config=config)
    cluster = ClusterState(topics={"t": topic})
    service = ConfigService(lambda: cluster, resolve("broker", {"broker.id": "1", "log.dirs": "unused"}))
    entry = service.describe_config(CLIENT, DescribeConfigRequest(topic="t")).entries["min.insync.replicas"]
    assert (entry.value, entry.source) == (wanted, source)
