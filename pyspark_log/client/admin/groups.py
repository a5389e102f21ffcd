"""Consumer groups as an administrator sees and changes them: requests to the groups' coordinators.

Rule: a coordinator answers with what is in ZooKeeper. Every change may be requested again if its answer was lost:
offsets are set, not moved; a group that is gone was deleted; members that are gone were removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_runtime.contract.errors import GroupIdNotFoundError, InvalidRequestError, UnknownMemberIdError
from broker_runtime.contract.model import (
    GroupDescription,
    GroupListing,
    GroupOffset,
    MemberDescription,
    TopicPartition,
    check_group_id,
)
from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    DeleteGroupRequest,
    DescribeGroupRequest,
    DescribeGroupResponse,
    Empty,
    GroupInfo,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberInfo,
    RemoveGroupMembersRequest,
)
from pyspark_log.client.admin import descriptions
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator


def list_groups(cluster: Cluster, *, timeout_s: float | None = None) -> list[GroupListing]:
    """All groups by id, including those that have only offsets."""
    response = cluster.call("list_groups", ListGroupsRequest(), ListGroupsResponse, timeout_s=timeout_s)
    return [_listing(group) for group in sorted(response.groups, key=lambda group: group.group_id)]


def describe_group(cluster: Cluster, group_id: str, *, timeout_s: float | None = None) -> GroupDescription:
    """The group and its members, by client id, then member id. Raises `GroupIdNotFoundError`."""
    request = DescribeGroupRequest(group_id=check_group_id(group_id))
    response = cluster.call(
        "describe_group", request, DescribeGroupResponse, to=Coordinator(group_id), timeout_s=timeout_s
    )
    return described(response)


def described(response: DescribeGroupResponse) -> GroupDescription:
    """A coordinator's answer as the public description."""
    return GroupDescription(
        group_id=response.group.group_id,
        state=response.group.state,
        kind=response.group.kind,
        coordinator=_broker(response.group),
        epoch=response.epoch,
        members=tuple(sorted(map(_member, response.members), key=lambda member: (member.client_id, member.member_id))),
    )


def list_group_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, GroupOffset]:
    """The group's committed offsets, the ends of the partitions, and the lag; empty for an unknown group. If a leader
    does not answer within seconds, the end and the lag are -1."""
    committed = offsets.committed(cluster, check_group_id(group_id), None)
    topics = descriptions.topics_with_offsets(cluster, sorted({at.topic for at in committed}))
    ends = {
        TopicPartition(topic.name, partition.partition): partition.committed_end
        for topic in topics
        for partition in topic.partitions
    }
    return {
        at: GroupOffset(offset, ends[at], max(0, ends[at] - offset) if ends[at] >= 0 else -1)
        for at, offset in sorted(committed.items())
    }


def alter_group_offsets(cluster: Cluster, group_id: str, new: Mapping[TopicPartition, int]) -> None:
    """Sets the group's next offsets. A refusal for one partition does not affect others; the first one is raised.

    Raises `NonEmptyGroupError`, `UnknownTopicOrPartitionError`, `InvalidRequestError` for a value that is no offset.
    """
    check_group_id(group_id)
    for at, offset in new.items():
        offsets.check_offset(at, offset)
    entries = {at: _entry(cluster, at, offset) for at, offset in new.items()}

    def ask(asked: list[TopicPartition], left_s: float) -> CommitOffsetsResponse:
        request = AlterGroupOffsetsRequest(group_id=group_id, offsets=tuple(entries[at] for at in asked))
        return cluster.call(
            "alter_group_offsets", request, CommitOffsetsResponse, to=Coordinator(group_id), timeout_s=left_s
        )

    offsets.write_each(entries, ask, cluster.deadline())


def delete_group(cluster: Cluster, group_id: str) -> None:
    """Deletes the group and its offsets. Raises `NonEmptyGroupError`, `GroupIdNotFoundError`."""
    request = DeleteGroupRequest(group_id=check_group_id(group_id))
    cluster.call("delete_group", request, Empty, to=Coordinator(group_id), done_if=GroupIdNotFoundError)


def remove_group_members(cluster: Cluster, group_id: str, ids: Iterable[str]) -> None:
    """Removes members from the group, by member or instance id: all of them, or none if one is unknown.

    Raises `UnknownMemberIdError`, `GroupIdNotFoundError`.
    """
    check_group_id(group_id)
    if isinstance(ids, str):
        raise InvalidRequestError(f"ids={ids!r}: give a list, as in [{ids!r}]")
    members = tuple(dict.fromkeys(ids))
    for member in members:
        if not isinstance(member, str) or not member:
            raise InvalidRequestError(f"{member!r} is neither a member id nor an instance id")
    if not members:
        raise InvalidRequestError("name the members to remove: their ids are in describe_group")
    request = RemoveGroupMembersRequest(group_id=group_id, members=members)
    done = cluster.call("remove_group_members", request, Empty, to=Coordinator(group_id), done_if=UnknownMemberIdError)
    if done is None:
        _check_removed(cluster, group_id, members)


def _check_removed(cluster: Cluster, group_id: str, members: Iterable[str]) -> None:
    """After a lost answer and a refusal: raises `UnknownMemberIdError` if one of them is still a member."""
    there = {
        name
        for member in describe_group(cluster, group_id).members
        if member.state != "fenced"
        for name in (member.member_id, member.instance_id)
    }
    left = [member for member in members if member in there]
    if left:
        raise UnknownMemberIdError(
            f"group {group_id!r}: no member was removed, because not all are members; still a member: {', '.join(left)}"
        )


def _entry(cluster: Cluster, at: TopicPartition, offset: int) -> CommittedOffset:
    topic = cluster.topic(at.topic)
    topic.partition(at.partition)
    return CommittedOffset(at=topic.partition_key(at.partition), offset=offset)


def _listing(group: GroupInfo) -> GroupListing:
    return GroupListing(
        group_id=group.group_id,
        state=group.state,
        kind=group.kind,
        members=group.members,
        coordinator=_broker(group),
    )


def _broker(group: GroupInfo) -> int | None:
    return group.coordinator if group.coordinator >= 0 else None


def _member(member: MemberInfo) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        kind=member.kind,
        state=member.state,
        epoch=member.member_epoch,
        topics=member.topics,
        partitions=tuple(
            TopicPartition(each.topic, number) for each in member.assignment for number in sorted(each.partitions)
        ),
        session_timeout_ms=member.session_timeout_ms,
        heard_ms_ago=member.last_heartbeat_ms,
    )
