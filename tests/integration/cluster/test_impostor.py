"""Knowing a follower's public numbers is not enough to pose as that follower."""

from __future__ import annotations

import pytest
from pyarrow import flight

from broker_runtime.contract.errors import StaleBrokerEpochError
from broker_runtime.contract.fetch_exchange import FetchExchange
from broker_runtime.contract.flight import CONNECTION_OPTIONS, encode_action
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import MetadataRequest
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchPartition, FetchRequest
from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until


def end_offset(admin: Admin, topic: str) -> int:
    """The high watermark of the topic's only partition."""
    at = TopicPartition(topic, 0)
    return admin.list_offsets({at: "latest"})[at].offset


@pytest.mark.parametrize("secret", ["", "guessed" * 9])
def test_impostor_is_refused_and_the_high_watermark_stays(secret: str, cluster: LocalCluster, admin: Admin) -> None:
    """A follower's report commits records, so a leader accepts it only from a peer that proves its identity."""
    name = f"impostor-{len(secret)}"
    leader = admin.create_topic(name, partitions=1, replication_factor=2).partitions[0]
    follower = next(broker for broker in leader.replicas if broker != leader.leader)
    brokers = admin.describe_cluster().brokers
    with Producer(cluster.bootstrap_servers, acks="1") as producer:
        producer.send(name, b"held by both").result(10)
        wait_until(lambda: end_offset(admin, name) == 1, "the first record is committed")
        cluster.pause(follower)
        try:
            offset = producer.send(name, b"held by the leader alone").result(10).offset
            committed = end_offset(admin, name)
            epoch = brokers[follower].epoch
            wanted = FetchPartition(
                topic=name,
                partition=0,
                topic_id=admin.describe_topic(name).topic_id.bytes,
                offset=offset + 1,
                leader_epoch=leader.leader_epoch,
                durable_end=offset + 1,
                log_start=0,
            )
            exchange = FetchExchange(
                Address(brokers[leader.leader].host, brokers[leader.leader].port),
                FetchHello(client_id=f"impostor {secret}", replica_id=follower, broker_epoch=epoch, secret=secret),
            )
            try:
                with pytest.raises(StaleBrokerEpochError, match="does not prove"):
                    exchange.fetch(FetchRequest(request_id=1, partitions=(wanted,)))
            finally:
                exchange.close()
            assert end_offset(admin, name) == committed == offset
            log = (cluster.log_dirs(leader.leader)[0].parent / "broker.out").read_text()
            admitted = f'admit follower broker={follower} client_id="impostor {secret}" address=127.0.0.1:'
            assert log.count(admitted) == 1, "the leader's log reports it"
            assert f"open stream kind=follower broker={follower} client_id=broker-{follower} " in log
        finally:
            cluster.resume(follower)
    cluster.wait_until_ready()
    answer = flight.connect(f"grpc://{cluster.bootstrap_servers.split(',')[0]}", generic_options=CONNECTION_OPTIONS)
    bodies = [bytes(each.body) for each in answer.do_action(encode_action("metadata", MetadataRequest(topics=())))]
    assert b"secret" not in b"".join(bodies)
