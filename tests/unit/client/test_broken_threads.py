"""Client threads that meet a defect: the caller gets the error and never waits for a dead thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import GroupHeartbeatResponse
from broker_runtime.contract.security import UNPROTECTED
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceRequest, ProduceResponse
from pyspark_log import Producer
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.assignment import REFRESH_S
from pyspark_log.client.consumer.background import Background
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.group_assignment import IDLE_REFRESH_S
from pyspark_log.client.consumer.heartbeats import Heartbeats
from pyspark_log.client.consumer.membership import Phase, Stay
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.producer import broker_sender
from pyspark_log.client.producer.broker_sender import BrokerSender
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic

LIMIT_S = 20.0


class Addresses:
    """What a fetching thread asks before it opens a session: raises a defect first, then names a broker that is
    away.
    """

    client_id = "test"

    def __init__(self) -> None:
        self.asked = 0

    def address_of(self, broker_id: int) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise ZeroDivisionError("a defect")
        raise BrokerUnavailableError("broker 1 is not in the cluster at present")


def wait_for(condition: threading.Condition, what: Callable[[], bool]) -> None:
    with condition:
        assert condition.wait_for(what, LIMIT_S)


def test_broken_fetching_thread_is_reported_and_restarted() -> None:
    """W16: a consumer must not stay silent because its thread died."""
    addresses: Any = Addresses()
    fetcher = Fetcher(addresses, max_bytes=1 << 20, max_wait_ms=500, on_stale=lambda: None)
    state = PartitionState(make_topic("t"), 0, 7, None)
    fetcher.set_assignment([state])
    try:
        fetcher.start_threads()
        wait_for(fetcher.condition, lambda: fetcher._defect is not None)
        with fetcher.condition, pytest.raises(ZeroDivisionError, match="a defect"):
            fetcher.raise_defect()
        with fetcher.condition:
            fetcher.raise_defect()
        fetcher.start_threads()
        wait_for(fetcher.condition, lambda: addresses.asked >= 3)  # the broker that is away is asked again
        assert (state.fetch_offset, state.error) == (7, None)
    finally:
        fetcher.stop()


class Metadata:
    """What a background thread asks about an assignment, and a fetcher without sessions to watch."""

    metadata_interval_s = REFRESH_S

    def __init__(self, fetch: Callable[[], list[Topic]]) -> None:
        self.fetch_metadata = fetch
        self.taken: list[list[Topic] | PylogError] = []

    def take_metadata(self, topics: list[Topic] | PylogError) -> None:
        self.taken.append(topics)

    def watch(self) -> None:
        return


def background(
    parts: Parts, metadata: Metadata, on_defect: Callable[[BaseException], object] = lambda _: None
) -> Background:
    anything: Any = metadata
    return Background(
        committer=parts.committer, assignment=anything, fetcher=anything, on_defect=on_defect, auto_commit_s=60.0
    )


def test_fetcher_does_not_wait_for_a_session_that_opens_while_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer closes at once: nobody could cancel a request of a session that is still being opened."""
    opening, requests = threading.Event(), []

    class Session:
        is_cancelled = False

        def __init__(self, *_: Any, **__: Any) -> None:
            opening.set()
            assert fetcher._threads[1].worker.rest(LIMIT_S), "it is not stopped"

        def fetch(self, request: Any) -> Any:
            requests.append(request)
            raise ClosedError("closed")

        def close(self) -> None:
            return

    class Known:
        client_id = "test"
        access = UNPROTECTED

        def address_of(self, broker_id: int) -> Address:
            return Address("b", broker_id)

    monkeypatch.setattr("pyspark_log.client.consumer.fetcher.FetchExchange", Session)
    cluster: Any = Known()
    fetcher = Fetcher(cluster, max_bytes=1 << 20, max_wait_ms=500, on_stale=lambda: None)
    fetcher.set_assignment([PartitionState(make_topic("t"), 0, 7, None)])
    fetcher.start_threads()
    assert opening.wait(LIMIT_S)
    fetcher.stop()
    assert requests == []
    with fetcher.condition:
        fetcher.raise_defect()


def test_broken_background_thread_is_reported_and_fails_no_commit_silently() -> None:
    """W18: without its thread nothing would be committed any more."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g", auto_offset_reset="earliest")
    raised: list[BaseException] = []
    ended = threading.Event()

    def fetch() -> list[Topic]:
        raise ZeroDivisionError("a defect")

    def defect(error: BaseException) -> None:
        raised.append(error)
        ended.set()

    metadata = Metadata(fetch)
    first = background(parts, metadata, defect)
    first.request_metadata()
    assert ended.wait(LIMIT_S)
    first.stop()
    assert not first.is_running
    assert [type(error) for error in raised] == [ZeroDivisionError]
    commit = parts.committer.commit_async({TopicPartition("t", 0): 1})
    second = background(parts, metadata, defect)
    second.wake()
    assert commit.result(LIMIT_S) is None
    second.stop()
    assert metadata.taken == []


def test_background_thread_writes_waiting_commits_before_it_ends() -> None:
    """W18: closing the consumer loses no background commit."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g", auto_offset_reset="earliest")
    entered = threading.Event()

    def fetch() -> list[Topic]:
        entered.set()
        assert thread._worker.rest(LIMIT_S), "it is not stopped"
        return []

    thread = background(parts, Metadata(fetch))
    thread.request_metadata()
    assert entered.wait(LIMIT_S)
    commit = parts.committer.commit_async({TopicPartition("t", 0): 1})
    thread.stop()
    assert commit.done()
    assert commit.exception() is None


def test_shorter_metadata_interval_applies_at_once() -> None:
    """A waiting member that gets partitions does not wait out its long interval."""
    parts = Parts(MemoryCluster(make_topic("t")), group_id="g")
    asked = threading.Event()

    def fetch() -> list[Topic]:
        asked.set()
        return []

    metadata = Metadata(fetch)
    metadata.metadata_interval_s = IDLE_REFRESH_S
    thread = background(parts, metadata)
    try:
        assert not asked.wait(0.1)
        metadata.metadata_interval_s = 0.0
        thread.wake()
        assert asked.wait(LIMIT_S)
    finally:
        thread.stop()


def test_broken_heartbeats_are_reported_and_restarted() -> None:
    """W21: otherwise a member whose thread died would silently lose its partitions."""
    broke, answered = threading.Event(), threading.Event()

    class Coordinators:
        """Raises a defect first, then names a coordinator."""

        asked = 0

        def call(self, action: str, request: Any, *_: Any, **__: Any) -> GroupHeartbeatResponse:
            self.asked += 1
            if self.asked == 1:
                raise ZeroDivisionError("a defect")
            if request.member_epoch == 0:
                answered.set()
            return GroupHeartbeatResponse(member_epoch=0, heartbeat_interval_ms=10, session_timeout_ms=45_000)

    raised: list[BaseException] = []

    def failure(error: BaseException) -> None:
        raised.append(error)
        broke.set()

    cluster: Any = Coordinators()
    heartbeats = Heartbeats(cluster, Stay(group_id="g"), on_news=lambda: None, on_failure=failure)
    heartbeats.join(["t"])
    assert broke.wait(LIMIT_S)
    assert [type(error) for error in raised] == [ZeroDivisionError]
    heartbeats.stop()
    heartbeats.start()
    assert answered.wait(LIMIT_S)
    heartbeats.leave()
    heartbeats.stop()
    assert heartbeats.machine.phase is Phase.OUT
    assert not any(thread.name == "pylog-heartbeat" for thread in threading.enumerate())


class Defective:
    """What a producer's threads ask; one of the calls raises a defect."""

    def topic(self, name: str, **_: Any) -> Topic:
        return make_topic(name)

    def fetch_topics(self, *_: Any, **__: Any) -> list[Topic]:
        raise ZeroDivisionError("a defect")

    def address_of(self, broker_id: int) -> Any:
        raise ZeroDivisionError("a defect")


@pytest.mark.parametrize("thread", ["the producer's own", "a sender"])
def test_broken_producer_thread_fails_waiting_and_later_records(monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    """W9: `flush` raises instead of waiting forever for acknowledgements."""
    for method in ("topic", "fetch_topics", "address_of"):
        monkeypatch.setattr(Cluster, method, getattr(Defective(), method))
    if thread == "a sender":
        monkeypatch.setattr(Cluster, "leader", lambda *_: None)
    with Producer("127.0.0.1:1", enable_idempotence=False) as producer:
        future = producer.send("t", b"x")
        with pytest.raises(ClosedError, match=r"one of its threads met a defect: ZeroDivisionError\('a defect'\)"):
            producer.flush(LIMIT_S)
        assert isinstance(future.exception(0), ClosedError)
        for call in (lambda: producer.send("t", b"y"), producer.flush, lambda: producer.partitions_for("t")):
            with pytest.raises(ClosedError, match="a defect"):
                call()


class AcknowledgingStream:
    """A produce stream to a broker that appends every frame at offset 0."""

    address = "h:1"
    silent_for_s = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.answers: queue.Queue[ProduceResponse | None] = queue.Queue()

    def write(self, request: ProduceRequest, frame: Any) -> None:
        self.answers.put(ProduceResponse(request_id=request.request_id, base_offset=0))

    def read(self) -> ProduceResponse | None:
        return self.answers.get(timeout=LIMIT_S)

    def end(self) -> None:
        self.answers.put(None)

    def close(self) -> None:
        self.end()


@pytest.mark.parametrize("name", ["pylog-producer", "pylog-produce-1", "pylog-acks-1"])
def test_producer_starts_a_thread_later_when_the_system_has_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """W9: a machine that was out of threads for a moment costs neither a record nor the producer."""
    monkeypatch.setattr(Cluster, "topic", lambda self, topic, **_: make_topic(topic))
    monkeypatch.setattr(Cluster, "fetch_topics", lambda self, topics, **_: [make_topic(topic) for topic in topics])
    monkeypatch.setattr(Cluster, "leader", lambda *_: None)
    monkeypatch.setattr(Cluster, "address_of", lambda *_: None)
    monkeypatch.setattr(broker_sender, "ProduceStream", AcknowledgingStream)
    start = threading.Thread.start
    refused: list[str] = []

    def start_later(thread: threading.Thread) -> None:
        if thread.name == name and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    with Producer("127.0.0.1:1", enable_idempotence=False) as producer:
        if name == "pylog-producer":
            with pytest.raises(RuntimeError, match="can't start new thread"):
                producer.send("t", b"x")
        assert producer.send("t", b"x").result(LIMIT_S).offset == 0
    assert refused == [name]


def test_stream_that_opens_while_the_producer_is_closed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """W9: `close` does not wait for answers on a stream that was opened after it had ended the streams."""
    opening = threading.Event()
    made: list[AcknowledgingStream] = []

    class LateStream(AcknowledgingStream):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            made.append(self)
            opening.set()
            assert sender._writer.rest(LIMIT_S), "it is not stopped"

        def write(self, request: ProduceRequest, frame: Any) -> None:
            """Never answers."""

    class OneBatch:
        """What a sender asks of an accumulator with one batch."""

        lock = threading.Lock()
        wake = threading.Condition(lock)
        batches: ClassVar[list[Any]] = [
            SimpleNamespace(
                builder=None,
                frame=b"f",
                transaction=None,
                write_number=lambda: None,
                queue=SimpleNamespace(topic="t", partition=0, topic_id=None, leader_epoch=0, leader=1),
            )
        ]

        def outbox(self, broker_id: int) -> Any:
            return self

        def take(self, broker_id: int, *, now_s: float) -> tuple[Any, float]:
            return (self.batches.pop() if self.batches else None), LIMIT_S

        def is_first_in_flight(self, batch: Any) -> bool:
            return True

        def retry(self, *_: Any, **__: Any) -> None:
            return

    monkeypatch.setattr(broker_sender, "ProduceStream", LateStream)
    accumulator: Any = OneBatch()
    sender = BrokerSender(
        1,
        accumulator,
        address_of=lambda _: Address("h", 1),
        stale=lambda _: None,
        on_defect=lambda error: pytest.fail(repr(error)),
        client_id="test",
        acks=-1,
        request_timeout_ms=1000,
        codec="none",
    )
    assert sender.may_start()
    assert opening.wait(LIMIT_S)
    sender.stop()
    assert len(made) == 1
    assert not any(reader.is_running for reader in sender._readers)


def test_topic_that_goes_while_its_first_record_is_sent_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """W9: or every later record would be sent to the topic that is gone, and none to the one of its name."""
    topic_ids = iter([1, 2])
    written: list[bytes] = []

    class NotingStream(AcknowledgingStream):
        def write(self, request: ProduceRequest, frame: Any) -> None:
            written.append(request.topic_id or b"")
            super().write(request, frame)

    monkeypatch.setattr(Cluster, "topic", lambda self, topic, **_: make_topic(topic, topic_id=next(topic_ids)))
    monkeypatch.setattr(Cluster, "leader", lambda *_: None)
    monkeypatch.setattr(Cluster, "address_of", lambda *_: None)
    monkeypatch.setattr(broker_sender, "ProduceStream", NotingStream)
    with Producer("127.0.0.1:1", enable_idempotence=False) as producer:
        queues_with = producer._sender.queues_with

        def and_it_goes(topic: str, partition: int | None) -> Any:
            found = queues_with(topic, partition)
            producer._sender._forget(topic, UnknownTopicOrPartitionError("no topic 't'"))
            return found

        monkeypatch.setattr(producer._sender, "queues_with", and_it_goes)
        producer.partitions_for("t")
        monkeypatch.setattr(producer._sender, "queues_with", queues_with)
        producer.send("t", b"x").result(LIMIT_S)
    assert written == [make_topic("t", topic_id=2).topic_id]
