"""Consumer groups through `Admin`, on a real broker: their members, the age of their lag, removing members."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_log import Admin, Consumer, GroupListing, Producer, TopicPartition, errors
from tests.waiting import wait_until

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
LIMIT_S = 60.0


def at_hour(hours: int) -> datetime:
    return START + timedelta(hours=hours)


def test_admin_reports_when_records_were_created(new_topic: Callable[..., str], admin: Admin) -> None:
    """S9: the age of a group's oldest unread record is reported: for frames with one or several timestamps, in typed
    topics, from the log's start if it lies above the commit, and as none where there is no record.
    """
    name, typed = new_topic(2), new_topic(1, schema="a int32")
    p0, p1, t0 = TopicPartition(name, 0), TopicPartition(name, 1), TopicPartition(typed, 0)
    with Producer(linger_ms=200) as producer:
        for hour in range(3):
            producer.send(name, b"x", partition=0, timestamp=at_hour(hour))
        producer.flush()
        producer.send(name, b"x", partition=0, timestamp=at_hour(3))
        producer.send_batch(typed, pa.table({"a": pa.array([1, 2], pa.int32())})).result(30)
    for offset in range(4):
        assert admin.timestamps_at({p0: offset, p1: 0}) == {p0: at_hour(offset), p1: None}
    assert admin.timestamps_at({p0: 4}) == {p0: None}
    typed_time = admin.timestamps_at({t0: 1})[t0]
    assert typed_time is not None
    assert abs(typed_time - datetime.now(UTC)) < timedelta(minutes=5)
    admin.delete_records({p0: 2})
    assert admin.timestamps_at({p0: 0}) == {p0: at_hour(2)}
    assert admin.timestamps_at({}) == {}


def test_admin_describes_a_group_and_removes_members(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W22, W27: members and their partitions are shown, static ones by name; a removed member's partitions go to the
    other.
    """
    name, group = new_topic(2), new_group()
    with (
        Consumer(name, group_id=group, client_id="one", group_instance_id="i-1", session_timeout_ms=6_000) as one,
        Consumer(name, group_id=group, client_id="two", session_timeout_ms=6_000) as two,
    ):
        wait_until(
            lambda: (one.poll(0.1), two.poll(0.1)) and [len(each.assignment()) for each in (one, two)] == [1, 1],
            "they share",
            LIMIT_S,
            pause_s=0,
        )
        wait_until(lambda: admin.describe_group(group).state == "stable", "they have said that they have it", LIMIT_S)
        described = admin.describe_group(group)
        assert (described.kind, described.coordinator) == ("consumer", 1)
        first, second = described.members
        assert (first.client_id, first.instance_id, second.client_id, second.instance_id) == ("one", "i-1", "two", None)
        assert set(first.partitions) == one.assignment()
        assert {at for member in described.members for at in member.partitions} == {(name, 0), (name, 1)}
        assert [each for each in admin.list_groups() if each.group_id == group] == [
            GroupListing(group_id=group, state=described.state, kind="consumer", members=2, coordinator=1)
        ]
        for refused in (lambda: admin.delete_group(group), lambda: admin.alter_group_offsets(group, {(name, 0): 0})):
            with pytest.raises(errors.NonEmptyGroupError):
                refused()
        with pytest.raises(errors.UnknownMemberIdError):
            admin.remove_group_members(group, ["i-1", "nobody"])
        admin.remove_group_members(group, ["i-1"])
        # `one` is not polled, and so does not rejoin.
        wait_until(lambda: two.poll(0.1) or len(two.assignment()) == 2, "the other has both", LIMIT_S, pause_s=0)
    admin.delete_group(group)
    with pytest.raises(errors.GroupIdNotFoundError):
        admin.describe_group(group)
    with pytest.raises(errors.GroupIdNotFoundError):
        admin.delete_group(group)
