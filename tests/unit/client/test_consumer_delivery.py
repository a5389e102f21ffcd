"""What a consumer returns to its caller, and what it raises when something goes wrong."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Deadline
from tests.unit.client.consumer_samples import MemoryCluster, Parts, make_topic

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


def test_broken_thread_is_raised_once_by_the_next_poll(parts: Parts) -> None:
    """A defect in one of the consumer's threads is not silent."""
    parts.fetcher.thread_ended(ZeroDivisionError("a defect"), 1)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        parts.delivery.poll_records(Deadline(60.0), 500)
    parts.arrives(GOOD, b"a")
    assert len(parts.delivery.poll_records(Deadline(0.0), 500)) == 1
