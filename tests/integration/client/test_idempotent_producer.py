"""An idempotent producer against a real broker that is killed, over connections that lose its answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from broker_runtime.contract.settings import Address
from pyspark_log import Admin, Producer, errors, read
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.producer.delivery import RecordFuture
from pyspark_log.testing import LocalCluster
from tests.integration.client.lossy_proxy import LossyProxy
from tests.waiting import wait_until

LIMIT_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        yield started


@pytest.fixture
def proxy(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyProxy]:
    """The proxy between this test's clients and the broker."""
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    host, port = cluster.bootstrap_servers.split(",")[0].rsplit(":", 1)
    made = LossyProxy(lambda: (host, int(port)))
    monkeypatch.setattr(Cluster, "address_of", lambda self, broker_id: Address("127.0.0.1", made.port))
    yield made
    made.close()


class Load:
    """Sends numbered records from a thread of its own, round robin, until it is stopped."""

    def __init__(self, topic: str, **settings: object) -> None:
        self.futures: list[RecordFuture] = []
        self._acknowledged = 0
        self._topic = topic
        self._producer = Producer(linger_ms=1, batch_size="2KiB", **settings)  # type: ignore[arg-type]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def acknowledged(self) -> int:
        """How many are, without a gap."""
        while self._acknowledged < len(self.futures) and self.futures[self._acknowledged].done():
            self._acknowledged += 1
        return self._acknowledged

    def wait_for(self, more: int) -> None:
        goal = self.acknowledged + more
        wait_until(lambda: self.acknowledged >= goal, "the producer gets on", LIMIT_S)

    def finish(self) -> None:
        """Stops and waits until everything is acknowledged; raises the first delivery error."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        try:
            self._producer.flush(LIMIT_S)
        finally:
            self._producer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.futures.append(self._producer.send(self._topic, b"%d" % len(self.futures)))
            if len(self.futures) % 100 == 0:
                self._stop.wait(0.01)


def assert_exactly_once(topic: str, count: int) -> None:
    """Each record 0 … count - 1 is in ``topic`` exactly once, in order within its partition."""
    rows = read(topic, columns=["partition", "offset", "value"]).read_all().sort_by("offset")
    values = rows["value"].cast(pa.string()).cast(pa.int64())
    doubled = {value: n for value, n in Counter(values.to_pylist()).items() if n > 1}
    assert doubled == {}
    assert sorted(values.to_pylist()) == list(range(count))
    for partition in set(rows["partition"].to_pylist()):
        own = [
            value
            for at, value in zip(rows["partition"].to_pylist(), values.to_pylist(), strict=True)
            if at == partition
        ]
        assert own == sorted(own)


def test_every_record_is_there_once_though_acknowledgements_get_lost(cluster: LocalCluster, proxy: LossyProxy) -> None:
    """W9: a frame that is appended, loses its answer and is sent again is in the log once and in order."""
    with Admin() as admin:
        admin.create_topic("lost-answers", partitions=3)
    load = Load("lost-answers")
    lost = 0
    for _ in range(25):
        load.wait_for(100)
        lost += proxy.lose_answers()
    load.finish()
    assert lost >= 10
    assert_exactly_once("lost-answers", len(load.futures))
    assert [future.result(0).offset for future in load.futures if future.result(0).partition == 0] == list(
        range(sum(future.result(0).partition == 0 for future in load.futures))
    )


def test_every_record_is_there_once_though_the_broker_is_killed(cluster: LocalCluster, proxy: LossyProxy) -> None:
    """W9: after kill -9 with five frames in flight and their answers lost, the log recovers what it knew of the
    producer.
    """
    with Admin() as admin:
        admin.create_topic("killed-once", partitions=2, config={"segment.bytes": "64KiB"})
    load = Load("killed-once")
    for kill in range(4):
        load.wait_for(500)
        if kill % 2:
            proxy.lose_answers()
        cluster.kill(1)
        cluster.start(1)
        load.wait_for(100)
        proxy.lose_answers()
    load.finish()
    assert_exactly_once("killed-once", len(load.futures))


def test_producer_continues_after_a_clean_stop_of_the_broker(cluster: LocalCluster, proxy: LossyProxy) -> None:
    """W9: a clean stop leaves a snapshot of the producers' state."""
    with Admin() as admin:
        admin.create_topic("stopped")
    load = Load("stopped")
    for _ in range(2):
        load.wait_for(300)
        cluster.stop(1)
        cluster.start(1)
    load.finish()
    assert_exactly_once("stopped", len(load.futures))


def test_frames_behind_a_refused_one_are_there_once_and_in_order(cluster: LocalCluster, proxy: LossyProxy) -> None:
    """W9: one frame fails for good, and the others in flight continue with sequence numbers of a new epoch."""
    with Admin() as admin, Producer() as producer:
        admin.create_topic("refused")
        producer.send("refused", b"-1").result(20)
        admin.alter_config("refused", {"max.message.bytes": "16KiB"})
        futures = {}
        for n in range(60):  # one frame each; the first ones are sent before the producer knows of the smaller limit
            value = b"%d" % n if n % 10 else b"%20000d" % n
            try:
                futures[n] = producer.send_batch("refused", pa.table({"value": [value]}))
            except errors.RecordTooLargeError:
                continue
        failed = {n for n, future in futures.items() if future.exception(20) is not None}
        assert failed
        assert all(n % 10 == 0 for n in failed)
        with pytest.raises(errors.RecordTooLargeError):
            producer.flush(20)
    values = [int(value) for value in read("refused").read_all()["value"].to_pylist()]
    assert values == [-1, *(n for n in futures if n not in failed)]
