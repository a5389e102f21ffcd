"""Produce, fetch and read without a network, over logs in memory."""

from __future__ import annotations

import math
import struct

import msgspec
import pyarrow as pa
import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.frame import encode_frame, iter_frames, parse_header
from broker_runtime.contract.predicate import parse_predicate
from broker_runtime.contract.predicate.frames import METADATA_IDS, FrameTest, Step, frame_test
from broker_runtime.contract.requests import decode, encode
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.streams import FetchPartition, FetchRequest, ProduceRequest, ReadRequest
from broker_runtime.log.faulty_files import Fault
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchAnswer, FetchService
from broker_runtime.services.partition_read import find_matching
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.read import ReadService
from tests.callers import CLIENT
from tests.clocks import ReadClock
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame, leadership


def _want(offset: int = 0, partition: int = 0, **fields: object) -> FetchPartition:
    return FetchPartition(topic="t", partition=partition, topic_id=TOPIC_ID.bytes, offset=offset, **fields)


def _fetch(hosted: Hosted, *wanted: FetchPartition, budget: ByteBudget | None = None, **fields: object) -> FetchAnswer:
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=budget or ByteBudget(1 << 20))
    rotation = fields.pop("rotation", 0)
    assert isinstance(rotation, int)
    request = FetchRequest(request_id=1, partitions=wanted, max_wait_ms=0, **fields)  # type: ignore[arg-type]
    return service.fetch(CLIENT, request, rotation=rotation)


# --- produce --------------------------------------------------------------------------------------------------


def test_produce_answers_with_offsets_and_never_raises_for_one_request() -> None:
    """The error of one request is that request's answer."""
    hosted = Hosted()
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS)
    request = ProduceRequest(request_id=5, topic="t", topic_id=TOPIC_ID.bytes, leader_epoch=1)
    response = service.complete(CLIENT, service.append(CLIENT, request, [pa.py_buffer(frame(b"a"))]), 0)
    assert response is not None
    assert (response.request_id, response.base_offset, response.append_time_ms, response.error) == (5, 0, -1, None)
    wrong = msgspec.structs.replace(request, partition=4)
    response = service.complete(CLIENT, service.append(CLIENT, wrong, [pa.py_buffer(frame(b"a"))]), 0)
    assert response is not None
    assert response.error is not None
    assert (response.error.code, response.base_offset) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)


def test_produce_sends_heartbeats_while_it_waits_and_times_out_at_its_deadline() -> None:
    """Produce requests have a deadline of their own; until then the stream sends heartbeats."""
    hosted = Hosted()
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    now_s = [0.0]
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS, clock=ReadClock(lambda: now_s[0]))
    pending = service.append(
        CLIENT, ProduceRequest(request_id=1, topic="t", timeout_ms=5000), [pa.py_buffer(frame(b"a"))]
    )
    assert service.complete(CLIENT, pending, 0) is None
    now_s[0] = 5.0
    response = service.complete(CLIENT, pending, 0)
    assert response is not None
    assert response.error is not None
    assert response.error.code == "REQUEST_TIMED_OUT"


def test_log_append_time_is_reported() -> None:
    """``message.timestamp.type=LogAppendTime``: the broker's clock counts."""
    hosted = Hosted(message_timestamp_type="LogAppendTime")
    service = ProduceService(hosted.registry, now_ms=lambda: 4711)
    response = service.complete(
        CLIENT, service.append(CLIENT, ProduceRequest(request_id=1, topic="t"), [pa.py_buffer(frame(b"a"))]), 0
    )
    assert response is not None
    assert response.append_time_ms == 4711


def test_transactional_frame_without_a_producer_id_is_refused() -> None:
    """Nothing would end its transaction, and no committed record behind it could be read."""
    hosted = Hosted()
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS)
    batch = pa.record_batch({"value": pa.array([b"v"])})
    made = encode_frame(batch, TopicSchema.untyped(), timestamps=NOW_MS, is_transactional=True)
    pending = service.append(CLIENT, ProduceRequest(request_id=1, topic="t"), [made])
    assert isinstance(pending.error, errors.InvalidRequestError)
    assert hosted.only.log.log_end_offset == 0


# --- fetch ----------------------------------------------------------------------------------------------------


def test_fetch_omits_partitions_without_news_and_reports_those_beyond_the_limit() -> None:
    """Partitions with neither data, news nor an error are left out."""
    hosted = Hosted(count=3)
    for number in (0, 1):
        hosted.append(bytes(500), partition=number)
    answer = _fetch(hosted, *[_want(partition=number) for number in range(3)], max_bytes=100)
    assert [
        (each.partition, each.row, each.high_watermark, each.next_offset) for each in answer.response.partitions
    ] == [
        (0, 0, 1, 1),
        (1, -1, 1, 0),
    ]
    assert len(answer.cells) == 1
    assert parse_header(answer.cells[0]).base_offset == 0


def test_rotation_gives_every_partition_its_turn() -> None:
    """Byte limits starve no partition."""
    hosted = Hosted(count=3)
    for number in range(3):
        hosted.append(bytes(500), partition=number)
    wanted = [_want(partition=number) for number in range(3)]
    first = [_fetch(hosted, *wanted, max_bytes=1, rotation=turn).response.partitions[0].partition for turn in range(6)]
    assert first == [0, 1, 2, 0, 1, 2]


def test_fetch_holds_its_bytes_in_the_budget_until_it_is_closed() -> None:
    """Memory for peers is bounded by a budget."""
    hosted, budget = Hosted(), ByteBudget(1 << 20)
    hosted.append(bytes(500))
    answer = _fetch(hosted, _want(), budget=budget)
    assert budget.used_bytes == answer.held_bytes == answer.cells[0].size
    answer.close()
    assert budget.used_bytes == 0


def test_fetch_of_an_offline_partition_has_its_error_beside_the_others_data() -> None:
    """The partition answers with a storage error, and other partitions continue."""
    hosted = Hosted(count=2)
    for number in (0, 1):
        hosted.append(b"a", partition=number)
    hosted.files.faults.append(Fault("sync", matches=lambda path: path.parent.name == "t-0"))
    with pytest.raises(errors.LogStorageError):
        hosted.append(b"b", partition=0)
    fetched = _fetch(hosted, _want(partition=0), _want(partition=1)).response.partitions
    assert [(each.partition, each.error.code if each.error else None) for each in fetched] == [
        (0, "KAFKA_STORAGE_ERROR"),
        (1, None),
    ]


def test_fetch_that_fails_while_it_waits_leaves_no_waiter_and_no_open_file() -> None:
    """A peer that goes away during a long poll costs nothing afterwards."""
    hosted = Hosted()
    hosted.append(b"a")
    ticks = (tick / 4 for tick in range(100))
    service = FetchService(
        hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1), clock=ReadClock(lambda: next(ticks))
    )

    def gone() -> None:
        raise ConnectionError("gone")

    request = FetchRequest(request_id=1, partitions=(_want(1),), max_wait_ms=60_000)
    with pytest.raises(ConnectionError):
        service.fetch(CLIENT, request, still_waiting=gone)
    assert not hosted.only._waiters


def test_fetch_shows_signs_of_life_while_it_is_woken_all_the_time() -> None:
    """A consumer takes a broker for dead that says nothing for some seconds, also one whose partitions are busy."""
    hosted = Hosted()
    hosted.append(b"a")
    partition, now_s, said_s = hosted.only, [0.0], []
    real = partition.read

    def read_of_a_busy_partition(*args: object, **fields: object) -> object:
        now_s[0] += 0.25
        for waiter in partition._waiters:
            waiter.set()
        return real(*args, **fields)  # type: ignore[arg-type]

    partition.read = read_of_a_busy_partition  # type: ignore[method-assign, assignment]
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1), clock=ReadClock(lambda: now_s[0]))
    request = FetchRequest(request_id=1, partitions=(_want(1),), max_wait_ms=4_500)
    service.fetch(CLIENT, request, still_waiting=lambda: said_s.append(now_s[0]))
    assert said_s == [1.0, 2.0, 3.0, 4.0]


# --- read -----------------------------------------------------------------------------------------------------


def test_read_resolves_its_range_once_and_releases_its_bytes() -> None:
    """Reads end at the high watermark of the call, and hold one part at a time."""
    hosted, budget = Hosted(), ByteBudget(1 << 20)
    for number in range(3):
        hosted.append(b"%d" % number)
    service = ReadService(hosted.registry, budget=budget)
    plan = service.plan(CLIENT, ReadRequest(topic="t", partition=0, start=-2, batch_bytes=1))
    pieces = service.pieces(CLIENT, plan)
    hosted.append(b"later")
    first, frames = next(pieces)
    assert (first.next_offset, first.end) == (1, 3)
    assert frames is not None
    assert budget.used_bytes == frames.size
    assert [part.next_offset for part, _ in pieces] == [2, 3]
    assert budget.used_bytes == 0


@pytest.mark.parametrize("where", [None, "_metadata.offset >= 0"])
@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 1), (15, 17), (9, 11), (12, 30), (25, 37), (40, 40), (3, 50)])
def test_read_takes_no_frame_that_begins_behind_its_range(start: int, end: int, where: str | None) -> None:
    """A small range before much else costs what is in it: the frames that have a record of it, and no others."""
    hosted, budget = Hosted(), ByteBudget(1 << 20)
    for _ in range(5):
        hosted.append(*[b"x"] * 10)
    service = ReadService(hosted.registry, budget=budget)
    test = None if where is None else _where(where)
    request = ReadRequest(topic="t", partition=0, start=start, end=end, where=test)
    taken = [
        header.base_offset
        for response, frames in service.pieces(CLIENT, service.plan(CLIENT, request))
        if frames is not None
        for header, _ in iter_frames(frames)
    ]
    assert taken == [base for base in range(0, 50, 10) if base < end and base + 10 > start and start < end]
    assert budget.used_bytes == 0


def test_read_that_retention_overtakes_is_an_error_and_not_a_gap() -> None:
    """Records removed under a reader are reported."""
    hosted = Hosted(segment_bytes=1024)
    for _ in range(8):
        hosted.append(bytes(400))
    service = ReadService(hosted.registry, budget=ByteBudget(1 << 20))
    pieces = service.pieces(CLIENT, service.plan(CLIENT, ReadRequest(topic="t", partition=0, start=0, batch_bytes=1)))
    assert next(pieces)[0].next_offset == 1
    hosted.only.log.delete_records(6)
    with pytest.raises(errors.OffsetOutOfRangeError):
        next(pieces)


# --- budget ---------------------------------------------------------------------------------------------------


def test_budget_admits_what_fits_and_one_request_larger_than_all() -> None:
    """Nothing waits forever for more than the whole budget."""
    budget = ByteBudget(100)
    assert budget.acquire(60, 0)
    assert not budget.acquire(60, 0)
    assert budget.acquire(40, 0)
    budget.release(100)
    assert budget.acquire(1000, 0)
    assert not budget.acquire(1, 0)
    budget.release(1000)
    assert budget.used_bytes == 0


# --- frames in which no row can match ---------------------------------------------------------------------------------


def _where(text: str) -> tuple[Step, ...]:
    return frame_test(parse_predicate(text, {}), METADATA_IDS.get)


def test_fetch_says_how_far_it_looked_where_nothing_can_match() -> None:
    """S8: an empty stretch costs no round trip per frame, and is no end."""
    hosted = Hosted(segment_bytes=2_000)
    for number in range(20):
        hosted.append(b"%d" % number)
    found = _fetch(hosted, _want(predicate=0), predicates=(_where("_metadata.offset = 17"),))
    (answer,) = found.response.partitions
    assert (answer.row, answer.next_offset) == (0, 18)
    assert [header.base_offset for header, _ in iter_frames(found.cells[0])] == [17]
    nothing = _fetch(hosted, _want(predicate=0), predicates=(_where("_metadata.offset = 99"),), max_bytes=700)
    (answer,) = nothing.response.partitions
    assert (answer.row, answer.next_offset, answer.error, nothing.cells) == (-1, 20, None, [])
    for made in (found, nothing):
        made.close()


def test_offset_that_does_not_exist_is_refused_with_a_predicate_as_without() -> None:
    """A consumer is reset then; with nothing behind its offset it waits."""
    hosted = Hosted()
    for number in range(5):
        hosted.append(b"%d" % number)
    hosted.only.delete_records(2, timeout_s=0)
    for predicate in (-1, 0):
        for offset, code in ((1, "OFFSET_OUT_OF_RANGE"), (6, "OFFSET_OUT_OF_RANGE"), (5, None)):
            made = _fetch(hosted, _want(offset, predicate=predicate), predicates=(_where("_metadata.offset < 99"),))
            codes = [answer.error and answer.error.code for answer in made.response.partitions]
            assert codes == ([code] if code else [])


def test_log_that_begins_within_a_frame_is_read_with_a_predicate() -> None:
    """Deleted records are not there, and the rest of their frame is."""
    hosted = Hosted()
    for _ in range(3):
        hosted.append(*[b"x"] * 10)
    hosted.only.delete_records(5, timeout_s=0)
    made = _fetch(hosted, _want(5, predicate=0), predicates=(_where("_metadata.offset >= 0"),))
    (answer,) = made.response.partitions
    assert (answer.error, answer.next_offset) == (None, 30)
    service = ReadService(hosted.registry, budget=ByteBudget(1 << 20))
    request = ReadRequest(topic="t", partition=0, start=5, where=_where("_metadata.offset >= 0"))
    assert [response.next_offset for response, _ in service.pieces(CLIENT, service.plan(CLIENT, request))] == [30]


def test_search_ends_at_what_its_reader_may_have() -> None:
    """Neither what is not committed nor what an open transaction has is found, nor passed over."""
    hosted = Hosted()
    hosted.append(b"0")
    pending = hosted.only.append([frame(b"1")], acks=-1, leader_epoch=-1, now_ms=NOW_MS)
    for text in ("_metadata.offset >= 0", "_metadata.offset > 99"):
        made = _fetch(hosted, _want(predicate=0), predicates=(_where(text),))
        (answer,) = made.response.partitions
        assert answer.next_offset == hosted.only.high_watermark == 1
    hosted.only.complete(pending, acks=-1, timeout_s=0)
    hosted.only.become_follower(leadership(3, leader=2))
    test = FrameTest(_where("_metadata.offset >= 0"))
    with pytest.raises(errors.NotLeaderOrFollowerError):
        find_matching(hosted.only, 0, test, max_bytes=100, leader_epoch=-1, is_committed=True)


def test_fetch_that_searches_too_long_answers_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer hears how far the search is, however long the stretch."""
    monkeypatch.setattr("broker_runtime.services.fetch._SEARCH_S", -1.0)
    hosted = Hosted()
    for number in range(20):
        hosted.append(b"%d" % number)
    made = _fetch(hosted, _want(predicate=0), predicates=(_where("_metadata.offset = 99"),), max_bytes=700)
    (answer,) = made.response.partitions
    assert answer.row == -1
    assert 0 < answer.next_offset < 20


def test_read_with_a_predicate_is_silent_about_what_cannot_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8: one message for a stretch without matches; a long one is interrupted by a word of how far it got."""
    hosted = Hosted(segment_bytes=2_000)
    for number in range(20):
        hosted.append(b"%d" % number)
    service = ReadService(hosted.registry, budget=ByteBudget(1 << 20))

    def pieces(where: str, **fields: int) -> list[tuple[int, list[int]]]:
        request = ReadRequest(topic="t", partition=0, start=0, batch_bytes=1000, where=_where(where), **fields)  # type: ignore[arg-type]
        return [
            (response.next_offset, [] if frames is None else [header.base_offset for header, _ in iter_frames(frames)])
            for response, frames in service.pieces(CLIENT, service.plan(CLIENT, request))
        ]

    assert pieces("_metadata.offset = 99") == [(20, [])]
    assert pieces("_metadata.offset IN (3, 17)") == [(4, [3]), (18, [17]), (20, [])]
    assert pieces("_metadata.offset IN (3, 17)", end=10) == [(4, [3]), (10, [])]
    assert pieces("_metadata.offset IN (3, 17)", end=4) == [(4, [3])]
    hosted.append(b"20", b"21", b"22")
    assert pieces("_metadata.offset = 99", end=21) == [(21, [])]  # within a frame
    monkeypatch.setattr("broker_runtime.services.read.HEARTBEAT_INTERVAL_S", -1.0)
    assert len(pieces("_metadata.offset = 99")) > 5
    assert pieces("_metadata.offset = 99")[-1] == (23, [])


def test_predicate_that_is_none_is_refused() -> None:
    """Malformed steps never reach a log: wrong joins, wrong values, too many, an index out of range."""
    hosted = Hosted()
    hosted.append(b"a")
    service = ReadService(hosted.registry, budget=ByteBudget(1 << 20))
    for steps, reason in (
        ((Step(what="and", parts=2),), "joins 2 results of 0"),
        ((Step(what="any"), Step(what="any")), "leave 2 results"),
        ((Step(what="compare", kind=1, value=b"123"),), "of kind 1"),
        ((Step(what="compare", kind=99, value=b""),), "of kind 99"),
        ((Step(what="prefix", kind=1, value=b"12345678"),), "only strings"),
        ((Step(what="compare", kind=2, value=struct.pack("<d", math.nan)),), "not a number"),
        ((Step(what="compare", column=-2, kind=4, value=b"x"),), "column -2 with a value of kind 4"),
        ((Step(what="null", column=-9),), "column -9, which no frame has"),
    ):
        with pytest.raises(errors.InvalidRequestError, match=reason):
            service.plan(CLIENT, ReadRequest(topic="t", partition=0, start=0, where=steps))
        made = _fetch(hosted, _want(predicate=0), predicates=(steps,))
        (answer,) = made.response.partitions
        assert answer.error is not None
        assert answer.error.code == "INVALID_REQUEST"
        assert answer.next_offset == 0
    for fields, refusal in (
        ({"partitions": (_want(predicate=1),), "predicates": (_where("NULL"),)}, "names predicate 1 of 1"),
        ({"predicates": ((Step(what="any"),) * 400,) * 3}, "1200 steps in all"),
    ):
        with pytest.raises(ValueError, match=refusal):
            FetchRequest(request_id=1, **fields)  # type: ignore[arg-type]
    too_long = encode(ReadRequest(topic="t", partition=0, start=0, where=(Step(what="any"),) * 501))
    with pytest.raises(errors.InvalidRequestError, match="501 entries"):
        decode(too_long, ReadRequest)
