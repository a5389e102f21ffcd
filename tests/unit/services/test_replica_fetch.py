"""A follower's fetch session, and a new leader's answers about its offsets, over logs in memory."""

from __future__ import annotations

from typing import Any

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.frame import parse_header
from broker_runtime.contract.model import EARLIEST, LATEST, MAX_TIMESTAMP
from broker_runtime.contract.requests import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    OffsetQuery,
    PartitionKey,
    RecordDeletion,
)
from broker_runtime.contract.streams import FetchPartition, FetchRequest, ReadRequest
from broker_runtime.log.faulty_files import Fault
from broker_runtime.replication import Partition
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch import FetchAnswer, FetchService
from broker_runtime.services.offsets import LogOffsetService
from broker_runtime.services.read import ReadService
from tests.callers import CLIENT, fetch_once, follower
from tests.clocks import ReadClock
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame, leadership

FOLLOWER = follower(2)


def _led(count: int = 1, in_sync: tuple[int, ...] = (1, 2)) -> Hosted:
    hosted = Hosted(count)
    for partition in hosted.partitions:
        partition.become_leader(leadership(2, replicas=(1, 2), in_sync=in_sync), 0)
    return hosted


def _append(hosted: Hosted, *values: bytes, partition: int = 0) -> None:
    led = hosted.partitions[partition]
    pending = led.append([frame(*values)], acks=1, leader_epoch=-1, now_ms=NOW_MS)
    led.complete(pending, acks=1, timeout_s=0)


def _want(offset: int = 0, partition: int = 0, **fields: object) -> FetchPartition:
    reported = {"leader_epoch": 2, "durable_end": offset, "last_fetched_epoch": 2 if offset else -1, **fields}
    return FetchPartition(topic="t", partition=partition, topic_id=TOPIC_ID.bytes, offset=offset, **reported)  # type: ignore[arg-type]


def _fetch(hosted: Hosted, *wanted: FetchPartition, caller: Caller = FOLLOWER, **fields: object) -> FetchAnswer:
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1 << 20), clock=ReadClock(lambda: 0.0))
    request = FetchRequest(request_id=1, partitions=wanted, max_wait_ms=0, **fields)  # type: ignore[arg-type]
    return fetch_once(service, caller, request) if isinstance(caller, BrokerCaller) else service.fetch(caller, request)


def test_follower_gets_what_consumers_do_not_see_yet():
    """A consumer never gets an offset at or above the high watermark; a follower must."""
    hosted = _led()
    _append(hosted, b"a", b"b")
    assert not _fetch(hosted, _want(), caller=CLIENT).cells
    answer = _fetch(hosted, _want())
    (part,) = answer.response.partitions
    assert (part.row, part.next_offset, part.high_watermark, part.log_start, part.log_end, part.leader_epoch) == (
        0, 2, 0, 0, 2, 2,
    )  # fmt: skip
    assert parse_header(answer.cells[0]).leader_epoch == 2


def test_follower_gets_the_marks_of_every_partition():
    """It learns what is committed although there is no new data."""
    hosted = _led(count=3)
    _append(hosted, b"a", partition=1)
    fetched = _fetch(hosted, _want(), _want(1, 1), _want(partition=2)).response.partitions
    assert [(each.partition, each.row, each.high_watermark) for each in fetched] == [(0, -1, 0), (1, -1, 1), (2, -1, 0)]


def test_follower_counts_for_all_partitions_whatever_the_byte_limit():
    """A large answer for one partition delays no other's high watermark."""
    hosted = _led(count=2)
    for number in (0, 1):
        _append(hosted, bytes(500), partition=number)
        _append(hosted, bytes(500), partition=number)
    fetched = _fetch(hosted, _want(), _want(1, 1), max_bytes=1).response.partitions
    assert [(each.row, each.high_watermark, each.next_offset) for each in fetched] == [(0, 0, 1), (-1, 1, 1)]


def test_diverging_log_and_refusals_are_reported_per_partition():
    hosted = _led(count=4)
    for number in range(4):
        _append(hosted, b"a", partition=number)
    fetched = _fetch(
        hosted, _want(5, last_fetched_epoch=1), _want(partition=1, leader_epoch=1), _want(9, 2, last_fetched_epoch=-1),
        _want(partition=3),
    ).response.partitions  # fmt: skip
    assert [(each.diverging_epoch, each.diverging_end, each.row) for each in fetched] == [
        (1, 0, -1), (-1, -1, -1), (-1, -1, -1), (-1, -1, 0),
    ]  # fmt: skip
    assert [each.error.code if each.error else None for each in fetched] == [
        None, "FENCED_LEADER_EPOCH", "OFFSET_OUT_OF_RANGE", None,
    ]  # fmt: skip
    assert (fetched[2].log_start, fetched[2].log_end, fetched[2].leader_epoch) == (0, 1, 2)


def test_offline_log_is_an_error_beside_the_others():
    hosted = _led(count=2)
    for number in (0, 1):
        _append(hosted, b"a", partition=number)
    hosted.files.faults.append(Fault("read", matches=lambda path: path.parent.name == "t-0"))
    fetched = _fetch(hosted, _want(), _want(partition=1)).response.partitions
    assert [each.error.code if each.error else None for each in fetched] == ["KAFKA_STORAGE_ERROR", None]


def test_waiting_follower_counts_once_and_is_woken_by_an_append():
    """Waiting followers are woken by an append; another look reports nothing new."""
    hosted = _led()
    partition, looks = hosted.only, []
    real = partition.follower_fetch

    def counted(*args, **fields):
        looks.append(fields["is_first_look"])
        found = real(*args, **fields)
        if len(looks) == 1:  # as another thread would, between two looks
            _append(hosted, b"a")
        return found

    partition.follower_fetch = counted  # type: ignore[method-assign]
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1), clock=ReadClock(lambda: 0.0))
    answer = fetch_once(service, FOLLOWER, FetchRequest(request_id=1, partitions=(_want(),), max_wait_ms=60_000))
    assert (looks[0], looks.count(True), len(answer.cells)) == (True, 1, 1)
    assert not partition._append_waiters


def test_change_is_read_once_when_the_answer_is_about_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look, at all that the answer is about, is only for partitions that did not change."""
    hosted = _led(count=2)
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1), clock=ReadClock(lambda: 0.0))
    looks: list[int] = []
    for number, each in enumerate(hosted.partitions):

        def counted(*args: object, real: Any = each.follower_fetch, number: int = number, **fields: object) -> object:
            looks.append(number)
            return real(*args, **fields)

        monkeypatch.setattr(each, "follower_fetch", counted)
    session = service.follower_session(FOLLOWER)
    for request_id, wanted, expected in ((1, (_want(),), [0]), (2, (_want(1), _want(partition=1)), [0, 0, 1])):
        request = FetchRequest(request_id=request_id, partitions=wanted, max_wait_ms=60_000, is_incremental=True)
        session.begin(request)
        assert session.maybe_answer(is_due=False) is None
        _append(hosted, b"a")
        looks.clear()
        answer = session.maybe_answer(is_due=False)
        assert answer is not None
        assert len(answer.cells) == 1
        assert looks == expected
    session.close()


def test_consumers_do_not_use_up_the_room_for_answers_to_followers():
    """Replication continues, whatever is read."""
    hosted = _led()
    _append(hosted, b"a")
    budget = ByteBudget(1)
    budget.acquire(1, 0)
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=budget, clock=ReadClock(lambda: 0.0))
    answer = fetch_once(service, FOLLOWER, FetchRequest(request_id=1, partitions=(_want(),), max_wait_ms=0))
    assert len(answer.cells) == 1


def test_answer_without_room_is_empty_and_returns_nothing_to_the_budget():
    """Bytes that were never taken from the budget are not returned to it."""
    hosted = Hosted()
    hosted.append(b"a")
    budget, now_s = ByteBudget(10), iter(range(0, 1000, 10))
    budget.acquire(10, 0)
    service = FetchService(
        hosted.registry, max_bytes=1 << 20, budget=budget, clock=ReadClock(lambda: float(next(now_s)))
    )
    answer = service.fetch(CLIENT, FetchRequest(request_id=1, partitions=(_want(leader_epoch=-1),), max_wait_ms=0))
    assert (answer.held_bytes, list(answer.cells)) == (0, [])
    assert [each.next_offset for each in answer.response.partitions] == [0]
    answer.close()
    assert budget.used_bytes == 10


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, NOW_MS])
def test_new_leader_does_not_report_what_it_does_not_know(timestamp):
    """KIP-207: the latest offset waits until the start of the leader's epoch is committed; the log start does not."""
    hosted = Hosted()
    hosted.append(b"a")
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)), 0)
    hosted.only.log.set_high_watermark(0)

    def ask(asked: int):
        query = OffsetQuery(at=PartitionKey(topic="t", partition=0, topic_id=TOPIC_ID.bytes), timestamp=asked)
        (answer,) = LogOffsetService(hosted.registry).list_offsets(CLIENT, ListOffsetsRequest(queries=(query,))).answers
        return answer

    assert ask(timestamp).error.code == "OFFSET_NOT_AVAILABLE"
    assert (ask(EARLIEST).error, ask(EARLIEST).offset) == (None, 0)
    _fetch(hosted, _want(1, last_fetched_epoch=1))
    assert ask(timestamp).error is None


def test_range_reported_by_an_earlier_leader_is_not_out_of_range_on_a_new_one():
    """A reader that planned up to the earlier leader's end waits; only an impossible offset is a permanent error."""
    hosted = Hosted()
    hosted.append(b"a")
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)), 0)
    hosted.only.log.set_high_watermark(0)
    service = ReadService(hosted.registry, budget=ByteBudget(1 << 20))

    def plan(start: int, end: int) -> tuple[int, int]:
        found = service.plan(CLIENT, ReadRequest(topic="t", partition=0, start=start, end=end))
        return found.start, found.end

    for start, end in ((0, 1), (0, LATEST), (LATEST, LATEST), (1, 1)):
        with pytest.raises(errors.OffsetNotAvailableError):
            plan(start, end)
    assert plan(0, 0) == (0, 0)
    _fetch(hosted, _want(1, last_fetched_epoch=1))
    assert plan(0, LATEST) == plan(0, 1) == (0, 1)
    with pytest.raises(errors.OffsetOutOfRangeError):
        plan(0, 2)


def test_waiting_follower_learns_of_deleted_records_at_once():
    """A deletion waits for it."""
    hosted = _led()
    _append(hosted, b"a")
    _fetch(hosted, _want(1))
    hosted.only.log.delete_records(1)
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1), clock=ReadClock(lambda: 0.0))
    request = FetchRequest(request_id=1, partitions=(_want(1, log_start=0),), max_wait_ms=60_000)
    (fetched,) = fetch_once(service, FOLLOWER, request).response.partitions
    assert fetched.log_start == 1


def test_deletions_of_one_request_share_its_time_limit():
    """Any number may wait for an absent replica, and the records of all are gone here."""
    hosted = _led(count=3, in_sync=(1,))
    clock_s, limits_s = [100.0], []
    for number, partition in enumerate(hosted.partitions):
        _append(hosted, b"a", partition=number)
        partition.log.flush()
        partition.note_durable()

        def delete_records(offset, *, timeout_s, partition=partition):
            limits_s.append(timeout_s)
            clock_s[0] += 4.0
            return Partition.delete_records(partition, offset, timeout_s=0)

        partition.delete_records = delete_records  # type: ignore[method-assign]
    keys = [PartitionKey(topic="t", partition=number, topic_id=TOPIC_ID.bytes) for number in range(3)]
    request = DeleteRecordsRequest(deletions=tuple(RecordDeletion(at=key, offset=1) for key in [*keys, keys[0]]))
    answers = (
        LogOffsetService(hosted.registry, clock=ReadClock(lambda: clock_s[0])).delete_records(CLIENT, request).answers
    )
    assert limits_s == [10.0, 6.0, 2.0, 0.0]
    assert [(answer.error, answer.offset) for answer in answers] == [(None, 1)] * 4
