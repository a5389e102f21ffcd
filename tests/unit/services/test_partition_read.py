"""What one partition has for a fetch, and when that suffices for an answer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.frame import iter_frames
from broker_runtime.contract.streams import FetchPartition
from broker_runtime.services.partition_read import (
    PartitionRead,
    answer_of,
    close_reads,
    is_enough,
    load_found,
    read_for_consumer,
    read_for_follower,
)
from tests import callers
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame, leadership

ERROR = UnknownTopicOrPartitionError("no topic")


class Found:
    """A slice that reports how much it has."""

    def __init__(self, size_bytes: int, next_offset: int) -> None:
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.closed = 0
        self.loaded: list[Any] = []

    def load(self) -> pa.Buffer:
        self.loaded.append("all")
        return pa.py_buffer(b"all")

    def load_projected(self, columns: Any) -> pa.Buffer:
        self.loaded.append(columns)
        return pa.py_buffer(b"some")

    def close(self) -> None:
        self.closed += 1


def wanted(offset: int = 10, **given: Any) -> FetchPartition:
    return FetchPartition(topic="t", topic_id=TOPIC_ID.bytes, partition=0, offset=offset, **given)


def read(found: tuple[int, int] | None = None, *, asks: dict[str, Any] | None = None, **given: Any) -> PartitionRead:
    slice_: Any = None if found is None else Found(*found)
    return PartitionRead(wanted(**(asks or {})), found=slice_, **given)


@pytest.mark.parametrize(
    ("reads", "enough"),
    [
        ([], False),
        ([read()], False),
        ([read((99, 12), readable_end=12)], False),
        ([read((100, 12), readable_end=12)], True),
        ([read((60, 12), readable_end=12), read(), read((40, 7), readable_end=7)], True),
        ([read((60, 12), readable_end=12), read((39, 7), readable_end=7)], False),
        ([read((1, 12), readable_end=13)], True),
        ([read((1, 12), readable_end=12), read(error=ERROR)], True),
        ([read(diverging=(3, 8))], True),
        ([read(asks={"log_start": 4}, log_start=5)], True),
        ([read(asks={"log_start": 5}, log_start=5)], False),
        ([read(asks={"log_start": 0}, log_start=1)], True),
        ([read(asks={"log_start": -1}, log_start=5)], False),
    ],
    ids=[
        "nothing is asked for",
        "nothing is there",
        "less than is wanted",
        "as much as is wanted",
        "as much in all",
        "less in all",
        "more than one answer takes",
        "an error",
        "a follower that must truncate",
        "a follower with deleted records",
        "a follower without",
        "a follower with all records, of which some were deleted",
        "a consumer",
    ],
)
def test_answer_waits_until_it_has_enough(reads: list[PartitionRead], enough: bool) -> None:
    """`fetch.min.bytes` counts over all partitions; errors, and data that cannot grow, are not held back."""
    assert is_enough(reads, min_bytes=100) is enough


def test_answer_without_a_least_size_is_enough_at_once() -> None:
    """This is a fetch that does not wait."""
    assert is_enough([read()], min_bytes=0)


def test_answer_to_a_consumer_has_only_news_of_a_partition() -> None:
    """Rows, an error, or a high watermark above its position are new; it knows everything else."""
    assert answer_of(read(high_watermark=10), -1, is_replica=False) is None
    ahead = answer_of(
        read(high_watermark=11, last_stable_offset=11, log_start=2, log_end=13, leader_epoch=4), -1, is_replica=False
    )
    assert ahead is not None
    assert (ahead.row, ahead.next_offset, ahead.high_watermark, ahead.last_stable_offset) == (-1, 10, 11, 11)
    assert (ahead.log_start, ahead.log_end, ahead.leader_epoch, ahead.error) == (2, 13, 4, None)
    assert (ahead.topic, ahead.partition, ahead.diverging_epoch, ahead.diverging_end) == ("t", 0, -1, -1)
    failed = answer_of(read(error=ERROR), -1, is_replica=False)
    assert failed is not None
    assert failed.error is not None
    assert failed.error.code == ERROR.code
    rows = answer_of(read((5, 14), high_watermark=3), 2, is_replica=False)
    assert rows is not None
    assert (rows.row, rows.next_offset) == (2, 14)


def test_rows_that_could_not_be_loaded_advance_no_position() -> None:
    """Rows that are missing in the answer are fetched again."""
    answer = answer_of(read((5, 14), high_watermark=20), -1, is_replica=False)
    assert answer is not None
    assert answer.next_offset == 10


def test_every_answer_to_a_follower_has_the_marks() -> None:
    """It needs the high watermark, and the point where it diverged."""
    quiet = answer_of(read(high_watermark=10), -1, is_replica=True)
    assert quiet is not None
    assert (quiet.next_offset, quiet.high_watermark) == (10, 10)
    away = answer_of(read(diverging=(3, 8)), -1, is_replica=True)
    assert away is not None
    assert (away.diverging_epoch, away.diverging_end) == (3, 8)


def test_columns_are_read_only_when_some_are_selected() -> None:
    """Selecting no column is a selection too: then only what every frame has is read."""
    assert load_found(read()) is None
    for columns, loaded in ((None, "all"), ([], []), ([3], [3])):
        one = read((5, 14), asks={"columns": columns})
        buffer = load_found(one)
        assert buffer is not None
        assert buffer.to_pybytes() == (b"all" if columns is None else b"some")
        assert [list(each) if each != "all" else each for each in one.found.loaded] == [loaded]  # type: ignore[union-attr]


def test_found_slice_is_released_once() -> None:
    """Otherwise its file would stay open, or a second close would close another's."""
    one, none = read((5, 14)), read()
    found: Any = one.found
    close_reads([one, none])
    close_reads([one, none])
    assert (found.closed, one.found) == (1, None)


def test_consumer_finds_committed_records_within_its_room() -> None:
    """The first partition with data returns at least one frame, however little room there is."""
    hosted = Hosted()
    for number in range(3):
        hosted.append(b"%d" % number)
    hosted.only.log.append_as_leader([frame(b"not committed")], leader_epoch=1, now_ms=NOW_MS)
    one = PartitionRead(wanted(1, leader_epoch=1), hosted.only)
    read_for_consumer(one, 1 << 20, is_first=True, is_committed=True)
    assert (one.high_watermark, one.readable_end, one.log_start, one.log_end) == (3, 3, 0, 4)
    assert one.found is not None
    assert [header.base_offset for header, _ in iter_frames(load_found(one))] == [1, 2]
    one.found.close()
    for room_bytes, is_first, ends in ((1, True, 2), (0, True, 2), (0, False, None), (-5, False, None)):
        one = PartitionRead(wanted(1, leader_epoch=1), hosted.only)
        read_for_consumer(one, room_bytes, is_first=is_first, is_committed=True)
        assert (one.found.next_offset if one.found is not None else None) == ends
        assert (one.high_watermark, one.log_end) == (3, 4)
        close_reads([one])


def test_consumer_without_room_still_learns_that_it_asks_the_wrong_leader() -> None:
    """Otherwise it would keep asking while others fill its answers."""
    hosted = Hosted()
    for room_bytes in (0, 1 << 20):
        with pytest.raises(FencedLeaderEpochError):
            read_for_consumer(
                PartitionRead(wanted(0, leader_epoch=0), hosted.only), room_bytes, is_first=False, is_committed=True
            )
    hosted.only.become_follower(leadership(2, leader=2, replicas=(1, 2), in_sync=(2,)))
    with pytest.raises(NotLeaderOrFollowerError):
        read_for_consumer(PartitionRead(wanted(0), hosted.only), 0, is_first=False, is_committed=True)


def follower_read(
    hosted: Hosted, offset: int, *, is_report: bool = True, room_bytes: int = 1 << 20, **given: Any
) -> PartitionRead:
    asks = wanted(offset, leader_epoch=1, durable_end=offset, last_fetched_epoch=1 if offset else -1, **given)
    one = PartitionRead(asks, hosted.only)
    replica = callers.follower(2)
    read_for_follower(one, room_bytes, replica, 0, is_first=True, is_report=is_report)
    return one


def replicated() -> Hosted:
    hosted = Hosted()
    hosted.only.become_leader(leadership(1, replicas=(1, 2), in_sync=(1, 2), version=1))
    for number in range(3):
        hosted.only.append([frame(b"%d" % number)], acks=1, leader_epoch=-1, now_ms=NOW_MS)
    hosted.only.log.flush()
    return hosted


def test_follower_finds_uncommitted_records_and_its_end_is_counted() -> None:
    """Its fetch is its report: it raises the high watermark to the end that both have, once."""
    hosted = replicated()
    one = follower_read(hosted, 2, is_report=False)
    assert one.high_watermark == 0
    close_reads([one])
    one = follower_read(hosted, 2)
    assert (one.high_watermark, one.readable_end, one.log_end, one.leader_epoch) == (2, 3, 3, 1)
    assert one.found is not None
    assert one.found.next_offset == 3
    close_reads([one])


def test_follower_out_of_range_gets_the_logs_range() -> None:
    """It begins again at the log start, in this leader epoch."""
    hosted = replicated()
    close_reads([follower_read(hosted, 3)])
    assert hosted.only.log.delete_records(2) == 2
    below = PartitionRead(wanted(1, leader_epoch=1, durable_end=1, last_fetched_epoch=1), hosted.only)
    with pytest.raises(OffsetOutOfRangeError):
        read_for_follower(below, 1 << 20, callers.follower(2), 0, is_first=True, is_report=True)
    assert (below.log_start, below.log_end, below.leader_epoch) == (2, 3, 1)
