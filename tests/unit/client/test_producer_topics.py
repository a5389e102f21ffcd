"""What a producer believes about its topics."""

from __future__ import annotations

from typing import Any

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    LeaderNotAvailableError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from pyspark_log import Producer
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.producer import broker_sender
from tests.unit.client.consumer_samples import make_topic
from tests.unit.client.test_broken_threads import LIMIT_S, AcknowledgingStream


class Brokers:
    """A topic without a leader at first; then some broker does not know it, and the controller says what it says."""

    def __init__(self, controller: list[PylogError | None]) -> None:
        self.controller = controller
        self.asked: list[str] = []

    def topic(self, name: str, **_: Any) -> Topic:
        return make_topic(name)

    def fetch_topics(self, names: list[str], *, to: str = "any", **_: Any) -> list[Topic]:
        self.asked.append(to)
        if to == "any":
            raise UnknownTopicOrPartitionError("no topic 't'")
        if (error := self.controller.pop(0)) is not None:
            raise error
        return [make_topic(name) for name in names]

    def leader(self, *_: Any) -> None:
        if not self.asked:
            raise LeaderNotAvailableError("t-0 has no leader at present")


def producing(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Producer:
    for method in ("topic", "fetch_topics", "leader"):
        monkeypatch.setattr(Cluster, method, getattr(brokers, method))
    monkeypatch.setattr(Cluster, "address_of", lambda *_: None)
    monkeypatch.setattr(broker_sender, "ProduceStream", AcknowledgingStream)
    return Producer("127.0.0.1:1", enable_idempotence=False)


@pytest.mark.parametrize("controller", [[None], [BrokerUnavailableError("away"), None]], ids=["knows", "away first"])
def test_topic_that_some_broker_does_not_know_is_not_gone(
    monkeypatch: pytest.MonkeyPatch, controller: list[PylogError | None]
) -> None:
    """W9: a broker that has not heard of a new topic yet, perhaps because ZooKeeper is out of its reach, costs no
    record."""
    with producing(Brokers(controller), monkeypatch) as producer:
        assert producer.send("t", b"x").result(LIMIT_S).offset == 0


def test_topic_that_the_controller_does_not_know_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """W9: its records fail, and need not wait for their time limit."""
    brokers = Brokers([UnknownTopicOrPartitionError("no topic 't'")])
    with producing(brokers, monkeypatch) as producer:
        future = producer.send("t", b"x")
        with pytest.raises(UnknownTopicOrPartitionError):
            future.result(LIMIT_S)
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.flush(LIMIT_S)
    assert brokers.asked == ["any", "controller"]


class LaggingBrokers(Brokers):
    """Some broker still describes the topic that had the name before, which had fewer partitions."""

    def topic(self, name: str, **_: Any) -> Topic:
        return make_topic(name, topic_id=2, partitions=2)

    def fetch_topics(self, names: list[str], *, to: str = "any", **_: Any) -> list[Topic]:
        self.asked.append(to)
        return [make_topic(name) if to == "any" else self.topic(name) for name in names]


def test_description_of_an_earlier_topic_of_the_name_fails_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """W9: whether a topic was recreated is the controller's to say."""
    brokers = LaggingBrokers([])
    with producing(brokers, monkeypatch) as producer:
        assert producer.send("t", b"x", partition=1).result(LIMIT_S).offset == 0
    assert brokers.asked == ["any", "controller"]
