"""Failures while a broker follows another, and the throttle that delays it."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.frame import TransactionBegin, encode_frame, number_frame
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.following.follower import FIRST_RETRY_MS, LONGEST_RETRY_MS
from broker_runtime.log import PartitionLog
from broker_runtime.log.appending import AppendResult
from broker_runtime.log.faulty_files import Fault
from broker_runtime.rates import RateLimit
from tests.unit.replication.partitions import NOW_MS
from tests.unit.replication.replicas import Replica, led_by


def _pair(count: int = 1, epoch: int = 1, **config: object) -> tuple[Replica, Replica]:
    """Broker 1 leads, broker 2 follows; both in sync."""
    leader, follower = Replica(1, count, **config), Replica(2, count, **config)
    leader.lead(led_by(1, epoch, replicas=(1, 2)))
    follower.follow(led_by(1, epoch, replicas=(1, 2)))
    return leader, follower


def _grow(pauses_ms: list[int]) -> bool:
    """Whether each pause is at most twice the maximum of the one before, and at least half of that."""
    full_ms = [min(FIRST_RETRY_MS << tries, LONGEST_RETRY_MS) for tries in range(len(pauses_ms))]
    return all(full // 2 <= pause <= full for pause, full in zip(pauses_ms, full_ms, strict=True))


# --- failures ------------------------------------------------------------------------------------------------------


def test_damaged_bytes_are_never_appended_and_fetched_again_after_a_while():
    """Followers verify all checksums before they append."""
    leader, follower = _pair()
    leader.append(b"a")
    fetcher = follower.fetchers[1]
    response, cells = leader.answer(fetcher.next_request(1, 0), 2, 1)
    damaged = bytearray(cells[0])
    damaged[len(damaged) // 2] ^= 1
    fetcher.handle(response, [damaged], 0)
    assert follower.log.log_end_offset == 0
    assert fetcher.next_request(1, fetcher.pause_ms(0) - 1) is None
    follower.now_ms = fetcher.pause_ms(0)
    follower.fetch_from(leader)
    assert follower.records() == leader.records()


@pytest.mark.parametrize("error", [pa.ArrowMemoryError("malloc of size 1 failed"), MemoryError()])
def test_fetch_is_retried_after_a_while_when_memory_was_short(
    error: MemoryError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no damage, and ends neither the session nor the following."""
    leader, follower = _pair(count=2)
    for number in (0, 1):
        leader.append(b"a", partition=number)
    real = PartitionLog.append_as_follower

    def append_as_follower(self: PartitionLog, *args: Any, **kwargs: Any) -> AppendResult:
        if self.partition == 0:
            raise error
        return real(self, *args, **kwargs)

    with monkeypatch.context() as lacking:
        lacking.setattr(PartitionLog, "append_as_follower", append_as_follower)
        follower.fetch_from(leader)
    log = follower.partitions[0].log
    assert (log.log_end_offset, log.is_damaged) == (0, False)
    assert follower.records(1) == leader.records(1)
    follower.now_ms += FIRST_RETRY_MS
    follower.fetch_from(leader)
    assert follower.records() == leader.records()


@pytest.mark.parametrize("code", ["FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"])
def test_refused_fetch_is_retried_after_a_change_or_growing_pauses(code):
    """The leader, or this broker, has not learned of the change yet."""
    leader, follower = _pair(count=2)
    fetcher, now_ms, pauses = follower.fetchers[1], 0, []
    for _ in range(8):
        response, cells = leader.answer(fetcher.next_request(1, now_ms), 2, 1)
        partitions = [
            msgspec.structs.replace(each, error=ErrorInfo(code=code, message="") if each.partition == 0 else None)
            for each in response.partitions
        ]
        fetcher.handle(msgspec.structs.replace(response, partitions=tuple(partitions)), cells, now_ms)
        other = fetcher.next_request(1, now_ms)
        assert [each.partition for each in other.partitions] == [1], "the other continues"
        pause_ms = fetcher._followed[TopicPartition("t", 0)].retry_at_ms - now_ms
        assert 0 < other.max_wait_ms + 1 <= pause_ms + 1
        pauses.append(pause_ms)
        now_ms += pause_ms
    assert _grow(pauses)
    follower.follow(led_by(1, 1, replicas=(1, 2)))
    assert len(fetcher.next_request(1, now_ms).partitions) == 2, "a change: again at once"


def test_offline_log_stops_no_other_of_the_session():
    """A failed disk costs only the partitions on it."""
    leader, follower = _pair(count=2)
    follower.files.faults.append(Fault("write", matches=lambda path: path.parent.name == "t-0"))
    for number in (0, 1):
        leader.append(b"a", partition=number)
    follower.fetch_from(leader)
    assert follower.partitions[0].log.is_offline
    for _ in range(3):
        leader.append(b"b", partition=1)
        follower.now_ms += 100
        follower.fetch_from(leader)
    assert follower.records(1) == leader.records(1)


def test_follower_without_room_on_its_disk_waits_and_its_log_stays_online():
    """A full disk is an error, and never takes a log offline."""
    leader, follower = _pair()
    leader.append(b"a")

    follower.only.disk.takes_appends = False
    follower.fetch_from(leader)
    assert (follower.log.log_end_offset, follower.log.is_offline) == (0, False)
    follower.only.disk.takes_appends = True
    follower.now_ms = FIRST_RETRY_MS
    follower.fetch_from(leader)
    assert follower.log.log_end_offset == 1


@pytest.mark.parametrize("has_open", [True, False])
def test_follower_without_room_takes_what_may_end_an_open_transaction(has_open):
    """Its retention waits for that end, and so does the room."""
    leader, follower = _pair()
    if has_open:
        opening = TransactionBegin(transactional_id="a", epoch=0, batch_id=0)
        batch = pa.record_batch({"value": pa.array([b"v"])})
        data = bytearray(encode_frame(batch, TopicSchema.untyped(), timestamps=NOW_MS, is_transactional=True))
        number_frame(data, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        leader.only.append([memoryview(data)], acks=1, leader_epoch=-1, now_ms=NOW_MS, begin=opening)
    leader.append(b"a")
    follower.fetch_from(leader)
    end = leader.append(b"b")
    follower.only.disk.takes_appends = False
    follower.fetch_from(leader)
    assert follower.log.log_end_offset == (end if has_open else end - 1)


def test_broken_connection_is_followed_by_growing_pauses_and_a_fresh_request():
    """A request without an answer is given up; nothing is counted twice."""
    leader, follower = _pair()
    fetcher, now_ms, pauses = follower.fetchers[1], 0, []
    leader.append(b"a")
    for _ in range(7):
        assert fetcher.next_request(1, now_ms) is not None
        fetcher.failed(NetworkError("reset"), now_ms)
        assert fetcher.next_request(1, now_ms) is None
        pauses.append(fetcher.pause_ms(now_ms))
        now_ms += pauses[-1]
    assert _grow(pauses)
    follower.now_ms = now_ms
    follower.fetch_from(leader)
    assert (follower.log.log_end_offset, fetcher.pause_ms(now_ms)) == (1, 0)


def test_no_request_is_sent_without_a_registration():
    """A follower counts only under a broker epoch; without one it sends no request."""
    leader, follower = _pair()
    assert follower.fetchers[1].next_request(-1, 0) is None
    follower.broker_epoch = 0
    leader.append(b"a")
    follower.fetch_from(leader)
    assert follower.log.log_end_offset == 1


def test_loading_of_many_logs_delays_the_others_only_a_little():
    """The recovery of many logs is spread over requests that do not wait meanwhile."""
    _, follower = _pair(count=20)
    request = follower.fetchers[1].next_request(1, 0)
    assert (len(request.partitions), request.max_wait_ms) == (8, 0)
    for _ in range(2):
        request = follower.fetchers[1].next_request(1, 0)
    assert len(request.partitions) == 20


# --- throttle -----------------------------------------------------------------------------------------------------


def test_throttle_delays_only_replicas_that_are_not_in_sync():
    """``replication.throttled.rate``: moving partitions leave bandwidth; in-sync replicas are never throttled."""
    leader, follower = Replica(1), Replica(2)
    throttle = RateLimit(100)
    leader.lead(led_by(1, 1, replicas=(1, 2), in_sync=(1,)))
    fetcher = follower.follow(led_by(1, 1, replicas=(1, 2), in_sync=(1,)), throttle=throttle)
    leader.append(bytes(1000))
    follower.fetch_from(leader)
    size_bytes = follower.log.size_bytes
    assert fetcher.next_request(1, 0) is None
    debt_ms = (size_bytes - 100) * 10
    assert throttle.wait_ms(0) == debt_ms + 1
    assert fetcher.pause_ms(0) == LONGEST_RETRY_MS
    assert fetcher.next_request(1, debt_ms + 1) is not None
    fetcher.failed(NetworkError("reset"), debt_ms + 1)
    leader.append(bytes(1000))
    follower.now_ms = 2 * debt_ms
    follower.fetch_from(leader)
    follower.follow(led_by(1, 1, replicas=(1, 2), version=1))
    assert fetcher.next_request(1, follower.now_ms) is not None, "in sync by now"
