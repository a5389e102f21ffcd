"""A broker dies or freezes under a producer and a consumer. Each test has a cluster of its own."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors, read
from pyspark_log.client.producer.delivery import RecordFuture
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        yield started


@pytest.fixture(autouse=True)
def _find_it(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)


def test_clients_notice_a_killed_broker_only_as_delay(cluster: LocalCluster) -> None:
    """W9, W19: after two kill -9 under load every acknowledged record is there in order, and the consumer gets all
    of them.
    """
    with Admin() as admin:
        admin.create_topic("killed", partitions=2)
    acknowledged: list[tuple[int, int, int]] = []
    consumed: list[tuple[int, int, int]] = []
    stop = threading.Event()

    def run_producer() -> None:
        with Producer(linger_ms=1) as producer:
            n = 0
            while not stop.is_set():
                futures = [(i, producer.send("killed", b"%d" % i)) for i in range(n, n + 50)]
                n += 50
                for i, future in futures:
                    metadata = future.result(60)
                    acknowledged.append((metadata.partition, metadata.offset, i))

    def run_consumer() -> None:
        with Consumer("killed", auto_offset_reset="earliest") as consumer:
            ends: dict[TopicPartition, int] = {}
            while not stop.is_set() or not ends or any(consumer.position(at) < end for at, end in ends.items()):
                consumed.extend((r.partition, r.offset, int(r.value)) for r in consumer.poll(0.2))
                if done.is_set():
                    ends = ends or consumer.end_offsets(list(consumer.assignment()))

    done = threading.Event()
    threads = [threading.Thread(target=run_producer), threading.Thread(target=run_consumer)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        before = len(acknowledged)
        wait_until(lambda before=before: len(acknowledged) > before + 500, "the producer gets on")
        cluster.kill(1)
        cluster.start(1)
    before = len(acknowledged)
    wait_until(lambda: len(acknowledged) > before + 500, "the producer gets on")
    stop.set()
    threads[0].join(60)
    done.set()
    threads[1].join(60)
    assert not any(thread.is_alive() for thread in threads)
    log = {
        (row["partition"], row["offset"]): int(row["value"])
        for row in read("killed", columns=["partition", "offset", "value"]).read_all().to_pylist()
    }
    assert all(log[partition, offset] == i for partition, offset, i in acknowledged)
    assert {(partition, offset): i for partition, offset, i in consumed} == log
    assert len(consumed) == len(log)


def test_clients_continue_after_a_broker_was_frozen(cluster: LocalCluster) -> None:
    """W19: after SIGSTOP for longer than the silence limit the clients' calls end in time and the clients continue."""
    with Admin(request_timeout_ms=2_000) as admin, Producer() as producer, Consumer() as consumer:
        admin.create_topic("still")
        at = TopicPartition("still", 0)
        consumer.assign([at])
        producer.send("still", b"before").result(20)
        assert [r.value for r in consumer.poll(20)] == [b"before"]
        cluster.pause(1)
        try:
            future = producer.send("still", b"during")
            began_s = time.monotonic()
            with pytest.raises(errors.RequestTimedOutError):
                admin.describe_topic("still")
            with pytest.raises(TimeoutError):
                future.result(9.5)
            assert consumer.poll(0.1) == []
            assert time.monotonic() - began_s < 20
        finally:
            cluster.resume(1)
        assert future.result(30).offset >= 1
        values = set()
        wait_until(
            lambda: values.update(r.value for r in consumer.poll(1)) or b"during" in values, "it is read", 30, pause_s=0
        )


def test_producer_bounds_memory_and_time_while_the_broker_is_away(cluster: LocalCluster) -> None:
    """W9: a full buffer blocks, then fails by name; records not acknowledged in time fail by name, too."""
    with Admin() as admin:
        admin.create_topic("away")
    producer = Producer(buffer_memory="64KiB", max_block_ms=1_000, delivery_timeout_ms=4_000, linger_ms=0)
    producer.send("away", b"x").result(20)
    cluster.kill(1)
    try:
        futures: list[RecordFuture] = []
        with pytest.raises(errors.BufferExhaustedError, match=r"buffer\.memory=65536"):
            futures.extend(producer.send("away", b"x" * 1000) for _ in itertools.count())
        assert 20 < len(futures) < 66
        with pytest.raises(errors.DeliveryTimeoutError, match=r"away-0.* 4 s"):
            futures[0].result(20)
        with pytest.raises(errors.DeliveryTimeoutError):
            producer.flush(20)
    finally:
        cluster.start(1)
    assert _offset_in_the_end(producer, "away") >= 1
    producer.close()


def _offset_in_the_end(producer: Producer, topic: str) -> int:
    """The offset of a record that is sent until one is acknowledged: a newly started broker may take longer than the
    delivery timeout.
    """
    deadline_s = time.monotonic() + 30
    while True:
        try:
            return producer.send(topic, b"back").result(30).offset
        except errors.DeliveryTimeoutError:
            if time.monotonic() > deadline_s:
                raise
            with suppress(errors.DeliveryTimeoutError):
                producer.flush(30)  # its error was raised already: `close` need not repeat it


def test_producer_close_fails_what_it_cannot_deliver(cluster: LocalCluster) -> None:
    """W9: closing while the broker is away ends in the given time and settles every record's future."""
    with Admin() as admin:
        admin.create_topic("closed")
    producer = Producer()
    producer.send("closed", b"x").result(20)
    cluster.kill(1)
    try:
        future = producer.send("closed", b"y")
        with pytest.raises(errors.ClientTimeoutError):
            producer.close(timeout=0.5)
        assert isinstance(future.exception(0), errors.ClosedError)
    finally:
        cluster.start(1)
