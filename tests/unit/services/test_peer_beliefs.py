"""Waiting until the other brokers know of a change: `PeerBeliefs`, over peers that answer from a list."""

from __future__ import annotations

from typing import Any

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError
from broker_runtime.contract.requests import MetadataResponse, TopicInfo
from broker_runtime.contract.settings import Address
from broker_runtime.following.peers import Peers
from broker_runtime.services.metadata import topic_info
from broker_runtime.services.peer_beliefs import PeerBeliefs
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import BrokerRegistration, PartitionState, TopicRecord
from tests.unit.client.channels import FakeClock


def topic(partitions: int = 1, topic_id: int = 1, **config: str) -> TopicState:
    state = PartitionState(leader=1, leader_epoch=0, isr=(1,), controller_epoch=1, leader_broker_epoch=1)
    return TopicState(
        name="t",
        record=TopicRecord(
            topic_id=topic_id.to_bytes(16, "big"),
            assignment=((1,),) * partitions,
            schemas=(),
            key=None,
            created_at_ms=0,
        ),
        version=0,
        partitions=(VersionedState(state=state, version=0),) * partitions,
        config=config,
    )


def broker(number: int) -> BrokerRegistration:
    return BrokerRegistration(
        host=f"h{number}", port=1, epoch=1, instance="i", pid=1, boot_id="", software_version="0", registered_at_ms=0
    )


class FakePeers(Peers):
    """Each host's answers, one after the other, the last again and again; None: it refuses."""

    def __init__(self) -> None:
        super().__init__(1)
        self.answers: dict[str, list[TopicInfo | Exception | None]] = {}
        self.asked: list[str] = []
        self.clock = FakeClock()

    def call(self, address: Address, *rest: object, timeout_s: float) -> Any:
        self.asked.append(address.host)
        left = self.answers[address.host]
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return MetadataResponse(
            protocol_version=1,
            software_version="",
            cluster_id="c",
            controller_id=1,
            brokers=(),
            topics=() if found is None else (found,),
        )


@pytest.fixture
def peers() -> FakePeers:
    return FakePeers()


def beliefs(peers: FakePeers, own: TopicState | None) -> PeerBeliefs:
    state = ClusterState(
        brokers={number: broker(number) for number in (1, 2, 3)}, topics={} if own is None else {"t": own}
    )
    return PeerBeliefs(peers, lambda: state, clock=peers.clock)


def test_each_other_broker_is_asked_until_it_knows_the_topic(peers: FakePeers) -> None:
    known = topic_info(topic())
    peers.answers = {"h2": [None, None, known], "h3": [known]}
    beliefs(peers, topic()).wait_until_heard("t")
    assert peers.asked == ["h2", "h2", "h2", "h3"]


@pytest.mark.parametrize(
    "old", [topic(partitions=1), topic(partitions=2, topic_id=2), topic(partitions=2, **{"retention.ms": "1d"})]
)
def test_older_state_is_not_enough(peers: FakePeers, old: TopicState) -> None:
    """These are fewer partitions, another topic of the name, and other settings."""
    new = topic(partitions=2)
    peers.answers = {"h2": [topic_info(old), topic_info(new)], "h3": [topic_info(topic(partitions=3))]}
    beliefs(peers, new).wait_until_heard("t")
    assert peers.asked == ["h2", "h2", "h3"]


def test_deleted_topic_is_waited_for_until_nobody_has_it(peers: FakePeers) -> None:
    peers.answers = {"h2": [topic_info(topic()), None], "h3": [None]}
    beliefs(peers, None).wait_until_heard("t")
    assert peers.asked == ["h2", "h2", "h3"]


def test_broker_that_does_not_answer_or_never_learns_delays_nobody_for_long(peers: FakePeers) -> None:
    """Waiting is a courtesy in bounded time, never a condition."""
    peers.answers = {"h2": [BrokerUnavailableError("dead")], "h3": [None]}
    beliefs(peers, topic()).wait_until_heard("t", limit_s=2.0)
    assert peers.asked.count("h2") == 1
    assert peers.clock.now >= 2.0
