"""What clients count, as Prometheus gets it, and that those without a registry count nothing."""

from __future__ import annotations

import gc
import logging
import os
import queue
import subprocess
import sys
import weakref
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, Gauge

from broker_runtime.contract.errors import (
    InvalidConfigError,
    LogStorageError,
    NetworkError,
    RecordTooLargeError,
    StaleMemberEpochError,
)
from broker_runtime.contract.fetch_exchange import Fetched
from broker_runtime.contract.frame import STAMP_BYTES, encode_frame, stamp
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import UNTYPED
from broker_runtime.contract.streams import FetchedPartition, FetchResponse, ProduceRequest, ProduceResponse
from broker_runtime.contract.waiting import Clock, Deadline
from pyspark_log import Consumer, Producer
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.meters import (
    NO_CONSUMER_METERS,
    NO_PRODUCER_METERS,
    ConsumerMeters,
    ProducerMeters,
)
from pyspark_log.client.metrics import counts
from pyspark_log.client.metrics.counts import ConsumerCounts, ProducerCounts
from pyspark_log.client.metrics.table import METRICS
from pyspark_log.client.producer import broker_sender
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue, ProducerBatch
from pyspark_log.client.throttling import StreamThrottle
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic

LIMIT_S = 20.0


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """By the series' name without `pylog_` and the values of its labels, in their order; no buckets."""
    return {
        (sample.name.removeprefix("pylog_"), *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def test_every_metric_is_counted_by_something(registry: CollectorRegistry) -> None:
    """No series stays at nothing for ever, and nothing is counted that is not in the table."""
    producer, consumer = ProducerCounts(registry, "a"), ConsumerCounts(registry, "b")
    producer.acknowledged("t", records=3, size_bytes=300, began_s=0.0)
    producer.failed("t", RecordTooLargeError("large"), 2)
    producer.retried("t", 4)
    producer.throttled(0.5)
    producer.watch(lambda: 77)
    consumer.polled()
    with consumer.fetching():
        pass
    consumer.decoded("t", ["abc", "de"], 500)
    consumer.throttled(1.5)
    consumer.rebalanced()
    with pytest.raises(StaleMemberEpochError), consumer.committing():
        raise StaleMemberEpochError("stale")
    consumer.watch(lambda: 9)
    found = samples(registry)
    assert found.pop(("producer_acknowledgement_seconds_sum", "a")) > 0
    assert found.pop(("consumer_fetch_seconds_sum", "b")) >= 0
    assert found.pop(("consumer_commit_seconds_sum", "b")) >= 0
    assert found == {
        ("producer_records_total", "a", "t"): 3,
        ("producer_bytes_total", "a", "t"): 300,
        ("producer_batches_total", "a", "t"): 1,
        ("producer_acknowledgement_seconds_count", "a"): 1,
        ("producer_record_errors_total", "a", "t", "MESSAGE_TOO_LARGE"): 2,
        ("producer_record_retries_total", "a", "t"): 4,
        ("producer_buffer_bytes", "a"): 77,
        ("producer_throttle_seconds_total", "a"): 0.5,
        ("consumer_records_total", "b", "t"): 5,
        ("consumer_bytes_total", "b", "t"): 500,
        ("consumer_fetch_seconds_count", "b"): 1,
        ("consumer_max_lag_records", "b"): 9,
        ("consumer_polls_total", "b"): 1,
        ("consumer_rebalances_total", "b"): 1,
        ("consumer_commit_seconds_count", "b"): 1,
        ("consumer_commit_errors_total", "b", "STALE_MEMBER_EPOCH"): 1,
        ("consumer_throttle_seconds_total", "b"): 1.5,
    }
    counted = {each.series + ("_count" if each.kind == "histogram" else "") for each in METRICS.values()}
    assert {f"pylog_{name}" for name, *_ in found} == counted


@pytest.mark.parametrize(("seam", "counts"), [(ProducerMeters, ProducerCounts), (ConsumerMeters, ConsumerCounts)])
def test_who_counts_does_so_for_all_that_is_noted(seam: type, counts: type) -> None:
    """Nothing that a client notes is left out by those that count."""
    assert {name for name in vars(seam) if name[0] != "_"} == {name for name in vars(counts) if name[0] != "_"}


def test_clients_share_a_registry(registry: CollectorRegistry) -> None:
    """Each has series of its own; of those with one name counts add up, and the largest lag counts."""
    for client_id, size in (("a", 1), ("a", 10), ("b", 100)):
        ProducerCounts(registry, client_id).acknowledged("t", records=size, size_bytes=0, began_s=0.0)
    producers = [ProducerCounts(registry, client_id) for client_id in ("a", "a", "b")]
    consumers = [ConsumerCounts(registry, client_id) for client_id in ("a", "a", "b", "c")]
    for producer, size in zip(producers, (3, 4, 5), strict=True):
        producer.watch(lambda size=size: size)
    for consumer, lag in zip(consumers, (30, 40, 50, None), strict=True):
        consumer.watch(lambda lag=lag: lag)
    found = samples(registry)
    assert {at[1]: value for at, value in found.items() if at[0] == "producer_records_total"} == {"a": 11, "b": 100}
    assert {at[1]: value for at, value in found.items() if at[0] == "producer_buffer_bytes"} == {"a": 7, "b": 5}
    lags = {at[1]: value for at, value in found.items() if at[0] == "consumer_max_lag_records"}
    assert lags == {"a": 40, "b": 50}, "what is not known is no series"


def test_client_that_is_closed_or_gone_says_nothing_of_now(registry: CollectorRegistry) -> None:
    """Its counts stay: what it did since the last scrape is not lost."""
    closed, gone = ProducerCounts(registry, "closed"), ProducerCounts(registry, "gone")
    consumer = ConsumerCounts(registry, "consumer")
    for producer in (closed, gone):
        producer.acknowledged("t", records=1, size_bytes=1, began_s=0.0)
        producer.watch(lambda: 5)
    consumer.watch(lambda: 6)
    assert samples(registry)["producer_buffer_bytes", "gone"] == 5
    closed.closed()
    consumer.closed()
    del gone, producer
    gc.collect()
    found = samples(registry)
    assert [at for at in found if at[0] in {"producer_buffer_bytes", "consumer_max_lag_records"}] == []
    assert found["producer_records_total", "closed", "t"] == found["producer_records_total", "gone", "t"] == 1


def test_registry_that_nobody_uses_is_freed() -> None:
    """A program that makes a registry for each client, as tests do, keeps none of them."""
    registry = CollectorRegistry()
    producer = ProducerCounts(registry, "a")
    is_alive = weakref.ref(registry)
    del registry
    gc.collect()
    assert is_alive() is not None, "the producer counts into it"
    del producer
    gc.collect()
    assert is_alive() is None


@pytest.mark.parametrize("client", [Producer, Consumer])
def test_what_is_no_registry_is_refused(client: Any) -> None:
    """Before anything is connected, with what would be right."""
    with pytest.raises(InvalidConfigError, match="metrics='yes': must be a CollectorRegistry of prometheus_client"):
        client(bootstrap_servers="127.0.0.1:1", metrics="yes")


def test_client_without_registry_needs_no_prometheus_client() -> None:
    """Nothing is paid for what is not asked for."""
    code = (
        "import sys; from pyspark_log import Producer, Consumer; Producer('127.0.0.1:1').close();"
        "Consumer(bootstrap_servers='127.0.0.1:1').close(); print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


class AnsweringStream:
    """A produce stream to a broker that appends every frame, over a quota from the second answer on."""

    address = "h:1"
    silent_for_s = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.answers: queue.Queue[ProduceResponse | None] = queue.Queue()
        self.size_bytes: list[int] = []

    def write(self, request: ProduceRequest, frame: Any) -> None:
        throttle_ms = 3_600_000 if self.size_bytes else 0
        self.size_bytes.append(frame.size)
        streams.append(self)
        self.answers.put(ProduceResponse(request_id=request.request_id, base_offset=0, throttle_ms=throttle_ms))

    def read(self) -> ProduceResponse | None:
        return self.answers.get(timeout=LIMIT_S)

    def end(self) -> None:
        self.answers.put(None)

    def close(self) -> None:
        self.end()


streams: list[AnsweringStream] = []


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers send to an `AnsweringStream`."""
    streams.clear()
    monkeypatch.setattr(Cluster, "topic", lambda self, topic, **_: make_topic(topic))
    monkeypatch.setattr(Cluster, "fetch_topics", lambda self, topics, **_: [make_topic(topic) for topic in topics])
    monkeypatch.setattr(Cluster, "leader", lambda *_: None)
    monkeypatch.setattr(Cluster, "address_of", lambda *_: None)
    monkeypatch.setattr(broker_sender, "ProduceStream", AnsweringStream)


@pytest.mark.usefixtures("answering")
def test_producer_counts_what_it_sent(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """What is acknowledged is counted before the caller learns of it; a wait that answers tell of is logged once."""
    caplog.set_level(logging.INFO, "pyspark_log")
    with Producer(
        "127.0.0.1:1", client_id="me", metrics=registry, enable_idempotence=False, linger_ms=60_000
    ) as producer:
        first = producer.send("t", b"x" * 100)
        assert samples(registry)["producer_buffer_bytes", "me"] >= 100
        first.result(LIMIT_S)
        assert samples(registry)["producer_records_total", "me", "t"] == 1
        for _ in range(2):
            for _ in range(500):
                producer.send("t", b"x")
            producer.flush(LIMIT_S)
        found = samples(registry)
        assert found["producer_buffer_bytes", "me"] == 0
    assert found["producer_records_total", "me", "t"] == 1001
    assert found["producer_batches_total", "me", "t"] == found["producer_acknowledgement_seconds_count", "me"] == 3
    assert found["producer_bytes_total", "me", "t"] == sum(streams[0].size_bytes)
    assert 3_600 <= found["producer_throttle_seconds_total", "me"] < 3_700
    lines = [record.getMessage() for record in caplog.records if "throttle" in record.getMessage()]
    assert lines == ["throttle stream kind=produce broker=1 client_id=me throttle_ms=3600000"]
    assert ("producer_buffer_bytes", "me") not in samples(registry)


class Calls:
    """Stands for meters, and remembers what was called."""

    def __init__(self, seam: Any) -> None:
        self.names: list[str] = []
        self._seam = seam

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        return getattr(self._seam, name)


@pytest.mark.usefixtures("answering")
def test_producer_notes_batches_and_not_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for a thousand records."""
    calls = Calls(NO_PRODUCER_METERS)
    monkeypatch.setattr("pyspark_log.client.producer.producer._meters_of", lambda *_: calls)
    with Producer("127.0.0.1:1", enable_idempotence=False, linger_ms=60_000) as producer:
        for _ in range(1_000):
            producer.send("t", b"x")
        producer.flush(LIMIT_S)
    assert calls.names == ["watch", "throttled", "acknowledged", "closed"]


def fetched(parts: Parts, *values: bytes, behind: int = 0, damage: bytes = b"") -> int:
    """The leader of t-0 answers with a frame of these values, and has ``behind`` more; returns the bytes it sent."""
    frame = encode_frame(pa.record_batch({"value": pa.array(values, pa.binary())}), UNTYPED, timestamps=0).to_pybytes()
    at = parts.state(TopicPartition("t", 0))
    head = stamp(
        frame,
        base_offset=0,
        leader_epoch=0,
        append_time_ms=0,
        high_watermark=0,
        topic_id=at.topic.topic_id,
        partition=0,
    )
    sent = pa.py_buffer(head + frame[STAMP_BYTES:] + damage)
    with parts.fetcher.condition:
        _, asked, _ = parts.fetcher.wanted(1, 0)
    end = len(values) + behind
    answer = FetchedPartition(
        topic="t", partition=0, row=0, next_offset=len(values), high_watermark=end, last_stable_offset=end
    )
    parts.fetcher.answered(1, Fetched(FetchResponse(request_id=0, partitions=(answer,)), [sent]), asked)
    return int(sent.size)


def subscribed(meters: Any, **settings: Any) -> Parts:
    parts = Parts(MemoryCluster(make_topic("t")), meters=meters, auto_offset_reset="earliest", **settings)
    parts.subscribe("t")
    return parts


def test_consumer_notes_frames_and_not_records() -> None:
    """One call for a thousand records, however they are polled."""
    calls = Calls(NO_CONSUMER_METERS)
    parts = subscribed(calls)
    fetched(parts, *[b"x"] * 1_000)
    polled = 0
    while polled < 1_000:
        polled += len(parts.delivery.poll_records(Deadline(0.0), 10))
    assert calls.names == ["decoded"]


def test_consumer_counts_what_it_read(registry: CollectorRegistry) -> None:
    """Records, bytes, and how far it is behind: in the last answer, less what was delivered since."""
    parts = subscribed(ConsumerCounts(registry, "me"))
    meters = parts.fetcher.meters
    meters.watch(parts.fetcher.max_lag_records)
    assert ("consumer_max_lag_records", "me") not in samples(registry), "no leader has said where its log ends"
    size = fetched(parts, *[b"x"] * 10, behind=5)
    assert samples(registry)["consumer_max_lag_records", "me"] == 15
    assert len(parts.delivery.poll_records(Deadline(0.0), 4)) == 4
    found = samples(registry)
    assert found["consumer_max_lag_records", "me"] == 11
    assert (found["consumer_records_total", "me", "t"], found["consumer_bytes_total", "me", "t"]) == (10, size)


def test_records_before_damage_are_counted(registry: CollectorRegistry) -> None:
    """They are delivered, so they count."""
    parts = subscribed(ConsumerCounts(registry, "me"))
    size = fetched(parts, b"a", b"b", damage=b"?" * 200)
    assert len(parts.delivery.poll_records(Deadline(0.0), 4)) == 2
    found = samples(registry)
    assert (found["consumer_records_total", "me", "t"], found["consumer_bytes_total", "me", "t"]) == (2, size)


def test_member_counts_its_shares_and_its_commits(registry: CollectorRegistry) -> None:
    """Every share that it is given, and every commit, with the code of its refusal."""
    parts = subscribed(ConsumerCounts(registry, "me"), group_id="g")
    assert samples(registry)["consumer_rebalances_total", "me"] == 1
    before = samples(registry)["consumer_commit_seconds_count", "me"]  # where the group begins
    at = TopicPartition("t", 0)
    parts.committer.commit({at: 1})
    parts.cluster.refused_commits = [StaleMemberEpochError("given to others")]
    with pytest.raises(StaleMemberEpochError):
        parts.committer.commit({at: 2})
    found = samples(registry)
    assert found["consumer_commit_seconds_count", "me"] == before + 2
    assert found["consumer_commit_errors_total", "me", "STALE_MEMBER_EPOCH"] == 1
    parts.cluster.group.share = set()
    parts.beat(2.0)
    parts.assignment.apply_changes()
    assert samples(registry)["consumer_rebalances_total", "me"] == 2


def test_fetch_without_an_answer_is_not_timed(registry: CollectorRegistry) -> None:
    """How long a broker takes says nothing of one that is gone."""
    counts = ConsumerCounts(registry, "me")
    with pytest.raises(NetworkError), counts.fetching():
        raise NetworkError("gone")
    assert samples(registry)["consumer_fetch_seconds_count", "me"] == 0


def sent_batch(registry: CollectorRegistry) -> tuple[Accumulator, ProducerBatch]:
    """A batch of two records in flight."""
    counts = ProducerCounts(registry, "me")
    accumulator = Accumulator(
        buffer_bytes=1 << 20, linger_s=0.0, max_block_s=0.0, delivery_timeout_s=100.0, meters=counts
    )
    queue = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    delivery.count = 2
    frame = encode_frame(pa.record_batch({"value": pa.array([b"a", b"b"])}), UNTYPED, timestamps=0)
    with accumulator.lock:
        accumulator.set_leader(queue, 1, 0)
    accumulator.add_frame(queue, delivery, frame)
    with accumulator.lock:
        batch, _ = accumulator.take(1, now_s=0.0)
    assert batch is not None
    return accumulator, batch


def test_batches_that_come_back_are_counted_if_they_were_sent(registry: CollectorRegistry) -> None:
    """One that was taken while the stream broke was never sent, so it is not sent again either."""
    accumulator, batch = sent_batch(registry)
    accumulator.retry([batch])
    assert ("producer_record_retries_total", "me", "t") not in samples(registry)
    with accumulator.lock:
        batch, _ = accumulator.take(1, now_s=1e12)  # type: ignore[assignment]
    accumulator.retry([batch], NetworkError("broken"), is_doubtful=True)
    assert samples(registry)["producer_record_retries_total", "me", "t"] == 2


def test_records_that_fail_are_counted_once(registry: CollectorRegistry) -> None:
    """By the code of what failed them, and not as sent."""
    accumulator, batch = sent_batch(registry)
    accumulator.failed(batch, LogStorageError("no space"))
    accumulator.abandon_all(NetworkError("closed"))
    accumulator.acknowledged(batch, base_offset=0, append_time_ms=-1)  # late
    errors = {at: value for at, value in samples(registry).items() if at[0] == "producer_record_errors_total"}
    assert errors == {("producer_record_errors_total", "me", "t", "KAFKA_STORAGE_ERROR"): 2}
    assert ("producer_records_total", "me", "t") not in samples(registry)


class SetClock(Clock):
    """Stands where it is set."""

    __slots__ = ("now",)

    def now_s(self) -> float:
        return self.now


def test_each_second_of_a_wait_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    """Answers that were under way when the broker began to wait tell of the same wait."""
    caplog.set_level(logging.INFO, "pyspark_log")
    clock, waits = SetClock(), []
    throttle = StreamThrottle("fetch", 3, "me", waits.append, clock=clock)
    for now, throttle_ms in ((100.0, 0), (100.0, 2_000), (100.5, 1_500), (101.0, 3_000), (200.0, 1_000)):
        clock.now = now
        throttle.note(throttle_ms)
    assert waits == [2.0, 2.0, 1.0]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["throttle stream kind=fetch broker=3 client_id=me throttle_ms=2000"]


@pytest.mark.parametrize("taken", ["pylog_consumer_polls", "pylog_producer_buffer_bytes"])
def test_registry_that_has_such_a_metric_already_is_refused_and_left_as_it_was(taken: str) -> None:
    """The error names the program's metric, also the second time, and not one of the client's own."""
    registry = CollectorRegistry()
    programs = Gauge(taken, "the program's own", registry=registry)
    for _ in range(2):
        with pytest.raises(InvalidConfigError, match=f"a metric of the same name already: .*{taken}"):
            ProducerCounts(registry, "p")
    assert [family.name for family in registry.collect()] == [taken]
    registry.unregister(programs)
    ProducerCounts(registry, "p").retried("t", 1)
    assert registry.get_sample_value("pylog_producer_record_retries_total", {"client_id": "p", "topic": "t"}) == 1


def test_child_that_is_forked_during_a_scrape_makes_clients() -> None:
    """Another thread of the parent looks for clients, which the child does not have."""
    with counts._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if counts._lock.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
