"""Group requests of an administrator: bad input is refused by name, lost answers are requested again. No network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_runtime.contract.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidRequestError,
    NetworkError,
    NonEmptyGroupError,
    NotCoordinatorError,
    PylogError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    AssignedPartitions,
    BrokerInfo,
    CommitOffsetsResponse,
    DescribeGroupResponse,
    Empty,
    ErrorInfo,
    FindCoordinatorResponse,
    GroupInfo,
    ListGroupsResponse,
    MemberInfo,
    Message,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)
from pyspark_log import Admin, GroupListing, TopicPartition
from tests.unit.client.channels import answer_by

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = TopicInfo(
    name="t", topic_id=b"t" * 16,
    partitions=tuple(PartitionInfo(partition=n, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for n in (0, 1)),
)  # fmt: skip


class Coordinator:
    """One broker that coordinates the group; ``lost``: raised instead of its next answer to a change."""

    def __init__(self) -> None:
        self.members = ["m1", "m2"]
        self.fenced: list[str] = []
        self.offsets: dict[int, int] = {}
        self.exists = True
        self.lost: PylogError | None = None
        self.is_done = True
        self.entry_errors: list[str] = []
        self.changes = 0

    def answer(self, name: str, request: Any) -> Message:
        does: Callable[[Any], Message] = getattr(self, name)
        if name in ("metadata", "find_coordinator", "list_groups", "describe_group"):
            return does(request)
        self.changes += 1
        lost, self.lost = self.lost, None
        if lost is None or self.is_done:
            done = does(request)
        if lost is not None:
            raise lost
        return done

    def metadata(self, request: Any) -> Message:
        return MetadataResponse(
            protocol_version=1, software_version="", cluster_id="c", controller_id=1,
            brokers=(BrokerInfo(broker_id=1, host="h1", port=1, epoch=1),),
            topics=() if request.topics == () else (TOPIC,),
            errors={
                name: ErrorInfo(code="UNKNOWN_TOPIC_OR_PARTITION", message=name)
                for name in request.topics or () if name != "t"
            },
        )  # fmt: skip

    def find_coordinator(self, request: Any) -> Message:
        return FindCoordinatorResponse(broker_id=1)

    def list_groups(self, request: Any) -> Message:
        infos = (("z", 1), ("a", -1))
        return ListGroupsResponse(
            groups=tuple(GroupInfo(group_id=g, state="empty", kind="", members=0, coordinator=c) for g, c in infos)
        )

    def describe_group(self, request: Any) -> Message:
        if not self.exists:
            raise GroupIdNotFoundError("no group")
        members = tuple(
            MemberInfo(
                member_id=member_id, instance_id=None, kind="consumer", client_id="worker", client_host="h7",
                state="fenced" if member_id in self.fenced else "stable", member_epoch=3, topics=("t",),
                assignment=(AssignedPartitions(topic="t", topic_id=b"t" * 16, partitions=(1, 0)),),
                session_timeout_ms=45_000, last_heartbeat_ms=12,
            )
            for member_id in self.members
        )  # fmt: skip
        info = GroupInfo(group_id="g", state="stable", kind="consumer", members=len(members), coordinator=1)
        return DescribeGroupResponse(group=info, epoch=7, members=members)

    def alter_group_offsets(self, request: AlterGroupOffsetsRequest) -> Message:
        errors: list[ErrorInfo | None] = []
        for entry in request.offsets:
            code = self.entry_errors.pop(0) if self.entry_errors else ""
            errors.append(ErrorInfo(code=code, message="no") if code else None)
            if not code:
                assert entry.at.topic_id == b"t" * 16
                self.offsets[entry.at.partition] = entry.offset
        return CommitOffsetsResponse(errors=tuple(errors))

    def delete_group(self, request: Any) -> Message:
        if not self.exists:
            raise GroupIdNotFoundError("no group")
        self.exists = False
        return Empty()

    def remove_group_members(self, request: Any) -> Message:
        for member in request.members:
            if member not in self.members or member in self.fenced:
                raise UnknownMemberIdError(f"no member {member}")
        self.fenced += request.members
        return Empty()


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    made = Coordinator()
    answer_by(lambda address, name, request, timeout_s: made.answer(name, request), monkeypatch)
    return made


@pytest.fixture
def admin(coordinator: Coordinator) -> Iterator[Admin]:
    with Admin("h1:1") as made:
        yield made


LOST = [NetworkError("lost"), ZooKeeperUnavailableError("perhaps"), NotCoordinatorError("not any more")]


@pytest.fixture(params=LOST, ids=lambda error: type(error).__name__)
def lost(coordinator: Coordinator, request: pytest.FixtureRequest) -> Coordinator:
    """The answer to the next change is lost: the change was made, unless the broker says that it refused it."""
    coordinator.lost = request.param
    coordinator.is_done = not isinstance(request.param, NotCoordinatorError)
    return coordinator


def test_groups_are_listed_by_id(admin: Admin) -> None:
    """W27: a group without a coordinator has None."""
    assert admin.list_groups() == [
        GroupListing(group_id="a", state="empty", kind="", members=0, coordinator=None),
        GroupListing(group_id="z", state="empty", kind="", members=0, coordinator=1),
    ]


def test_group_is_described_with_its_members(admin: Admin) -> None:
    """W27: the description has each member's partitions."""
    group = admin.describe_group("g")
    assert (group.group_id, group.state, group.kind, group.coordinator, group.epoch) == (
        "g",
        "stable",
        "consumer",
        1,
        7,
    )
    first, second = group.members
    assert (first.member_id, first.client_id, first.host, first.state, first.epoch) == (
        "m1",
        "worker",
        "h7",
        "stable",
        3,
    )
    assert second.partitions == (T0, T1)


def test_offsets_set_by_the_last_attempt_are_no_error(admin: Admin, lost: Coordinator) -> None:
    """Offsets are set, not moved: a second time changes nothing."""
    admin.alter_group_offsets("g", {T0: 5, T1: 0})
    assert (lost.offsets, lost.changes) == ({0: 5, 1: 0}, 2)


def test_refused_offsets_hold_up_no_others(admin: Admin, coordinator: Coordinator) -> None:
    """Retriable refusals are tried again; the first refusal is raised in the end."""
    coordinator.entry_errors = ["UNKNOWN_TOPIC_OR_PARTITION", "ZOOKEEPER_UNAVAILABLE"]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.alter_group_offsets("g", {T0: 5, T1: 6})
    assert coordinator.offsets == {1: 6}


@pytest.mark.parametrize("offset", [-1, True, "5", 1.0, None, 1 << 63])
def test_invalid_offsets_are_refused_before_any_request(admin: Admin, coordinator: Coordinator, offset: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"t-1: an offset"):
        admin.alter_group_offsets("g", {T0: 5, T1: offset})
    assert coordinator.changes == 0


@pytest.mark.parametrize("new", [None, [1], "t-0"])
def test_offsets_that_are_no_mapping_are_refused(admin: Admin, new: Any) -> None:
    """S9: the error is clear, and not an internal one of Python's."""
    with pytest.raises(InvalidRequestError, match=f"a mapping of partition to offset, not {type(new).__name__}"):
        admin.alter_group_offsets("g", new)


def test_offsets_of_unknown_partitions_are_refused(admin: Admin, coordinator: Coordinator) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.alter_group_offsets("g", {T0: 5, TopicPartition("t", 2): 0})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.alter_group_offsets("g", {TopicPartition("u", 0): 0})
    assert coordinator.changes == 0


def test_group_deleted_by_the_last_attempt_is_no_error(admin: Admin, lost: Coordinator) -> None:
    admin.delete_group("g")
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_group("g")


def test_members_removed_by_the_last_attempt_are_no_error(admin: Admin, lost: Coordinator) -> None:
    admin.remove_group_members("g", ["m1"])
    assert lost.fenced == ["m1"]
    with pytest.raises(UnknownMemberIdError):
        admin.remove_group_members("g", ["m1"])


def test_members_that_are_still_there_after_a_lost_answer_are_an_error(admin: Admin, coordinator: Coordinator) -> None:
    """One member was unknown from the beginning, so none was removed."""
    coordinator.lost, coordinator.is_done = LOST[0], False
    with pytest.raises(UnknownMemberIdError, match="still a member: m1"):
        admin.remove_group_members("g", ["m1", "m3"])


@pytest.mark.parametrize(("ids", "says"), [("m1", r"\['m1'\]"), ([], "name the members"), ([""], "''"), ([7], "7")])
def test_members_must_be_named(admin: Admin, coordinator: Coordinator, ids: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        admin.remove_group_members("g", ids)
    assert coordinator.changes == 0


@pytest.mark.parametrize("group_id", ["", "a/b", "..", None, 7])
def test_group_ids_are_checked_before_any_request(admin: Admin, coordinator: Coordinator, group_id: Any) -> None:
    for call in (admin.describe_group, admin.delete_group, admin.list_group_offsets):
        with pytest.raises(InvalidGroupIdError):
            call(group_id)
    with pytest.raises(InvalidGroupIdError):
        admin.alter_group_offsets(group_id, {})
    with pytest.raises(InvalidGroupIdError):
        admin.remove_group_members(group_id, ["m1"])


def test_refusals_are_raised_at_once(admin: Admin, coordinator: Coordinator) -> None:
    coordinator.lost, coordinator.is_done = NonEmptyGroupError("has members"), False
    with pytest.raises(NonEmptyGroupError):
        admin.alter_group_offsets("g", {T0: 5})
    assert coordinator.changes == 1
