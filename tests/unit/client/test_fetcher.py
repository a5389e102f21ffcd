"""What a consumer has prefetched: nothing is skipped, however its assignment changes."""

from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PylogError,
)
from broker_runtime.contract.requests import MOST_COLUMNS, ErrorInfo, PartitionInfo, TopicInfo, decode, encode
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchedPartition, FetchRequest, FetchResponse
from broker_runtime.contract.waiting import Worker
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.fetcher import AskedOf, Fetched, Fetcher
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.reading.rows import RowFilter, topic_predicate

NO_CLUSTER: Any = None  # no thread is started here
FRAMES = pa.py_buffer(b"frames")


@pytest.fixture
def fetcher() -> Fetcher:
    return Fetcher(NO_CLUSTER, max_bytes=1 << 20, max_wait_ms=500, on_stale=lambda: None)


def led_by(leader: int, epoch: int) -> Topic:
    infos = tuple(
        PartitionInfo(partition=p, leader=leader, leader_epoch=epoch, replicas=(1, 2), isr=(1, 2)) for p in range(3)
    )
    return Topic.from_info(TopicInfo(name="t", topic_id=bytes(16), partitions=infos))


def reading(partition: int, position: int = 0) -> PartitionState:
    return PartitionState(led_by(1, epoch=0), partition, position, None)


def asked(fetcher: Fetcher, broker_id: int = 1) -> tuple[dict[int, int], AskedOf]:
    """The offsets of the next request to that broker by partition, and what the request is about."""
    with fetcher.condition:
        partitions, about, _ = fetcher.wanted(broker_id, 0)
    return {each.partition: each.offset for each in partitions}, about


def answer(
    fetcher: Fetcher, about: AskedOf, next_offsets: dict[int, int], errors: dict[int, PylogError] | None = None
) -> None:
    """A broker's answer: frames of these partitions, up to these offsets; of others, errors."""
    partitions = tuple(
        FetchedPartition(topic="t", partition=partition, row=row, next_offset=next_offset)
        for row, (partition, next_offset) in enumerate(next_offsets.items())
    )
    failed = tuple(
        FetchedPartition(topic="t", partition=partition, error=ErrorInfo.of(error))
        for partition, error in (errors or {}).items()
    )
    response = FetchResponse(request_id=1, partitions=partitions + failed)
    fetcher.answered(1, Fetched(response, [FRAMES] * len(partitions)), about)


@pytest.mark.parametrize("others", [(), (1,), (1, 2)])
def test_fetcher_keeps_records_of_partitions_that_stay_assigned(fetcher: Fetcher, others: tuple[int, ...]) -> None:
    """W20: a changed assignment skips no record of a partition that stays."""
    kept, dropped = reading(0), reading(1)
    fetcher.set_assignment([kept, dropped])
    answer(fetcher, asked(fetcher)[1], {0: 5, 1: 7})
    fetcher.set_assignment([kept, *map(reading, others)])
    assert [arrived.next_offset for arrived in kept.completed_fetches] == [5]
    assert asked(fetcher)[0] == {0: 5} | dict.fromkeys(others, 0)
    with fetcher.condition:
        assert fetcher.take(kept) is not None
        assert fetcher.take(kept) is None


def test_fetcher_drops_answers_to_requests_of_an_earlier_assignment(fetcher: Fetcher) -> None:
    """W20: an answer in flight does not move the position of a partition that was assigned again elsewhere."""
    fetcher.set_assignment([reading(0, position=100)])
    _, about = asked(fetcher)
    fetcher.set_assignment([])
    again = reading(0, position=0)
    fetcher.set_assignment([again])
    answer(fetcher, about, {0: 120})
    assert not again.completed_fetches
    assert asked(fetcher)[0] == {0: 0}


def test_answer_about_a_topic_that_was_recreated_is_dropped(fetcher: Fetcher) -> None:
    """W20: the new one begins at the same offset, and its records are others."""
    fetcher.set_assignment([reading(0)])
    _, about = asked(fetcher)
    fetcher.set_assignment([])
    again = reading(0)
    fetcher.set_assignment([again])
    answer(fetcher, about, {0: 20})
    assert not again.completed_fetches


def test_fetcher_throws_answers_away_that_were_asked_for_before_a_seek(fetcher: Fetcher) -> None:
    """W20: else the records between the new position and that answer would be skipped."""
    state = reading(0, position=100)
    fetcher.set_assignment([state])
    _, about = asked(fetcher)
    fetcher.move(state, 10)
    answer(fetcher, about, {0: 120})
    assert not state.completed_fetches
    assert asked(fetcher)[0] == {0: 10}


def test_late_error_of_a_former_leader_is_not_the_partitions(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """W20: a broker that stood still answers when it continues. Its log ends where it stopped to lead, and the consumer
    must not begin again for that."""
    monkeypatch.setattr(fetcher, "start_threads", lambda: None)
    state = reading(0, position=100)
    fetcher.set_assignment([state])
    _, about = asked(fetcher)
    fetcher.update(led_by(2, epoch=1))
    answer(fetcher, about, {}, {0: OffsetOutOfRangeError("the log ends at 90")})
    assert state.error is None
    _, newer = asked(fetcher, 2)
    answer(fetcher, newer, {}, {0: OffsetOutOfRangeError("the log ends at 90")})
    assert isinstance(state.error, OffsetOutOfRangeError)


def test_late_answer_about_an_offset_that_is_fetched_by_now_is_thrown_away(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W20: frames count once, and an error counts for the offset that it is about."""
    monkeypatch.setattr(fetcher, "start_threads", lambda: None)
    state = reading(0, position=100)
    fetcher.set_assignment([state])
    _, about = asked(fetcher)
    answer(fetcher, about, {0: 120})
    answer(fetcher, about, {0: 130})
    answer(fetcher, about, {}, {0: OffsetOutOfRangeError("the log ends at 90")})
    assert state.error is None
    assert [arrived.next_offset for arrived in state.completed_fetches] == [120]


def test_metadata_of_earlier_leaders_changes_nothing(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """W12: what two threads have found out may come in the wrong order."""
    monkeypatch.setattr(fetcher, "start_threads", lambda: None)
    state = reading(0)
    fetcher.set_assignment([state])
    fetcher.update(led_by(2, epoch=1))
    fetcher.update(led_by(1, epoch=0))
    assert asked(fetcher)[0] == {}
    assert asked(fetcher, 2)[0] == {0: 0}


def test_failed_request_fails_no_partition_that_was_moved_since(fetcher: Fetcher) -> None:
    """W20: what went wrong at the former position is not the caller's error any more."""
    moved, other = reading(0), reading(1)
    fetcher.set_assignment([moved, other])
    _, about = asked(fetcher)
    fetcher.move(moved, 10)
    refusal = InvalidRequestError("a request that the broker does not take")
    fetcher.failed(1, about, refusal)
    assert (moved.error, other.error) == (None, refusal)


def test_fetcher_asks_others_for_the_leader_while_a_broker_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """W12: a frozen leader's successor is found when it is elected, not when the connection times out."""

    class Silent:
        address = Address("frozen", 1)
        silent_for_s = 1.0
        is_cancelled = False

        def cancel(self) -> None:
            self.is_cancelled = True

    class Asked:
        client_id = "test"

        def __init__(self) -> None:
            self.distrusted: list[Address] = []

        def distrust(self, address: Address) -> None:
            self.distrusted.append(address)

    monkeypatch.setattr(Worker, "start", lambda self: None)
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    cluster: Any = Asked()
    asked_for_leaders: list[float] = []
    fetcher = Fetcher(cluster, max_bytes=1 << 20, max_wait_ms=500, on_stale=lambda: asked_for_leaders.append(now_s[0]))
    fetcher.set_assignment([reading(0)])
    fetcher.start_threads()
    session: Any = Silent()
    fetcher._threads[1]._session = session
    fetcher.watch()
    assert (cluster.distrusted, asked_for_leaders) == ([], [])
    for silent_for_s, now in ((2.1, 101.0), (2.2, 101.1), (3.1, 102.0)):
        session.silent_for_s, now_s[0] = silent_for_s, now
        fetcher.watch()
    assert set(cluster.distrusted) == {Address("frozen", 1)}
    assert asked_for_leaders == [101.0, 102.0], "about once a second"
    assert not session.is_cancelled
    session.silent_for_s = 8.1
    fetcher.watch()
    assert session.is_cancelled


def test_fetcher_pauses_once_for_all_partitions_of_an_unreachable_broker(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many partitions of a dead broker cause no more attempts than one."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    fetcher.set_assignment(map(reading, range(3)))
    attempts = 0
    while now_s < 130.0:
        wanted, about = asked(fetcher)
        if wanted:
            attempts += 1
            assert set(wanted) == {0, 1, 2}
            fetcher.failed(1, about, BrokerUnavailableError("refused"))
        now_s += 0.005
    assert 30 <= attempts <= 70  # up to a second between attempts
    now_s += 1.0
    answer(fetcher, asked(fetcher)[1], {0: 5})
    assert set(asked(fetcher)[0]) == {0, 1, 2}


def test_lower_log_start_of_another_leader_changes_nothing_for_a_reader(fetcher: Fetcher) -> None:
    """W13: replicas delete old segments independently; the reader keeps its position, without an error."""
    state = reading(0, position=20)
    fetcher.set_assignment([state])
    for log_start, next_offset in ((20, 30), (10, 40)):
        fetched = FetchedPartition(topic="t", partition=0, row=0, next_offset=next_offset, log_start=log_start)
        fetcher.answered(1, Fetched(FetchResponse(request_id=1, partitions=(fetched,)), [FRAMES]), asked(fetcher)[1])
    assert [arrived.next_offset for arrived in state.completed_fetches] == [30, 40]
    assert state.error is None
    assert asked(fetcher)[0] == {0: 40}


def test_partitions_that_do_not_fit_a_request_are_requested_soon(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All partitions are requested in as few requests as possible, which do not wait long for data meanwhile."""
    monkeypatch.setattr("pyspark_log.client.consumer.fetcher.MOST_ENTRIES", 2)
    fetcher.set_assignment(map(reading, range(3)))
    seen = []
    for turn in range(3):
        with fetcher.condition:
            partitions, about, _ = fetcher.wanted(1, turn)
        seen.append([each.partition for each in partitions])
        assert [at.partition for at in about] == seen[-1]
        assert fetcher.request(turn, partitions, about).max_wait_ms < 100
    assert seen == [[0, 1], [2, 0], [1, 2]]
    fetcher.set_assignment([reading(0)])
    with fetcher.condition:
        partitions, about, _ = fetcher.wanted(1, 3)
    assert fetcher.request(3, partitions, about).max_wait_ms == 500


def test_request_with_many_columns_of_many_partitions_is_not_too_large(fetcher: Fetcher) -> None:
    """Column ids are most of the request: it names as many partitions as the broker accepts."""
    infos = tuple(PartitionInfo(partition=p, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for p in range(900))
    topic = Topic.from_info(TopicInfo(name="t" * 249, topic_id=bytes(16), partitions=infos))
    columns = tuple(range(61_000, 61_000 + MOST_COLUMNS))
    fetcher.set_assignment([PartitionState(topic, number, 0, columns) for number in range(900)])
    seen = set()
    for turn in range(900):
        with fetcher.condition:
            partitions, about, _ = fetcher.wanted(1, turn)
        seen.update(each.partition for each in partitions)
        if turn == 0:
            decode(encode(fetcher.request(turn, partitions, about)), FetchRequest)
        if len(seen) == 900:
            break
    assert turn < 100


# --- where ------------------------------------------------------------------------------------------------------------


def searching(where: str, partition: int = 0) -> PartitionState:
    topic = led_by(1, epoch=0)
    predicate = topic_predicate(where, topic.schema)
    return PartitionState(topic, partition, 0, None, where=RowFilter("t", topic.schema, predicate))


def test_requests_have_each_predicate_once(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """S8: as many as there is room for; the others get all frames."""
    first, second = "_metadata.offset > 7", "_metadata.offset > 8"
    fetcher.set_assignment([searching(first), searching(second, 1), searching(first, 2)])

    def predicates() -> tuple[list[int], int]:
        with fetcher.condition:
            partitions, about, _ = fetcher.wanted(1, 0)
        request = decode(encode(fetcher.request(1, partitions, about)), FetchRequest)
        return [each.predicate for each in request.partitions], len(request.predicates)

    assert predicates() == ([0, 1, 0], 2)
    monkeypatch.setattr("pyspark_log.client.consumer.fetcher.MOST_PREDICATES", 1)
    assert predicates() == ([0, -1, 0], 1)
    monkeypatch.setattr("pyspark_log.client.consumer.fetcher.MOST_STEPS_IN_ALL", 0)
    assert predicates() == ([-1, -1, -1], 0)


def test_stretches_without_matches_are_one_answer(fetcher: Fetcher) -> None:
    """S8: the position goes on behind them, and they take no room, however many there are."""
    state = searching("_metadata.offset > 7")
    fetcher.set_assignment([state])
    for next_offset, row in ((10, -1), (20, -1), (30, 0), (40, -1), (50, -1)):
        fetched = FetchedPartition(topic="t", partition=0, row=row, next_offset=next_offset)
        fetcher.answered(1, Fetched(FetchResponse(request_id=1, partitions=(fetched,)), [FRAMES]), asked(fetcher)[1])
    assert [(each.next_offset, each.buffer.size) for each in state.completed_fetches] == [(30, FRAMES.size), (50, 0)]
    assert asked(fetcher)[0] == {0: 50}


def test_answer_without_frames_moves_no_reader_of_all_records(fetcher: Fetcher) -> None:
    """Nothing was asked to be left out, so nothing can have been."""
    state = reading(0)
    fetcher.set_assignment([state])
    fetched = FetchedPartition(topic="t", partition=0, row=-1, next_offset=10)
    fetcher.answered(1, Fetched(FetchResponse(request_id=1, partitions=(fetched,)), []), asked(fetcher)[1])
    assert asked(fetcher)[0] == {0: 0}
