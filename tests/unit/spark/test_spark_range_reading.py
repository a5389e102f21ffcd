"""A task's reaction to brokers that report a range as gone: it is lost only if that persists."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker_runtime.contract.errors import (
    DataLossError,
    InconsistentTopicIdError,
    OffsetOutOfRangeError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import PartitionInfo, TopicInfo
from broker_runtime.contract.schema import UNTYPED
from pyspark_log.client.connection.topics import Topic
from pyspark_log.spark import range_reading
from pyspark_log.spark.options import parse_source_options
from pyspark_log.spark.planning import OffsetRange
from pyspark_log.spark.query_offsets import LogSnapshot, PlannedRange
from pyspark_log.spark.row_schema import lay_out_rows

AT = TopicPartition("t", 0)
TOPIC_ID = b"t" * 16
LOOKS_GONE = (
    OffsetOutOfRangeError("0 to 5 asked for, 0 to 3 are here"),
    DataLossError("t-0 ends at 3"),
    UnknownTopicOrPartitionError("no topic 't'"),
    InconsistentTopicIdError("it was recreated"),
)


class FakeCluster:
    """One topic. Counts the refreshes of its metadata."""

    def __init__(self) -> None:
        partition = PartitionInfo(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        self.known = Topic.from_info(TopicInfo(name="t", topic_id=TOPIC_ID, partitions=(partition,)))
        self.refreshes = 0

    def topic(self, name: str, *, max_age: Topic | None = None) -> Topic:
        self.refreshes += max_age is not None
        return self.known


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces sleeping."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    return waited


def read(monkeypatch: pytest.MonkeyPatch, failures: list[PylogError], latest: int) -> FakeCluster:
    """Reads offsets 0 to 5 of a partition that ends at ``latest``; the first attempts fail with these errors."""
    left = list(failures)

    def read_range(*_: Any, **__: Any) -> Iterator[Any]:
        if left:
            raise left.pop(0)
        yield from ()

    cluster = FakeCluster()
    snapshot = LogSnapshot(topic_ids={"t": TOPIC_ID}, earliest={AT: 0}, latest={AT: latest})
    monkeypatch.setattr(range_reading, "worker_cluster", lambda options: cluster)
    monkeypatch.setattr(range_reading, "read_range", read_range)
    monkeypatch.setattr(range_reading.BrokerLogView, "snapshot", lambda self: snapshot)
    options = parse_source_options({"subscribe": "t"})
    planned = PlannedRange(OffsetRange(AT, 0, 5), TOPIC_ID)
    assert list(range_reading.read_ranges([planned], options, lay_out_rows({"t": UNTYPED}, options))) == []
    return cluster


@pytest.mark.parametrize("error", LOOKS_GONE, ids=lambda error: type(error).__name__)
def test_range_that_one_broker_does_not_have_yet_is_retried(monkeypatch, waits, error) -> None:
    """S2: a broker that has just become leader, or does not know yet that it was deposed, fails no task."""
    cluster = read(monkeypatch, [error, error], latest=5)
    assert cluster.refreshes == 2
    assert len(waits) == 2


@pytest.mark.parametrize("error", LOOKS_GONE, ids=lambda error: type(error).__name__)
def test_range_that_stays_gone_is_lost(monkeypatch, waits, error) -> None:
    """S4: it is lost after a bounded number of attempts."""
    with pytest.raises(DataLossError, match="Some data may have been lost"):
        read(monkeypatch, [error] * 10, latest=3)
    assert len(waits) == 3


def test_range_that_looks_gone_half_way_goes_on_where_it_was(monkeypatch, waits) -> None:
    """S2: no row is read twice, however often a task has to look again."""
    asked: list[int] = []

    def read_range(cluster: Any, topic: Any, partition: int, start: int, end: int, **_: Any) -> Iterator[Any]:
        asked.append(start)
        yield SimpleNamespace(header=SimpleNamespace(next_offset=start + 2))
        if len(asked) < 3:
            raise OffsetOutOfRangeError("not here yet")

    monkeypatch.setattr(range_reading.RowAssembler, "arrays", lambda *_: None)
    monkeypatch.setattr(range_reading, "worker_cluster", lambda options: FakeCluster())
    monkeypatch.setattr(range_reading, "read_range", read_range)
    options = parse_source_options({"subscribe": "t"})
    planned = PlannedRange(OffsetRange(AT, 0, 6), TOPIC_ID)
    assert list(range_reading.read_ranges([planned], options, lay_out_rows({"t": UNTYPED}, options))) == []
    assert asked == [0, 2, 4]
