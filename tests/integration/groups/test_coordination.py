"""Groups over three real brokers: sharing, coordinators that die or stop, offsets that survive both."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    DeleteGroupRequest,
    DescribeGroupRequest,
    DescribeGroupResponse,
    Empty,
    ListGroupsRequest,
    ListGroupsResponse,
    RemoveGroupMembersRequest,
)
from pyspark_log import Admin
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.testing import LocalCluster
from tests.integration.groups.members import GroupCaller, Member, entries, refused, settle

PARTITIONS = 6
ALL = set(range(PARTITIONS))


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    """Three brokers; each test leaves them running."""
    with LocalCluster(brokers=3, settings={"group.min.session.timeout.ms": "1s"}) as made:
        with Admin(made.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=PARTITIONS, replication_factor=3)
        yield made


@pytest.fixture
def cluster(brokers: LocalCluster) -> Iterator[Cluster]:
    """A client's connection to the cluster."""
    made = Cluster.at(brokers.bootstrap_servers)
    made.refresh()
    yield made
    made.close()


def test_one_member_has_every_partition_and_two_share(cluster: Cluster) -> None:
    """W22: one member has every partition, two share them, and the one that remains has all again."""
    first = Member(cluster, "shared", "t")
    took_s = settle([first], lambda: first.held == ALL, "one has all")
    assert took_s < 10
    second = Member(cluster, "shared", "t")
    settle([first, second], lambda: len(first.held) == len(second.held) == 3, "both have a half")
    assert first.held | second.held == ALL
    second.leave()
    settle([first], lambda: first.held == ALL, "the first has all again")
    first.leave()


def test_killed_coordinators_groups_are_taken_over_within_seconds(brokers: LocalCluster, cluster: Cluster) -> None:
    """W19: members keep their epochs and partitions, and committed offsets are there."""
    members = [Member(cluster, "killed", "t") for _ in range(2)]
    settle(members, lambda: all(len(member.held) == 3 for member in members), "both have a half")
    held = [set(member.held) for member in members]
    epochs = [member.epoch for member in members]
    for member in members:
        assert member.commit(dict.fromkeys(member.held, 7)) == [None] * 3
    coordinator = members[0].coordinator
    assert coordinator is not None
    brokers.kill(coordinator)
    started_s = time.monotonic()
    try:
        for member in members:
            member.beat()
        took_s = time.monotonic() - started_s
        assert members[0].coordinator != coordinator
        assert [set(member.held) for member in members] == held
        assert [member.epoch for member in members] == epochs
        assert members[0].committed() == dict.fromkeys(ALL, 7)
        for member in members:
            assert member.commit(dict.fromkeys(member.held, 8)) == [None] * 3
        assert members[1].committed() == dict.fromkeys(ALL, 8)
        assert took_s < 12, "less than the broker's session"
        members[1].leave()
        settle(members[:1], lambda: members[0].held == ALL, "who stays has all")
        members[0].leave()
    finally:
        brokers.start(coordinator)
        brokers.wait_until_ready()


def test_member_that_died_with_its_coordinator_loses_its_partitions_after_its_session(
    brokers: LocalCluster, cluster: Cluster
) -> None:
    """W24: the successor waits for the dead member's whole session before it reassigns its partitions."""
    members = [Member(cluster, "both", "t", session_timeout_ms=3_000) for _ in range(2)]
    settle(members, lambda: all(len(member.held) == 3 for member in members), "both have a half")
    coordinator = members[0].coordinator
    assert coordinator is not None
    brokers.kill(coordinator)
    started_s = time.monotonic()
    try:
        settle(members[:1], lambda: members[0].held == ALL, "the live one has all")
        assert 3 < time.monotonic() - started_s < 20
        assert refused(members[1].heartbeat) == "UNKNOWN_MEMBER_ID"
        members[0].leave()
    finally:
        brokers.start(coordinator)
        brokers.wait_until_ready()


def test_stopped_coordinator_gives_up_its_groups_at_once(brokers: LocalCluster, cluster: Cluster) -> None:
    member = Member(cluster, "stopped", "t")
    settle([member], lambda: member.held == ALL, "it has all")
    epoch, coordinator = member.epoch, member.coordinator
    assert coordinator is not None
    brokers.stop(coordinator)
    try:
        started_s = time.monotonic()
        member.beat()
        assert time.monotonic() - started_s < 10, "less than the broker's session"
        assert (member.epoch, member.held) == (epoch, ALL)
        assert member.coordinator != coordinator
        member.leave()
    finally:
        brokers.start(coordinator)
        brokers.wait_until_ready()


def test_added_and_deleted_partitions_are_reassigned_within_a_second(brokers: LocalCluster, cluster: Cluster) -> None:
    with Admin(brokers.bootstrap_servers) as admin:
        member = Member(cluster, "changes", "grows")
        settle([member], lambda: member.epoch > 0, "it is a member")
        assert member.held == set()
        admin.create_topic("grows", partitions=2)
        took_s = settle([member], lambda: member.held == {0, 1}, "it has the new topic")
        admin.create_partitions("grows", 4)
        took_s = max(took_s, settle([member], lambda: member.held == {0, 1, 2, 3}, "it has the new partitions"))
        admin.delete_topic("grows")
        took_s = max(took_s, settle([member], lambda: member.held == set(), "what is gone is taken away"))
        assert took_s < 8, "of which a busy machine takes the most"
        member.leave()


def test_offsets_are_committed_by_members_or_without_members(cluster: Cluster) -> None:
    """W18: a non-member may commit only to groups without members."""
    nobody = GroupCaller(cluster, "offsets")

    def commit(offset: int) -> CommitOffsetsResponse:
        request = CommitOffsetsRequest(group_id="offsets", offsets=entries("t", {0: offset}))
        return nobody.call("commit_offsets", request, CommitOffsetsResponse)

    assert nobody.committed() == {}
    assert commit(3).errors == (None,)
    member = Member(cluster, "offsets", "t")
    settle([member], lambda: member.held == ALL, "it has all")
    assert refused(lambda: commit(4)) == "NON_EMPTY_GROUP"
    assert member.commit({0: 5}) == [None]
    late = member.sequence - 1
    member.sequence = late - 1
    assert member.commit({0: 4}) == ["STALE_MEMBER_EPOCH"], "a commit that arrives late takes nothing back"
    member.leave()
    assert refused(lambda: member.commit({0: 6})) == "UNKNOWN_MEMBER_ID"
    assert nobody.committed() == {0: 5}
    assert commit(1).errors == (None,)
    assert nobody.committed() == {0: 1}


def test_administrators_see_and_change_groups(brokers: LocalCluster, cluster: Cluster) -> None:
    caller = GroupCaller(cluster, "seen")
    member = Member(cluster, "seen", "t", client_id="c", client_host="h")
    settle([member], lambda: member.held == ALL, "it has all")
    member.beat()  # it has carried out its assignment

    def listed(broker_id: int):
        channel = cluster._channel(cluster.address_of(broker_id))
        answer = channel.call("list_groups", ListGroupsRequest(), ListGroupsResponse, timeout_s=10)
        return {group.group_id: group for group in answer.groups}

    settle([member], lambda: listed(member.coordinator)["seen"].state == "stable", "its coordinator has looked")
    for broker_id in brokers.broker_ids:
        group = listed(broker_id)["seen"]
        assert (group.state, group.kind, group.members, group.coordinator) == (
            "stable", "consumer", 1, member.coordinator,
        )  # fmt: skip
    described = caller.call("describe_group", DescribeGroupRequest(group_id="seen"), DescribeGroupResponse)
    (info,) = described.members
    assert (info.member_id, info.client_id, info.client_host) == (member.member_id, "c", "h")
    assert [(part.topic, set(part.partitions)) for part in info.assignment] == [("t", ALL)]
    alter = AlterGroupOffsetsRequest(group_id="seen", offsets=entries("t", {0: 9}))
    delete = DeleteGroupRequest(group_id="seen")
    assert refused(lambda: caller.call("alter_group_offsets", alter, CommitOffsetsResponse)) == "NON_EMPTY_GROUP"
    assert refused(lambda: caller.call("delete_group", delete, Empty)) == "NON_EMPTY_GROUP"
    remove = RemoveGroupMembersRequest(group_id="seen", members=(member.member_id,))
    caller.call("remove_group_members", remove, Empty)
    assert refused(member.heartbeat) == "UNKNOWN_MEMBER_ID"
    member.leave()
    caller.call("alter_group_offsets", alter, CommitOffsetsResponse)
    assert caller.committed() == {0: 9}
    caller.call("delete_group", delete, Empty)
    assert refused(lambda: caller.call("delete_group", delete, Empty)) == "GROUP_ID_NOT_FOUND"
    assert caller.committed() == {}
    assert all("seen" not in listed(broker_id) for broker_id in brokers.broker_ids)
