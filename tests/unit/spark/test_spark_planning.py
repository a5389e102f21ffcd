"""Ranges of offsets: the rows of Spark's KafkaOffsetRangeCalculatorSuite by name, the rate limit, sharing, data
loss.
"""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from broker_runtime.contract.predicate import parse_predicate
from pyspark_log.spark.planning import (
    OffsetRange,
    can_match,
    coalesce,
    divide,
    narrow,
    plan_batch,
    plan_ranges,
    rate_limit,
    since_ms,
)

TP1, TP2, TP3 = TopicPartition("t1", 1), TopicPartition("t2", 1), TopicPartition("t3", 1)

Spans = list[tuple[TopicPartition, int, int]]


def ranges_of(spans: Spans) -> list[OffsetRange]:
    return [OffsetRange(*span) for span in spans]


@pytest.mark.parametrize(
    ("min_partitions", "spans", "expected"),
    [
        pytest.param(None, [(TP1, 1, 2)], [(TP1, 1, 2)], id="with no minPartition: N TopicPartitions to N ranges"),
        pytest.param(None, [(TP1, 1, 2), (TP2, 1, 1)], [(TP1, 1, 2)], id="with no minPartition: empty ranges ignored"),
        pytest.param(
            3,
            [(TP1, 1, 2), (TP2, 1, 2), (TP3, 1, 2)],
            [(TP1, 1, 2), (TP2, 1, 2), (TP3, 1, 2)],
            id="minPartition=3: N TopicPartitions to N offset ranges",
        ),
        pytest.param(
            4,
            [(TP1, 1, 5)],
            [(TP1, 1, 2), (TP1, 2, 3), (TP1, 3, 4), (TP1, 4, 5)],
            id="minPartition=4: 1 TopicPartition to N offset ranges",
        ),
        pytest.param(
            4,
            [(TP1, 1, 5), (TP2, 1, 21)],
            [(TP1, 1, 5), (TP2, 1, 7), (TP2, 7, 14), (TP2, 14, 21)],
            id="N skewed TopicPartitions to M offset ranges",
        ),
        pytest.param(
            4,
            [(TP1, 1, 1), (TP2, 1, 21)],
            [(TP2, 1, 6), (TP2, 6, 11), (TP2, 11, 16), (TP2, 16, 21)],
            id="SPARK-30656: ignore empty ranges and split the rest",
        ),
        pytest.param(
            4,
            [(TP1, 1, 2), (TP2, 1, 1001)],
            [(TP1, 1, 2), (TP2, 1, 334), (TP2, 334, 667), (TP2, 667, 1001)],
            id="SPARK-30656: N very skewed TopicPartitions to M offset ranges",
        ),
        pytest.param(
            1,
            [(TP1, 1, 5), (TP2, 1, 21)],
            [(TP1, 1, 5), (TP2, 1, 21)],
            id="SPARK-30656: minPartitions less than the length of topic partitions",
        ),
        pytest.param(
            3,
            [(TP1, 1, 11)],
            [(TP1, 1, 4), (TP1, 4, 7), (TP1, 7, 11)],
            id="range inexact multiple of minPartitions",
        ),
        pytest.param(
            4,
            [(TP1, 1, 5), (TP2, 1, 21), (TP3, 1, 1)],
            [(TP1, 1, 5), (TP2, 1, 7), (TP2, 7, 14), (TP2, 14, 21)],
            id="empty ranges ignored with minPartitions",
        ),
        pytest.param(
            6,
            [(TP1, 0, 10), (TP2, 0, 10), (TP3, 0, 1)],
            [(TP1, 0, 3), (TP1, 3, 6), (TP1, 6, 10), (TP2, 0, 3), (TP2, 3, 6), (TP2, 6, 10), (TP3, 0, 1)],
            id="SPARK-28489: never drop offsets",
        ),
        pytest.param(
            9,
            [(TP1, 0, 10_000), (TP2, 0, 15_000), (TP3, 0, 20_000)],
            [(tp, i * 5000, i * 5000 + 5000) for tp, n in ((TP1, 2), (TP2, 3), (TP3, 4)) for i in range(n)],
            id="SPARK-36576: 0 small unsplit ranges and 3 large split ranges",
        ),
        pytest.param(
            6,
            [(TP1, 0, 500), (TP2, 0, 12_000), (TP3, 0, 15_001)],
            [
                (TP1, 0, 500),
                (TP2, 0, 6000),
                (TP2, 6000, 12_000),
                (TP3, 0, 5000),
                (TP3, 5000, 10_000),
                (TP3, 10_000, 15_001),
            ],
            id="SPARK-36576: 1 small unsplit range and 2 large split ranges",
        ),
        pytest.param(
            6,
            [(TP1, 0, 1), (TP2, 0, 1), (TP3, 0, 10_000)],
            [
                (TP1, 0, 1),
                (TP2, 0, 1),
                (TP3, 0, 2500),
                (TP3, 2500, 5000),
                (TP3, 5000, 7500),
                (TP3, 7500, 10_000),
            ],
            id="SPARK-36576: 2 small unsplit ranges and 1 large split range",
        ),
        pytest.param(
            4,
            [(TP1, 0, 1), (TP2, 0, 1), (TP3, 0, 2)],
            [(TP1, 0, 1), (TP2, 0, 1), (TP3, 0, 1), (TP3, 1, 2)],
            id="SPARK-46798: ranges split",
        ),
    ],
)
def test_divide_gives_the_ranges_of_kafkas_calculator(
    min_partitions: int | None, spans: Spans, expected: Spans
) -> None:
    """S3/S4: `minPartitions` splits as Kafka's source does, row by row of its suite."""
    assert divide(ranges_of(spans), min_partitions) == ranges_of(expected)


@pytest.mark.parametrize(
    ("max_records", "min_partitions", "spans", "expected"),
    [
        pytest.param(4, None, [(TP1, 1, 6)], [(TP1, 1, 3), (TP1, 3, 6)], id="SPARK-49259: 1 to N"),
        pytest.param(20, None, [(TP1, 1, 21), (TP2, 1, 21)], [(TP1, 1, 21), (TP2, 1, 21)], id="SPARK-49259: N to N"),
        pytest.param(
            20,
            1,
            [(TP1, 1, 40), (TP2, 1, 21)],
            [(TP1, 1, 20), (TP1, 20, 40), (TP2, 1, 21)],
            id="SPARK-49259: low minPartitions, the maximum wins",
        ),
        pytest.param(
            20,
            4,
            [(TP1, 1, 21), (TP2, 1, 21)],
            [(TP1, 1, 11), (TP1, 11, 21), (TP2, 1, 11), (TP2, 11, 21)],
            id="SPARK-49259: high minPartitions wins",
        ),
        pytest.param(1, 3, [(TP1, 0, 2)], [(TP1, 0, 1), (TP1, 1, 2)], id="no more than there are offsets"),
    ],
)
def test_divide_keeps_to_the_most_records(
    max_records: int, min_partitions: int | None, spans: Spans, expected: Spans
) -> None:
    """S3/S4: `maxRecordsPerPartition`, row by row of Kafka's suite."""
    divided = divide(ranges_of(spans), min_partitions, max_records)
    assert [one for one in divided if one.size] == ranges_of(expected)


@pytest.mark.parametrize(
    ("where", "one", "can"),
    [
        ("_metadata.partition = 1", OffsetRange(TP1, 0, 5), True),
        ("_metadata.partition = 2", OffsetRange(TP1, 0, 5), False),
        ("_metadata.offset >= 4", OffsetRange(TP1, 0, 5), True),
        ("_metadata.offset >= 5", OffsetRange(TP1, 0, 5), False),
        ("_metadata.offset >= 5", OffsetRange(TP1, 0, 5, binds_end=True), True),
        ("_metadata.offset < 3", OffsetRange(TP1, 3, 5), False),
        ("_metadata.offset < 3", OffsetRange(TP1, 3, 5, binds_start=True), True),
        ("_metadata.offset < 3 OR x = 1", OffsetRange(TP1, 3, 5), True),
        ("_metadata.timestamp < '1970-01-01 00:00:00Z'", OffsetRange(TP1, 3, 5), True),
    ],
)
def test_ranges_without_a_match_are_known(where: str, one: OffsetRange, can: bool) -> None:
    """S8: by partition and offset; what a range may hold when it is read counts."""
    assert can_match(parse_predicate(where, {"x": pa.int32()}), one) is can


@pytest.mark.parametrize(
    ("where", "one", "first", "expected"),
    [
        ("_metadata.offset >= 4", OffsetRange(TP1, 0, 9), 0, OffsetRange(TP1, 4, 9)),
        ("_metadata.offset BETWEEN 4 AND 6", OffsetRange(TP1, 0, 9), 0, OffsetRange(TP1, 4, 7)),
        ("_metadata.offset < 6 AND NOT _metadata.offset < 2", OffsetRange(TP1, 0, 9), 0, OffsetRange(TP1, 2, 6)),
        ("_metadata.offset > 6", OffsetRange(TP1, 0, 9), 8, OffsetRange(TP1, 8, 9)),
        ("_metadata.offset > 60", OffsetRange(TP1, 0, 9), 0, OffsetRange(TP1, 9, 9)),
        ("_metadata.offset < 3", OffsetRange(TP1, 5, 9), 5, OffsetRange(TP1, 5, 5)),
        ("x = 1", OffsetRange(TP1, 0, 9), 7, OffsetRange(TP1, 7, 9)),
        (
            "_metadata.offset = 4",
            OffsetRange(TP1, 0, 9, binds_start=True, binds_end=True),
            0,
            OffsetRange(TP1, 4, 9, binds_start=True, binds_end=True),
        ),
    ],
)
def test_ranges_are_narrowed_to_what_can_match(where: str, one: OffsetRange, first: int, expected: OffsetRange) -> None:
    """S8: by offset, and by the first record that is late enough; an end that is bound late stays."""
    assert narrow(parse_predicate(where, {"x": pa.int32()}), one, first) == expected


@pytest.mark.parametrize(
    ("where", "since"),
    [
        ("_metadata.timestamp >= '1970-01-01 00:00:02Z'", 2000),
        ("_metadata.timestamp > '1970-01-01 00:00:02Z'", 2001),
        ("_metadata.timestamp > '1970-01-01 00:00:02.0005Z'", 2001),
        ("_metadata.timestamp = '1969-01-01 00:00:02Z'", 0),
        ("_metadata.timestamp <= '1970-01-01 00:00:02Z'", None),
        ("_metadata.timestamp > '1970-01-01 00:00:02Z' OR x = 1", None),
    ],
)
def test_time_before_which_nothing_can_match(where: str, since: int | None) -> None:
    """S8: in the milliseconds of records' timestamps; never one too late."""
    assert since_ms(parse_predicate(where, {"x": pa.int32()})) == since


spans_strategy = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12)


@settings(deadline=None)
@given(
    spans_strategy,
    st.none() | st.integers(1, 60),
    st.none() | st.integers(10_000, 10**6),
    st.sampled_from([0, 1, 100, 10_000]),
)
def test_divide_and_share_neither_drop_nor_duplicate_nor_reorder_an_offset(
    spans: list[tuple[int, int]], min_partitions: int | None, max_records: int | None, coalesce_rows: int
) -> None:
    """S3: however they are split and shared, each partition's ranges adjoin in order from its start to its end."""
    ranges = [OffsetRange(TopicPartition("t", i), start, start + size) for i, (start, size) in enumerate(spans)]
    divided = divide(ranges, min_partitions, max_records)
    coalesced = coalesce(divided, coalesce_rows=coalesce_rows, min_partitions=min_partitions)
    assert max_records is None or all(one.size <= max_records for one in divided)
    for original in ranges:
        parts = [one for input_partition in coalesced for one in input_partition if one.partition == original.partition]
        if original.size == 0:
            assert not parts
            continue
        parts.sort(key=lambda one: one.start)
        assert (parts[0].start, parts[-1].end) == (original.start, original.end)
        assert all(left.end == right.start for left, right in itertools.pairwise(parts))
    for input_partition in coalesced:
        for left, right in itertools.pairwise(input_partition):
            assert left.partition < right.partition or left.end == right.start
        assert len(input_partition) == 1 or sum(one.size for one in input_partition) <= coalesce_rows


def test_share_packs_small_ranges_in_order_up_to_the_limit() -> None:
    """S3: small ranges share an input partition; large ones have their own."""
    ranges = [OffsetRange(TopicPartition("t", i), 0, size) for i, size in enumerate([4, 5, 10, 3, 1, 20, 6])]
    sizes = [[one.size for one in input_partition] for input_partition in coalesce(ranges, coalesce_rows=10)]
    assert sorted(sizes) == sorted([[10], [20], [4, 5], [3, 1, 6]])


def test_share_is_off_at_zero_and_when_it_would_undo_min_partitions() -> None:
    """S3: `coalesceRows=0` turns sharing off, and `minPartitions` wins over it."""
    ranges = [OffsetRange(TopicPartition("t", i), 0, 1) for i in range(6)]
    assert len(coalesce(ranges, coalesce_rows=0)) == 6
    assert len(coalesce(ranges, coalesce_rows=100)) == 1
    assert len(coalesce(ranges, coalesce_rows=100, min_partitions=6)) == 6


@pytest.mark.parametrize(
    ("limit", "backlog", "taken"),
    [
        pytest.param(10, [1, 25, 100], [1, 1, 7], id="proportional; ceil below one, floor above"),
        pytest.param(10, [0, 0, 0], [0, 0, 0], id="nothing to read"),
        pytest.param(3, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], id="small partitions never starve, the total may exceed"),
        pytest.param(1000, [5, 7], [5, 7], id="never past the end"),
        pytest.param(2**63 - 1, [10, 2**62], [10, 2**62], id="SPARK-26718 Rate limit set to Long.Max"),
    ],
)
def test_rate_limit_is_divided_as_kafkas_source_does(limit: int, backlog: list[int], taken: list[int]) -> None:
    """S4: `maxOffsetsPerTrigger` in proportion to the backlog."""
    start = {TopicPartition("t", i): 5 for i in range(len(backlog))}
    end = {TopicPartition("t", i): 5 + size for i, size in enumerate(backlog)}
    limited = rate_limit(limit, start, end)
    assert [limited[partition] - 5 for partition in end] == taken


def test_rate_limit_of_kafkas_suite_maxoffsetspertrigger() -> None:
    """S4: the figures of KafkaMicroBatchSourceSuite's maxOffsetsPerTrigger: 1/1/8, then 1/1/9."""
    tps = [TopicPartition("t", i) for i in range(3)]
    end = dict(zip(tps, [1, 11, 101], strict=True))  # 100-200, 10-20, 1 records
    first = rate_limit(10, dict.fromkeys(tps, 0), end)
    assert [first[tp] for tp in tps] == [1, 1, 8]
    second = rate_limit(10, first, end)
    assert [second[tp] - first[tp] for tp in tps] == [0, 1, 9]


def test_plan_ranges_starts_new_partitions_at_earliest() -> None:
    """S4: a partition that appears while the query runs is read from its first record."""
    plan = plan_ranges({TP1: 3}, {TP1: 5, TP2: 2}, {TP2: 0})
    assert plan.ranges == (OffsetRange(TP1, 3, 5), OffsetRange(TP2, 0, 2))
    assert plan.losses == ()


@pytest.mark.parametrize(
    ("start", "end", "earliest", "recreated", "says", "kept"),
    [
        ({TP1: 3, TP2: 1}, {TP1: 5}, {}, (), "t2-1 were deleted", [(TP1, 3, 5)]),
        ({}, {TP1: 9}, {TP1: 4}, (), "starts at offset 4 instead of 0", [(TP1, 4, 9)]),
        ({}, {TP1: 9}, {}, (), "cannot be found", []),
        ({TP1: 2}, {TP1: 1}, {TP1: 0}, (), "was changed from 2 to 1", [(TP1, 0, 1)]),
        ({TP1: 2}, {TP1: 7}, {TP1: 0}, (TP1,), "recreated", [(TP1, 0, 7)]),
    ],
    ids=["PARTITIONS_DELETED", "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", "INITIAL_OFFSET_NOT_FOUND",
         "PARTITION_OFFSET_CHANGED", "topic recreated"],
)  # fmt: skip
def test_plan_ranges_names_lost_ranges_and_keeps_existing_ones(
    start: dict, end: dict, earliest: dict, recreated: tuple, says: str, kept: Spans
) -> None:
    """S4: each sub-class of Kafka's data loss is found; existing records are read, and none twice."""
    plan = plan_ranges(start, end, earliest, recreated)
    assert len(plan.losses) == 1
    assert says in plan.losses[0]
    assert list(plan.ranges) == ranges_of(kept)


def test_plan_batch_keeps_late_bound_ends_through_splitting_even_when_empty() -> None:
    """S4 (late binding): a cached plan finds later records, also in a partition that was empty when planned."""
    start, end = {TP1: EARLIEST, TP2: 2}, {TP1: LATEST, TP2: 6}
    ranges = plan_batch(start, end, {TP1: 0, TP2: 0}, {TP1: 0, TP2: 9})
    assert ranges == [OffsetRange(TP1, 0, 0, binds_start=True, binds_end=True), OffsetRange(TP2, 2, 6)]
    assert divide(ranges) == ranges
    split = divide([OffsetRange(TP1, 0, 10, binds_start=True, binds_end=True)], 2)
    assert split == [
        OffsetRange(TP1, 0, 5, binds_start=True),
        OffsetRange(TP1, 5, 10, binds_start=True, binds_end=True),
    ]


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ({TP1: 0}, {TP1: 0, TP2: 0}, "should have the same topic-partitions"),
        ({TP1: 1}, {TP1: 0}, "The specified start offset 1 is greater than the end offset 0 for topic t1 partition 1"),
        ({TP1: 3}, {TP1: LATEST}, "The resolved start offset 3 is greater than the resolved end offset 1 for topic t1"),
        ({TP1: EARLIEST}, {TP1: 0}, "greater than the resolved end offset 0"),
    ],
    ids=["specified topic-partitions for start and end should match", "unresolved start > end",
         "resolved start > end with latest", "resolved start > end without latest"],
)  # fmt: skip
def test_plan_batch_refuses_reversed_ranges(start: dict, end: dict, says: str) -> None:
    """S4: the range checks of KafkaRelationSuite."""
    with pytest.raises(OptionError) as caught:
        plan_batch(start, end, {TP1: 1, TP2: 0}, {TP1: 1, TP2: 0})
    assert says in str(caught.value)


def test_plan_batch_says_that_an_end_was_looked_up_by_time() -> None:
    """KafkaRelationSuite "resolved start offset greater than end offset (without latest)": nobody wrote that end."""
    with pytest.raises(OptionError) as caught:
        plan_batch({TP1: 3}, {TP1: 1}, {TP1: 0}, {TP1: 2}, is_written=False)
    assert "The resolved start offset 3 is greater than the resolved end offset 1 for topic t1" in str(caught.value)
