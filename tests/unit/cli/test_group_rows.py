"""The lines of `pylog group describe`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from broker_runtime.contract.errors import UnknownTopicOrPartitionError
from broker_runtime.contract.model import GroupDescription, GroupOffset, MemberDescription, TopicPartition
from pyspark_log import Admin
from pyspark_log.cli.group import _age, _partition_rows

GONE, NEW, OLD = TopicPartition("gone", 0), TopicPartition("new", 0), TopicPartition("old", 0)


class KnownOffsets:
    """An admin that knows two topics: ``new``, whose partition ends at 7, and ``old``."""

    def describe_topic(self, name: str) -> object:
        if name == "gone":
            raise UnknownTopicOrPartitionError("no topic 'gone'")
        return SimpleNamespace(partitions=[SimpleNamespace(partition=0, end=7)])

    def timestamps_at(self, wanted: object) -> dict[TopicPartition, None]:
        assert wanted == {}
        return {}


def test_held_partitions_are_shown_without_offsets_and_after_their_topic_was_deleted() -> None:
    """A frozen member holds deleted partitions until its session ends; the group can be described meanwhile."""
    member = MemberDescription(
        member_id="m", instance_id=None, client_id="c", host="h", kind="consumer", state="stable", epoch=2,
        topics=["gone", "new", "old"], partitions=[GONE, NEW, OLD], session_timeout_ms=1, heard_ms_ago=0,
    )  # fmt: skip
    group = GroupDescription(group_id="g", state="stable", kind="consumer", coordinator=1, epoch=2, members=(member,))
    rows = _partition_rows(cast(Admin, KnownOffsets()), group, {OLD: GroupOffset(3, 3, 0)})
    assert [(row["topic"], row["committed"], row["end"], row["lag"], row["client_id"]) for row in rows] == [
        ("gone", None, None, None, "c"),
        ("new", None, 7, None, "c"),
        ("old", 3, 3, 0, "c"),
    ]


def test_lag_of_years_is_shown_in_years() -> None:
    """Records may be stamped 1970."""
    assert [_age(None), _age(12.5), _age(31_000_000.0), _age(56 * 31_557_600.0)] == [None, 12.5, 31_000_000.0, "56y"]
