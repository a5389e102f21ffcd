"""Consumer groups as an administrator sees and changes them: questions to the groups' coordinators.

Rule: what a group's coordinator answers is so in ZooKeeper. Every change may be asked for again when its answer was
lost: offsets are set, not moved; a group that is gone was deleted; members that are gone were removed.
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


def list_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups, with members or only offsets, by id."""
    told = cluster.call("list_groups", ListGroupsRequest(), ListGroupsResponse)
    return [_listing(group) for group in sorted(told.groups, key=lambda group: group.group_id)]


def describe_group(cluster: Cluster, group_id: str, *, timeout_s: float | None = None) -> GroupDescription:
    """The group and its members, by client id, then member id. Raises `GroupIdNotFoundError`."""
    request = DescribeGroupRequest(group_id=check_group_id(group_id))
    told = cluster.call("describe_group", request, DescribeGroupResponse, to=Coordinator(group_id), timeout_s=timeout_s)
    return described(told)


def described(told: DescribeGroupResponse) -> GroupDescription:
    """A coordinator's answer as the public description."""
    return GroupDescription(
        group_id=told.group.group_id,
        state=told.group.state,
        kind=told.group.kind,
        coordinator=_broker(told.group),
        epoch=told.epoch,
        members=tuple(sorted(map(_member, told.members), key=lambda member: (member.client_id, member.member_id))),
    )


def list_group_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, GroupOffset]:
    """What the group acknowledged, where the partitions end, and the lag; empty for an unknown group. Where no leader
    answers within seconds, the end and the lag are -1."""
    committed = offsets.committed(cluster, check_group_id(group_id), None)
    topics = descriptions.topics_with_offsets(cluster, sorted({at.topic for at in committed}))
    ends = {
        TopicPartition(topic.name, partition.partition): partition.high_watermark
        for topic in topics
        for partition in topic.partitions
    }
    return {
        at: GroupOffset(offset, ends[at], max(0, ends[at] - offset) if ends[at] >= 0 else -1)
        for at, offset in sorted(committed.items())
    }


def alter_group_offsets(cluster: Cluster, group_id: str, new: Mapping[TopicPartition, int]) -> None:
    """Sets the group's next offsets. What is refused for one partition holds up no other; the first refusal is raised.

    Raises `NonEmptyGroupError`, `InvalidRequestError` for what is no offset, `UnknownTopicOrPartitionError`.
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
    """Forgets the group and its offsets. Raises `NonEmptyGroupError`, `GroupIdNotFoundError`."""
    request = DeleteGroupRequest(group_id=check_group_id(group_id))
    cluster.call("delete_group", request, Empty, to=Coordinator(group_id), done_if=GroupIdNotFoundError)


def remove_group_members(cluster: Cluster, group_id: str, ids: Iterable[str]) -> None:
    """Takes members, by member or instance id, out of the group: all of them or, if one is unknown, none.

    Raises `UnknownMemberIdError`, `GroupIdNotFoundError`.
    """
    check_group_id(group_id)
    if isinstance(ids, str):
        raise InvalidRequestError(f"ids={ids!r}: give a list, as in [{ids!r}]")
    members = tuple(dict.fromkeys(ids))
    for member in members:
        if not isinstance(member, str) or not member:
            raise InvalidRequestError(f"{member!r} is no member id and no instance id")
    if not members:
        raise InvalidRequestError("say which members: their ids are in describe_group")
    request = RemoveGroupMembersRequest(group_id=group_id, members=members)
    done = cluster.call("remove_group_members", request, Empty, to=Coordinator(group_id), done_if=UnknownMemberIdError)
    if done is None:
        _check_removed(cluster, group_id, members)


def _check_removed(cluster: Cluster, group_id: str, members: Iterable[str]) -> None:
    """After a lost answer and a refusal: whether none of them takes part any more. Raises `UnknownMemberIdError`."""
    there = {
        name
        for member in describe_group(cluster, group_id).members
        if member.state != "fenced"
        for name in (member.member_id, member.instance_id)
    }
    left = [member for member in members if member in there]
    if left:
        raise UnknownMemberIdError(
            f"group {group_id!r}: nobody was removed, because not all are members; {', '.join(left)} still is"
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
