"""What a consumer returns to its caller, and what it raises when something goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    NetworkError,
    NotAPylogBrokerError,
    OffsetOutOfRangeError,
    PylogError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import ListOffsetsRequest, ListOffsetsResponse
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.consumer import delivery
from pyspark_log.client.consumer.partition_state import CompletedFetch, PartitionState
from pyspark_log.client.records import ConsumedBatch
from tests.unit.client.consumer_samples import MemoryCluster, Parts, consumed, make_topic

GOOD, BAD = TopicPartition("t", 0), TopicPartition("t", 1)
DAMAGE = CorruptRecordError("t-1 is damaged at offset 0")


@pytest.fixture
def parts() -> Parts:
    made = Parts(MemoryCluster(make_topic("t", partitions=2)), auto_offset_reset="earliest")
    made.subscribe("t")
    return made


@pytest.mark.parametrize("kind", ["records", "batches"])
def test_poll_returns_the_records_it_has_and_raises_next_time(parts: Parts, kind: str) -> None:
    """W16: damage in one partition loses no record of another: returned records count as read."""
    parts.arrives(GOOD, b"a", b"b")
    parts.fails(BAD, DAMAGE)
    take = parts.delivery.poll_records if kind == "records" else parts.delivery.poll_batches
    first = take(Deadline(0.0), 500)
    assert sum(1 if kind == "records" else len(each) for each in first) == 2  # type: ignore[arg-type,misc]
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            take(Deadline(0.0), 500)


def test_positions_that_do_not_exist_any_more_are_reset_together() -> None:
    """After a long absence these can be many: each leader is asked once."""
    cluster = MemoryCluster(make_topic("t", leaders=(1, 1, 1, 1, 2, 1)))
    parts = Parts(cluster, auto_offset_reset="earliest")
    parts.subscribe("t")
    ats = [TopicPartition("t", number) for number in range(6)]
    cluster.limits = {at: (10 + at.partition, 20) for at in ats}
    for at in (ats[0], ats[1], ats[2], ats[4]):
        parts.fails(at, OffsetOutOfRangeError("gone"))
    parts.arrives(ats[2], b"left")
    parts.fails(ats[5], CorruptRecordError("damaged"))
    asked: list[list[int]] = []
    list_offsets = cluster._list_offsets

    def counted(request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked.append([query.at.partition for query in request.queries])
        return list_offsets(request)

    cluster._list_offsets = counted  # type: ignore[method-assign]
    assert [record.value for record in parts.delivery.poll_records(Deadline(0.0), 500)] == [b"left"]
    with pytest.raises(CorruptRecordError):
        parts.delivery.poll_records(Deadline(0.0), 500)
    assert asked == [[0, 1], [2], [4]]
    assert [parts.state(at).position for at in ats] == [10, 11, 12, 0, 14, 0]


def test_position_that_nobody_answers_for_holds_up_no_other() -> None:
    """As where its topic was deleted just now."""
    cluster = MemoryCluster(make_topic("t", partitions=3))
    parts = Parts(cluster, auto_offset_reset="earliest")
    parts.subscribe("t")
    ats = [TopicPartition("t", number) for number in range(3)]
    cluster.limits = dict.fromkeys(ats, (10, 20))
    for at in ats:
        parts.fails(at, OffsetOutOfRangeError("gone"))
    list_offsets = cluster._list_offsets

    def refusing(request: ListOffsetsRequest) -> ListOffsetsResponse:
        if any(query.at.partition == 1 for query in request.queries):
            raise CorruptRecordError("no answer for t-1")
        return list_offsets(request)

    cluster._list_offsets = refusing  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="no answer for t-1"):
            parts.delivery.poll_records(Deadline(0.0), 500)
    assert [parts.state(at).position for at in ats] == [10, 0, 10]


def test_broken_thread_is_raised_once_by_the_next_poll(parts: Parts) -> None:
    """A defect in one of the consumer's threads is not silent."""
    parts.fetcher.thread_ended(ZeroDivisionError("a defect"), 1)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        parts.delivery.poll_records(Deadline(60.0), 500)
    parts.arrives(GOOD, b"a")
    assert len(parts.delivery.poll_records(Deadline(0.0), 500)) == 1


def test_what_cannot_be_decoded_yet_is_the_next_that_is_delivered(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W16: a broker that is away when a new schema is asked for costs no record, and no order."""
    away: list[PylogError] = [NetworkError("away")]

    def decode_later(cluster: object, state: PartitionState, fetched: CompletedFetch) -> Iterator[ConsumedBatch]:
        if away:
            raise away.pop()
        yield consumed(GOOD, fetched.next_offset - 1, b"x")

    monkeypatch.setattr(delivery, "decode", decode_later)
    state = parts.state(GOOD)
    state.completed_fetches += [CompletedFetch(state.generation, pa.py_buffer(b"x"), end) for end in (1, 2, 3)]
    with pytest.raises(NetworkError):
        parts.delivery.poll_records(Deadline(0.0), 500)
    assert [record.offset for record in parts.delivery.poll_records(Deadline(0.0), 500)] == [0, 1, 2]


def refuses_bad(value: bytes) -> bytes:
    if value == b"bad":
        raise ValueError("a bad value")
    return value


def deserializing() -> Parts:
    made = Parts(
        MemoryCluster(make_topic("t", partitions=2)),
        group_id="g",
        auto_offset_reset="earliest",
        value_deserializer=refuses_bad,
    )
    made.subscribe("t")
    made.cluster.commits.clear()
    return made


def test_record_that_a_deserializer_refuses_does_not_count_as_delivered() -> None:
    """W18: neither it nor what was taken beside it is committed before the caller has got it; a seek goes on behind."""
    parts = deserializing()
    parts.arrives(GOOD, b"a", b"b")
    parts.arrives(BAD, b"c", b"bad", b"d")
    got: list[object] = []
    refused = 0
    for _ in range(6):
        parts.committer.finish_all()
        try:
            got += [record.value for record in parts.delivery.poll_records(Deadline(0.0), 500)]
        except ValueError:
            refused += 1
    assert (got, refused) == ([b"a", b"b", b"c"], 5)
    parts.committer.commit_finished()
    assert parts.cluster.commits == [{GOOD: 2, BAD: 1}]
    assert parts.state(BAD).position == 1
    parts.fetcher.move(parts.state(BAD), 2)
    parts.arrives(BAD, b"d")
    assert [record.value for record in parts.delivery.poll_records(Deadline(0.0), 500)] == [b"d"]


def test_refused_record_holds_up_no_other_partition() -> None:
    """W16: the caller is told each time, and gets the others' records."""
    parts = deserializing()
    parts.arrives(GOOD, b"bad")
    with pytest.raises(ValueError, match="a bad value"):
        parts.delivery.poll_records(Deadline(0.0), 500)
    parts.arrives(BAD, b"a")
    assert [record.value for record in parts.delivery.poll_records(Deadline(0.0), 500)] == [b"a"]
    with pytest.raises(ValueError, match="a bad value"):
        parts.delivery.poll_records(Deadline(0.0), 500)


def test_loop_ends_at_a_record_that_a_deserializer_refuses() -> None:
    """W18: what came before it was delivered, and no more than that is committed."""
    parts = deserializing()
    parts.arrives(BAD, b"c", b"bad", b"d")
    got: list[object] = []
    with pytest.raises(ValueError, match="a bad value"):  # noqa: PT012 - as `Consumer.__iter__` does
        while (batch := parts.delivery.next_batch(Deadline(0.0))) is not None:
            parts.committer.finish_all()
            got += [record.value for record in parts.delivery.iterate_records(batch)]
    assert got == [b"c"]
    parts.committer.finish_all()
    parts.committer.commit_finished()
    assert parts.cluster.commits == [{BAD: 1}]


@pytest.mark.parametrize("interruption", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["records", "batches"])
def test_poll_that_is_interrupted_while_it_decodes_skips_nothing(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException], kind: str
) -> None:
    """Ctrl-C in a notebook, or no memory: nothing is wrong with the records, and the caller has not got them."""
    state = parts.state(GOOD)
    for number in (0, 2):
        state.completed_fetches.append(CompletedFetch(state.generation, pa.py_buffer(b"%d" % number), number + 2))
        parts.fetcher._buffered_bytes += 1
    interruptions = [None, interruption("once")]

    def decode(cluster: object, state: PartitionState, fetched: CompletedFetch) -> Iterator[ConsumedBatch]:
        if interruptions and (error := interruptions.pop(0)) is not None:
            raise error
        yield consumed(GOOD, int(fetched.buffer.to_pybytes()), b"a", b"b")

    monkeypatch.setattr(delivery, "decode", decode)
    take = parts.delivery.poll_records if kind == "records" else parts.delivery.poll_batches
    found: list[int] = []
    for _ in range(3):
        try:
            for each in take(Deadline(0.0), 500):  # type: ignore[attr-defined]
                found += [each.offset] if kind == "records" else range(each.base_offset, each.next_offset)
        except (MemoryError, KeyboardInterrupt):
            assert state.position == len(found)
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["poll", "loop"])
def test_interrupted_deserializer_skips_nothing(kind: str) -> None:
    calls = [0]

    def deserializer(value: bytes) -> bytes:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return value

    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="earliest", value_deserializer=deserializer)
    parts.subscribe("t")
    parts.arrives(GOOD, b"a", b"b")
    parts.arrives(GOOD, b"c")
    if kind == "poll":
        with pytest.raises(KeyboardInterrupt):
            parts.delivery.poll_records(Deadline(0.0), 500)
        assert parts.state(GOOD).position == 0
        assert [each.offset for each in parts.delivery.poll_records(Deadline(0.0), 500)] == [0, 1, 2]
        return
    calls[0] = 1
    batch = parts.delivery.next_batch(Deadline(0.0))
    assert batch is not None
    with pytest.raises(KeyboardInterrupt):
        next(parts.delivery.iterate_records(batch))
    again = parts.delivery.next_batch(Deadline(0.0))
    assert again is not None
    assert [each.offset for each in parts.delivery.iterate_records(again)] == [0, 1]


def test_error_of_a_broker_is_raised_once_and_the_partition_is_read_on(parts: Parts) -> None:
    """Another service had the port of a dead broker for a moment."""
    parts.fails(BAD, NotAPylogBrokerError("a web server"))
    with pytest.raises(NotAPylogBrokerError):
        parts.delivery.poll_records(Deadline(0.0), 500)
    assert parts.delivery.poll_records(Deadline(0.0), 500) == []
    parts.arrives(BAD, b"a")
    assert len(parts.delivery.poll_records(Deadline(0.0), 500)) == 1


@pytest.mark.parametrize("is_paused", [False, True])
def test_partition_that_is_paused_holds_up_no_other(parts: Parts, is_paused: bool) -> None:
    """W16: its backlog fills the buffer, and nobody takes it."""
    state, fetcher = parts.state(GOOD), parts.fetcher
    buffer = pa.py_buffer(bytes(fetcher._max_bytes // 2))
    state.completed_fetches.append(CompletedFetch(state.generation, buffer, 1_000))
    state.fetch_offset = 1_000
    fetcher._buffered_bytes += buffer.size
    fetcher.set_paused(state, is_paused=is_paused)
    with fetcher.condition:
        asked = [each.partition for each in fetcher.wanted(1, 1)[0]]
    assert asked == ([1] if is_paused else [])


def test_smallest_buffer_fetches() -> None:
    """``fetch.max.bytes`` may be 1: a frame that is larger still comes."""
    parts = Parts(MemoryCluster(make_topic("t")), auto_offset_reset="earliest", fetch_max_bytes=1)
    parts.subscribe("t")
    with parts.fetcher.condition:
        assert len(parts.fetcher.wanted(1, 1)[0]) == 1
