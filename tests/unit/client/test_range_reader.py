"""Bounded reads return all of a range or raise, and neither side waits without a limit."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import BrokerUnavailableError, NetworkError, PylogError, RequestTimedOutError
from broker_runtime.contract.frame import encode_frame, parse_header, stamp
from broker_runtime.contract.predicate.frames import Step
from broker_runtime.contract.requests import PartitionInfo, TopicInfo
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.security import UNPROTECTED
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ReadRequest, ReadResponse
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading import range_reader
from pyspark_log.client.reading.frame_stream import FramesRead
from pyspark_log.client.reading.range_reader import OffsetRange, read_range, read_ranges
from tests.waiting import wait_until

INFO = PartitionInfo(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
TOPIC = Topic.from_info(TopicInfo(name="t", topic_id=bytes(16), partitions=(INFO,)))
WIDE_TOPIC = Topic.from_info(
    TopicInfo(
        name="wide",
        topic_id=bytes(16),
        partitions=tuple(
            PartitionInfo(partition=n, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for n in range(4)
        ),
    )
)
LEADER = Address("broker-one", 9192)
LIMIT_S = 20.0


class BrokenCluster:
    """What a reading thread asks; raises an unexpected error."""

    request_timeout_s = 5.0
    client_id = "test"
    access = UNPROTECTED

    def leader(self, topic: Topic, partition: int) -> Any:
        raise ZeroDivisionError


class PatientCluster:
    """A caller with a long timeout, and a reading thread with a short one."""

    client_id = "test"
    access = UNPROTECTED

    def __init__(self, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self.kept: list[Address] = []
        self.news: list[bool] = []  # whether each link was to be a new one

    @property
    def request_timeout_s(self) -> float:
        is_reader = threading.current_thread().name.startswith("pylog-read-")
        return 0.02 if is_reader else self._request_timeout_s

    def leader(self, topic: Topic, partition: int) -> tuple[Address, int]:
        return LEADER, 0

    def read_link(self, address: Address, *, is_new: bool = False) -> Address:
        """What the fakes of `FrameStream` take for a link."""
        self.news.append(is_new)
        return address

    def keep_link(self, link: Address) -> None:
        self.kept.append(link)

    def topic(self, name: str, *, max_age: Topic | None = None) -> Topic:
        return TOPIC


def test_read_range_whose_thread_broke_raises_and_never_ends_early() -> None:
    """S7: `read` and Spark's tasks never take a part of the range for all of it."""
    cluster: Any = BrokenCluster()
    with pytest.raises(NetworkError, match="t-0: reading stopped at offset 0, before 10"):
        list(read_range(cluster, TOPIC, 0, 0, 10))


def test_read_range_from_a_silent_broker_names_the_broker_and_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait has a limit, also on a stream that a broker leaves half open."""
    released = threading.Event()

    class Stuck:
        def __init__(self, link: Address, request: ReadRequest, **_: object) -> None:
            released.wait(LIMIT_S)
            raise NetworkError("released")

    monkeypatch.setattr(range_reader, "FrameStream", Stuck)
    monkeypatch.setattr(range_reader, "_JOIN_LIMIT_S", 0.0)
    cluster: Any = PatientCluster(0.05)
    try:
        with pytest.raises(
            RequestTimedOutError, match=r"t-0: the leader \(broker-one:9192\) sent nothing from offset 3 on"
        ):
            list(read_range(cluster, TOPIC, 0, 3, 10))
    finally:
        released.set()


@pytest.mark.parametrize("is_advancing", [True, False])
def test_long_search_is_no_silence_while_it_advances(monkeypatch: pytest.MonkeyPatch, is_advancing: bool) -> None:
    """S8: a broker that leaves out all frames says how far it is; one that says the same again and again is stuck."""
    opened: list[ReadRequest] = []

    class Searching:
        """A message without frames each 0.05 s, which together take far longer than the caller's limit."""

        def __init__(self, link: Address, request: ReadRequest, **_: object) -> None:
            opened.append(request)
            self.end = request.end
            self.next_offset = request.start
            self.is_over = threading.Event()

        def read(self) -> FramesRead | None:
            if self.is_over.wait(0.05):
                return None
            self.next_offset = min(self.next_offset + is_advancing, self.end)
            return FramesRead([], ReadResponse(start=0, end=self.end, next_offset=self.next_offset))

        def finish(self) -> None:
            self.is_over.set()

        def cancel(self) -> None:
            self.is_over.set()

        def close(self) -> None:
            self.is_over.set()

    monkeypatch.setattr(range_reader, "FrameStream", Searching)
    cluster: Any = PatientCluster(0.5)
    test = (Step(what="constant", answer=False),)
    if is_advancing:
        assert list(read_range(cluster, TOPIC, 0, 0, 40, where=test)) == []
        assert [(request.start, request.where) for request in opened] == [(0, test)]
    else:
        with pytest.raises(RequestTimedOutError, match="from offset 0 on"):
            list(read_range(cluster, TOPIC, 0, 0, 40, where=test))


def test_read_range_releases_its_stream_when_the_caller_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait has a limit: thread and stream are released, and reading continues when the caller comes back."""
    streams: list[Stream] = []

    class Stream:
        """One record per frame, two frames per message."""

        def __init__(self, link: Address, request: ReadRequest, **_: object) -> None:
            self.request = request
            self.next_offset = request.start
            self.is_closed = False
            streams.append(self)

        def read(self) -> FramesRead | None:
            offsets = range(self.next_offset, min(self.next_offset + 2, self.request.end))
            self.next_offset = offsets.stop
            frames = [frame_at(offset) for offset in offsets]
            return FramesRead(frames, ReadResponse(start=0, end=self.request.end, next_offset=self.next_offset))

        def finish(self) -> None:
            self.is_closed = True

        def cancel(self) -> None:
            self.is_closed = True

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(range_reader, "FrameStream", Stream)
    cluster: Any = PatientCluster(LIMIT_S)
    frames = read_range(cluster, TOPIC, 0, 0, 40, prefetch_bytes=1)
    seen = [next(frames).header.base_offset]
    for _ in range(2):
        reading = [thread for thread in threading.enumerate() if thread.name == "pylog-read-t-0"]
        for thread in reading:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert all(stream.is_closed for stream in streams)
        seen += [next(frames).header.base_offset for _ in range(4)]
    seen += [frame.header.base_offset for frame in frames]
    assert seen == list(range(40))
    assert len(streams) >= 3


class Streams:
    """Makes streams that give one record per message, at once; notes those that were opened, and may refuse."""

    def __init__(self) -> None:
        self.opened: list[ReadRequest] = []
        self.refusal: PylogError | None = None

    def __call__(self, link: Address, request: ReadRequest, **_: object) -> Any:
        if self.refusal is not None and request.partition == 1:
            raise self.refusal
        self.opened.append(request)
        return OneByOne(request)

    @property
    def partitions(self) -> list[int]:
        return [request.partition for request in self.opened]


class OneByOne:
    def __init__(self, request: ReadRequest) -> None:
        self._request = request
        self._next_offset = request.start
        self._is_over = False

    def read(self) -> FramesRead | None:
        if self._is_over:
            return None
        offset, self._next_offset = self._next_offset, self._next_offset + 1
        response = ReadResponse(start=0, end=self._request.end, next_offset=self._next_offset)
        return FramesRead([frame_at(offset, self._request.partition)], response)

    def cancel(self) -> None:
        self._is_over = True

    finish = close = cancel


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    streams = Streams()
    monkeypatch.setattr(range_reader, "FrameStream", streams)
    monkeypatch.setattr(range_reader, "_AHEAD_BYTES", 1)
    return streams


ANY = (Step(what="constant", answer=True),)
RANGES = [OffsetRange(0, 0, 3), OffsetRange(1, 5, 9), OffsetRange(2, 4, 4), OffsetRange(3, 0, 2)]
ALL = [(one, offset) for one in RANGES for offset in range(one.start, one.end)]


@pytest.mark.parametrize("where", [None, ANY])
def test_ranges_come_in_order_each_frame_once(streams: Streams, where: tuple[Step, ...] | None) -> None:
    """Also those that were begun before the caller came to them, and had to pause."""
    cluster: Any = PatientCluster(LIMIT_S)
    frames = read_ranges(cluster, WIDE_TOPIC, RANGES, where=where)
    assert [(one, frame.header.base_offset) for one, frame in frames] == ALL
    assert [(request.partition, request.start) for request in streams.opened][:2] == [(0, 0), (1, 5)]
    assert not reading_threads()


def test_with_a_predicate_the_next_range_is_begun_and_pauses_without_a_thread(streams: Streams) -> None:
    """It has one message, and waits for its caller without holding anything."""
    cluster: Any = PatientCluster(LIMIT_S)
    frames = read_ranges(cluster, WIDE_TOPIC, RANGES, where=ANY)
    seen = [next(frames)]
    wait_until(lambda: not reading_threads(1), "the thread of the next range has ended")
    assert sorted(streams.partitions) == [0, 1], "and of no other range"
    assert [(one, frame.header.base_offset) for one, frame in [*seen, *frames]] == ALL
    assert [request.start for request in streams.opened if request.partition == 1] == [5, 6]


@pytest.mark.parametrize("is_short", [True, False])
def test_next_search_waits_for_the_connection_of_a_short_one(monkeypatch: pytest.MonkeyPatch, is_short: bool) -> None:
    """A search that ends at once leaves its connection to the next; one that takes long is not waited for."""
    may_end = threading.Event()
    kept_before: list[int] = []

    class Searching:
        def __init__(self, link: Address, request: ReadRequest, **_: object) -> None:
            kept_before.append(len(cluster.kept))
            self.link, self.end = link, request.end
            self.is_first = request.partition == 0

        def read(self) -> FramesRead | None:
            if self.is_first:
                may_end.wait(0.05 if is_short else LIMIT_S)
            return FramesRead([], ReadResponse(start=0, end=self.end, next_offset=self.end))

        def finish(self) -> Address:
            return self.link

        def cancel(self) -> None:
            may_end.set()

        close = cancel

    monkeypatch.setattr(range_reader, "FrameStream", Searching)
    monkeypatch.setattr(range_reader, "_SHORT_SEARCH_S", LIMIT_S if is_short else 0.001)
    cluster: Any = PatientCluster(LIMIT_S)
    if not is_short:
        threading.Thread(target=lambda: wait_until(lambda: len(kept_before) > 1, "two") or may_end.set()).start()
    assert list(read_ranges(cluster, WIDE_TOPIC, RANGES[:2], where=ANY)) == []
    assert kept_before == ([0, 1] if is_short else [0, 0])
    assert len(cluster.kept) == 2


def test_stream_after_one_that_failed_has_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that another had before has a time limit, which a slow network may not keep; the new one has none."""

    class Slow(OneByOne):
        def __init__(self, link: Address, request: ReadRequest, **_: object) -> None:
            super().__init__(request)
            self.is_reused = not cluster.news[-1]

        def read(self) -> FramesRead | None:
            if self.is_reused and self._next_offset == 2:
                raise RequestTimedOutError("not within the limit")
            return super().read()

    monkeypatch.setattr(range_reader, "FrameStream", Slow)
    cluster: Any = PatientCluster(LIMIT_S)
    found = list(read_range(cluster, WIDE_TOPIC, 0, 0, 5))
    assert [frame.header.base_offset for frame in found] == [0, 1, 2, 3, 4]
    assert cluster.news == [False, True]


def test_many_short_searches_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the second waits for the first: with more there is work for two connections, and each way counts."""
    waits: list[float] = []
    monkeypatch.setattr(range_reader._RangeReader, "wait_for_end", lambda self, limit_s: waits.append(limit_s))
    streams = Streams()
    monkeypatch.setattr(range_reader, "FrameStream", streams)
    cluster: Any = PatientCluster(LIMIT_S)
    assert [
        (one, frame.header.base_offset) for one, frame in read_ranges(cluster, WIDE_TOPIC, RANGES, where=ANY)
    ] == ALL
    assert waits == [range_reader._SHORT_SEARCH_S]


def test_without_a_predicate_one_range_is_read_at_a_time(streams: Streams) -> None:
    """There is nothing to search for, and the broker reads no frames before they are wanted."""
    cluster: Any = PatientCluster(LIMIT_S)
    frames = read_ranges(cluster, WIDE_TOPIC, RANGES)
    for _ in range(3):
        next(frames)
    assert streams.partitions == [0]
    next(frames)
    assert streams.partitions == [0, 1]
    frames.close()
    assert not reading_threads()


@pytest.mark.parametrize("is_back", [True, False])
def test_range_that_cannot_be_begun_yet_is_tried_again_when_the_caller_comes(streams: Streams, is_back: bool) -> None:
    """A broker that was away for a while, long before, is no error."""
    cluster: Any = PatientCluster(0.2)
    streams.refusal = BrokerUnavailableError("broker-one refused")
    frames = read_ranges(cluster, WIDE_TOPIC, RANGES, where=ANY)
    seen = [next(frames)]
    wait_until(lambda: not reading_threads(1), "the next range was given up")
    if is_back:
        streams.refusal = None
        assert [(one, frame.header.base_offset) for one, frame in [*seen, *frames]] == ALL
    else:
        with pytest.raises(BrokerUnavailableError):
            list(frames)
        assert not reading_threads()


def test_leaving_early_ends_all_threads(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the ranges ahead, too."""
    monkeypatch.setattr(range_reader, "_AHEAD_BYTES", 1 << 30)
    cluster: Any = PatientCluster(LIMIT_S)
    frames = read_ranges(cluster, WIDE_TOPIC, [OffsetRange(0, 0, 1 << 40), OffsetRange(1, 0, 1 << 40)], where=ANY)
    next(frames)
    frames.close()
    assert not reading_threads()


def reading_threads(partition: int | None = None) -> list[threading.Thread]:
    beginning = "pylog-read-wide-" + ("" if partition is None else str(partition))
    return [thread for thread in threading.enumerate() if thread.name.startswith(beginning)]


def frame_at(offset: int, partition: int = 0) -> pa.Buffer:
    """A stamped frame of one record."""
    frame = encode_frame(
        pa.record_batch({"value": pa.array([b"v"])}), TopicSchema.untyped(), timestamps=1_700_000_000_000
    )
    header = parse_header(frame)
    stamped = stamp(
        header,
        base_offset=offset,
        leader_epoch=0,
        append_time_ms=0,
        high_watermark=0,
        topic_id=bytes(16),
        partition=partition,
    )
    return pa.py_buffer(bytes(stamped) + frame.slice(len(stamped)).to_pybytes())
