"""A leader freezes: its process is stopped, its connections stay open."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from broker_runtime.contract.errors import RetriableError
from broker_runtime.contract.fetch_exchange import FetchExchange
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchPartition, FetchRequest
from pyspark_log import Admin, Consumer, Producer
from pyspark_log.testing import LocalCluster
from tests.waiting import take

pytestmark = pytest.mark.usefixtures("real_brokers")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers with short sessions; each test leaves all of them running."""
    with LocalCluster(brokers=3, settings={"zookeeper.session.timeout.ms": "4000"}) as made:
        yield made


def test_producer_continues_with_the_next_leader_when_the_last_one_is_silent(cluster: LocalCluster) -> None:
    """W12: frames that the silent leader did not acknowledge go to the next leader as soon as it is elected,
    whatever `request.timeout.ms` is, and none is in the log twice.
    """
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, linger_ms=0, request_timeout_ms=600_000) as producer,
    ):
        leader = admin.create_topic("produced", replication_factor=3).partitions[0].leader
        assert leader is not None
        assert producer.send("produced", b"0").result(30).offset == 0
        cluster.pause(leader)
        try:
            futures = [producer.send("produced", b"%d" % number) for number in range(1, 10)]
            assert [future.result(60).offset for future in futures] == list(range(1, 10))
        finally:
            cluster.resume(leader)
        cluster.wait_until_ready()


def test_consumer_continues_with_the_next_leader_when_the_last_one_is_silent(cluster: LocalCluster) -> None:
    """W16: the consumer finds the next leader by asking other brokers; nothing is skipped or read twice."""
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, linger_ms=0) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        leader = admin.create_topic("consumed", replication_factor=3).partitions[0].leader
        assert leader is not None
        producer.send("consumed", b"0").result(30)
        consumer.subscribe("consumed")
        read = [record.value for record in consumer.poll(timeout=30)]
        cluster.pause(leader)
        try:
            futures = [producer.send("consumed", b"%d" % number) for number in range(1, 10)]
            for future in futures:
                future.result(60)
            read += [record.value for record in take(consumer, 10 - len(read))]
        finally:
            cluster.resume(leader)
    assert read == [b"%d" % number for number in range(10)]


def test_leader_that_continues_tells_no_reader_that_its_offset_does_not_exist(cluster: LocalCluster) -> None:
    """W20: until it learns that another leads it has less than others have read, and they would begin again."""
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, linger_ms=0) as producer,
    ):
        created = admin.create_topic("resumed", replication_factor=3)
        former = created.partitions[0]
        assert former.leader is not None
        broker = admin.describe_cluster().brokers[former.leader]
        producer.send("resumed", b"0").result(30)
        exchange = FetchExchange(Address(broker.host, broker.port), FetchHello(client_id="late"))
        wanted = FetchPartition(
            topic="resumed",
            partition=0,
            topic_id=created.topic_id.bytes,
            offset=1,
            leader_epoch=former.leader_epoch,
        )
        exchange.fetch(FetchRequest(request_id=1, partitions=(wanted,), max_wait_ms=0))
        cluster.pause(former.leader)
        try:
            last = [producer.send("resumed", b"%d" % number).result(60).offset for number in range(1, 10)][-1]
            beyond = msgspec.structs.replace(wanted, offset=last + 1)
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(exchange.fetch, FetchRequest(request_id=2, partitions=(beyond,), max_wait_ms=0))
                with pytest.raises(TimeoutError):
                    answer.result(0.5)  # it has been sent by then
                cluster.resume(former.leader)
                error = answer.result(30).response.partitions[0].error
        finally:
            cluster.resume(former.leader)
            exchange.close()
        assert error is not None
        assert isinstance(error_of(error), RetriableError), error
    cluster.wait_until_ready()
