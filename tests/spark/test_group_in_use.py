"""S5: a streaming query is the only member of its group, with real brokers and a real Spark."""

from __future__ import annotations

import os
import signal
import time
import uuid

import pytest

from pyspark_log import Consumer
from pyspark_log.errors import GroupInUseError
from tests.spark.queries import (
    failure_of,
    running,
    source_processes,
    stream_of,
    wait_for_commit,
    wait_for_rows,
)
from tests.waiting import wait_until

SESSION_S = 10.0
SPARE_S = 45.0  # for a busy machine: a query takes seconds to start


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(new_topic, send) -> str:
    name = new_topic()
    send(name, range(5))
    return name


@pytest.fixture
def frame(spark, options, topic, group):
    return stream_of(spark, {**options, "subscribe": topic, "startingOffsets": "earliest", "pylog.group.id": group})


def test_second_running_query_with_the_same_group_is_refused(frame, topic, group, admin, tmp_path) -> None:
    """S5: of two running queries with one id the second fails with GROUP_IN_USE, and the first continues."""
    with running(frame, str(tmp_path / "first")) as (first, collected):
        wait_for_rows(first, collected, 5)
        described = admin.describe_group(group)
        (member,) = described.members
        assert (described.kind, list(member.topics), member.session_timeout_ms) == ("spark", [topic], 10_000)
        with running(frame, str(tmp_path / "second")) as (second, nothing):
            error = failure_of(second)
        assert "[GROUP_IN_USE]" in error
        assert group in error
        assert member.member_id in error
        assert nothing.rows == []
        assert first.isActive
        assert [each.member_id for each in admin.describe_group(group).members] == [member.member_id]


def test_stopped_query_frees_its_group_at_once(frame, group, admin, send, topic, checkpoint) -> None:
    """S5: an orderly stop leaves the group, so the next start waits for nothing."""
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_for_commit(checkpoint, 0)
    wait_until(lambda: not admin.describe_group(group).members, "the group is free", SESSION_S / 2)
    send(topic, ["5"])
    with running(frame, checkpoint, collected) as (query, _):
        wait_for_rows(query, collected, 6)


def test_killed_query_can_be_started_again(frame, topic, group, admin, send, checkpoint) -> None:
    """S5: a killed process cannot leave the group; its restart waits for the session, and does not fail."""
    with running(frame, checkpoint) as (query, collected):
        wait_for_rows(query, collected, 5)
        wait_for_commit(checkpoint, 0)
        (killed,) = admin.describe_group(group).members
        for pid in source_processes():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not query.isActive, "the query notices")
    send(topic, ["5"])
    started_s = time.monotonic()
    with running(frame, checkpoint, collected) as (query, _):
        wait_for_rows(query, collected, 6)
        assert time.monotonic() - started_s < SESSION_S + SPARE_S
        assert [member.member_id for member in admin.describe_group(group).members] != [killed.member_id]
        at_6 = lambda: [offset.committed for offset in admin.list_group_offsets(group).values()] == [6]  # noqa: E731
        wait_until(at_6, "its progress is published", SPARE_S)


def test_query_and_consumers_do_not_share_a_group(frame, topic, group, pylog_cluster, tmp_path) -> None:
    """S5: a query takes all partitions; a group has either one query or consumers."""
    given = {"bootstrap_servers": pylog_cluster.bootstrap_servers, "group_id": group, "client_id": "worker"}
    with running(frame, str(tmp_path / "first")) as (query, collected):
        wait_for_rows(query, collected, 5)
        with pytest.raises(GroupInUseError, match=group):
            Consumer(topic, **given)
    with Consumer(topic, **given), running(frame, str(tmp_path / "second")) as (query, _):
        assert "worker" in failure_of(query)
