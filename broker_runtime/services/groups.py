"""Consumer groups, as requests: who coordinates, heartbeats, acknowledged offsets, and what an administrator does.

Rules: every broker answers who a group's coordinator is, and lists all groups. Everything else is for the coordinator;
another broker answers `NotCoordinatorError`. Each entry of a commit has its own answer; a failure affects no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from broker_runtime.contract.errors import (
    CorruptRecordError,
    GroupIdNotFoundError,
    InconsistentTopicIdError,
    InvalidRequestError,
    PylogError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition, check_group_id, check_topic_name
from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    DeleteGroupRequest,
    DescribeGroupRequest,
    DescribeGroupResponse,
    Empty,
    ErrorInfo,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupInfo,
    ListGroupsRequest,
    ListGroupsResponse,
    PartitionKey,
    RemoveGroupMembersRequest,
)
from broker_runtime.contract.transactions import GroupCommit
from broker_runtime.groups.claims import Claims
from broker_runtime.groups.coordinator import GroupCoordinator
from broker_runtime.groups.member import MemberState
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.groups.removal import GroupRemoval
from broker_runtime.services.caller import Caller, logged_change, some_of
from broker_runtime.zookeeper.cluster_state import ClusterState, read_topic_records
from broker_runtime.zookeeper.guarded import Guard
from broker_runtime.zookeeper.session import MAX_REQUEST_BYTES, Operation, ZNode, ZooKeeperClient, require_connection
from broker_runtime.zookeeper.znodes import (
    CONSUMERS,
    GroupMembers,
    GroupOffsets,
    StoredOffset,
    TopicRecord,
    from_json,
    group_claim_path,
    group_members_path,
    group_offsets_parent,
)

_MOVING = frozenset({MemberState.JOINING.value, MemberState.FENCED.value})

_logger = logging.getLogger(__name__)


class GroupService:
    """Thread-safe. Calls block for ZooKeeper, in bounds; a heartbeat of a group in memory does not.

    All raise `InvalidGroupIdError`, `ZooKeeperUnavailableError`; those that are the coordinator's also
    `NotCoordinatorError`, `CoordinatorNotAvailableError`.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        cluster: Callable[[], ClusterState],
        *,
        claims: Claims,
        coordinator: GroupCoordinator,
        removal: GroupRemoval,
        store: OffsetStore,
        wall_ms: Callable[[], int],
    ) -> None:
        """``cluster``: as this broker knows it. ``wall_ms``: the time that commits carry."""
        self._client = client
        self._cluster = cluster
        self._claims = claims
        self._coordinator = coordinator
        self._removal = removal
        self._store = store
        self._wall_ms = wall_ms

    # --- members ----------------------------------------------------------------------------------------------

    def find_coordinator(self, caller: Caller, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """The group's coordinator. Any broker answers. Raises `CoordinatorNotAvailableError` if there is none."""
        return FindCoordinatorResponse(broker_id=self._claims.find_coordinator(check_group_id(request.group_id)))

    def group_heartbeat(self, caller: Caller, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        """See `GroupCoordinator.heartbeat`. Raises `InvalidTopicError` for impossible names of topics, and
        `InvalidRequestError` for more names than fit into a request to ZooKeeper."""
        check_group_id(request.group_id)
        _check_subscription(request.topics or ())
        return self._coordinator.heartbeat(request)

    # --- offsets ----------------------------------------------------------------------------------------------

    def commit_offsets(self, caller: Caller, request: CommitOffsetsRequest) -> CommitOffsetsResponse:
        """Writes the offsets, for a member, or without membership while the group has no members.

        Raises `UnknownMemberIdError`, `NonEmptyGroupError`, `InvalidRequestError` for a partition that is named twice:
        which of its offsets counts would be undefined. An entry's error: `UnknownTopicOrPartitionError`,
        `InconsistentTopicIdError`, `StaleMemberEpochError`, and as `OffsetStore.commit`.
        """
        check_group_id(request.group_id)
        errors: list[ErrorInfo | None] = [None] * len(request.offsets)
        topics: dict[int, TopicRecord] = {}
        known = self._cluster().topics
        for number, committed in enumerate(request.offsets):
            try:
                topic = known.get(committed.at.topic)
                topics[number] = _existing(None if topic is None else topic.record, committed.at)
            except PylogError as error:
                errors[number] = ErrorInfo.of(error)
        _check_distinct([request.offsets[number].at for number in topics])
        if not topics and not request.member_id:
            return CommitOffsetsResponse(errors=tuple(errors))
        partitions = [
            (request.offsets[number].at.topic, record.topic_id, request.offsets[number].at.partition)
            for number, record in topics.items()
        ]
        with self._coordinator.committing(
            request.group_id, request.member_id, request.member_epoch, request.sequence, partitions
        ) as (refusals, guard):
            for number, refusal in zip(topics.copy(), refusals, strict=True):
                if refusal is not None:
                    errors[number] = ErrorInfo.of(refusal)
                    del topics[number]
            self._write(request, topics, guard, errors)
        return CommitOffsetsResponse(errors=tuple(errors))

    @contextmanager
    def committing(self, commit: GroupCommit) -> Iterator[tuple[Guard, Callable[[], Sequence[Operation]]]]:
        """For the time in which a transaction's decision is written: the guard to write it under, and what plans the
        operations that commit the group's offsets with it. All of them or none are committed.

        Raises as `commit_offsets`, and what would be an entry's error there.
        """
        check_group_id(commit.group_id)
        _check_distinct([each.at for each in commit.offsets])
        known = self._cluster().topics
        partitions = []
        wanted: dict[str, tuple[bytes, dict[int, StoredOffset]]] = {}
        for each in commit.offsets:
            topic = known.get(each.at.topic)
            record = _existing(None if topic is None else topic.record, each.at)
            partitions.append((each.at.topic, record.topic_id, each.at.partition))
            _, offsets = wanted.setdefault(each.at.topic, (record.topic_id, {}))
            offsets[each.at.partition] = StoredOffset(
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                committed_at_ms=self._wall_ms(),
                metadata=each.metadata,
                member_epoch=commit.member_epoch if commit.member_id else -1,
            )
        with self._coordinator.committing(commit.group_id, commit.member_id, commit.member_epoch, -1, partitions) as (
            refusals,
            guard,
        ):
            for refusal in refusals:
                if refusal is not None:
                    raise refusal
            yield guard, lambda: self._store.planned(commit.group_id, wanted, guard)

    def fetch_offsets(self, caller: Caller, request: FetchOffsetsRequest) -> FetchOffsetsResponse:
        """The group's offsets of topics that exist. Those of an earlier topic of the same name do not count. They are
        read from ZooKeeper now: whatever was acknowledged before is among them, although this broker may not have
        heard yet that their topic was created, or recreated.

        Raises `UnknownTopicOrPartitionError` and `InconsistentTopicIdError` for partitions asked for.
        """
        group_id = check_group_id(request.group_id)
        wanted: dict[str, set[int]] | None = None
        if request.partitions is not None:
            wanted = {}
            for at in request.partitions:
                wanted.setdefault(at.topic, set()).add(at.partition)
        guard = self._coordinator.guard(group_id)
        stored_by_topic: Mapping[str, GroupOffsets] = {}
        if guard is not None:
            stored_by_topic = self._store.fetch(group_id, None if wanted is None else sorted(wanted), guard=guard)
        topics = self._present_topics(stored_by_topic, request.partitions)
        for at in request.partitions or ():
            _existing(topics.get(at.topic), at)
        found: list[CommittedOffset] = []
        for name, stored in stored_by_topic.items():
            if name not in topics or stored.topic_id != topics[name].topic_id:
                continue
            found += [
                CommittedOffset(
                    at=PartitionKey(topic=name, partition=partition, topic_id=stored.topic_id),
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                )
                for partition, offset in sorted(stored.offsets.items())
                if wanted is None or partition in wanted[name]
            ]
        return FetchOffsetsResponse(offsets=tuple(found))

    # --- administrators ---------------------------------------------------------------------------------------

    def list_groups(self, caller: Caller, request: ListGroupsRequest) -> ListGroupsResponse:
        """All groups that have members or offsets, sorted, as ZooKeeper has them: a member that has just joined may be
        missing, and one that has just left may still be counted. Any broker answers."""
        require_connection(self._client, "groups")
        names = self._client.children(CONSUMERS)
        claims = self._client.find_all([group_claim_path(name) for name in names], are_small=True)
        members = self._client.find_all([group_members_path(name) for name in names])
        offsets = self._client.find_all([group_offsets_parent(name) for name in names], are_small=True)
        found: list[GroupInfo] = []
        for name, claim, node, parent in zip(names, claims, members, offsets, strict=True):
            info = self._coordinator.known(name) or self._info(name, claim, node)
            if info.members or parent is not None:
                found.append(info)
        return ListGroupsResponse(groups=tuple(found))

    def describe_group(self, caller: Caller, request: DescribeGroupRequest) -> DescribeGroupResponse:
        """Its members and what they hold. Raises `GroupIdNotFoundError` if it has neither members nor offsets."""
        group_id = check_group_id(request.group_id)
        described = self._coordinator.describe(group_id)
        if not described.members and not self._store.topics_of(group_id):
            raise GroupIdNotFoundError(f"no group {group_id!r}")
        return described

    def alter_group_offsets(self, caller: Caller, request: AlterGroupOffsetsRequest) -> CommitOffsetsResponse:
        """As a commit without membership: raises `NonEmptyGroupError` while there are members, and
        `CoordinatorNotAvailableError` until it is written that the last member has left."""
        commit = CommitOffsetsRequest(group_id=request.group_id, offsets=request.offsets)
        wanted = some_of(f"{each.at.topic}-{each.at.partition}:{each.offset}" for each in request.offsets)
        with logged_change(_logger, "alter group offsets", caller, group=request.group_id, to=wanted) as failed:
            response = self.commit_offsets(caller, commit)
            failed += [error for error in response.errors if error is not None]
        return response

    def delete_group(self, caller: Caller, request: DeleteGroupRequest) -> Empty:
        """See `GroupRemoval.delete`."""
        with logged_change(_logger, "delete group", caller, group=request.group_id):
            self._removal.delete(check_group_id(request.group_id))
        return Empty()

    def remove_group_members(self, caller: Caller, request: RemoveGroupMembersRequest) -> Empty:
        """See `Group.remove`. Raises `UnknownMemberIdError`, `GroupIdNotFoundError`, `InvalidRequestError` for none."""
        named = some_of(request.members)
        with logged_change(_logger, "remove group members", caller, group=request.group_id, members=named):
            check_group_id(request.group_id)
            if not request.members:
                raise InvalidRequestError("members is empty: name the members to remove")
            self._coordinator.remove_members(request.group_id, request.members)
        return Empty()

    # --- private ----------------------------------------------------------------------------------------------

    def _present_topics(self, names: Iterable[str], asked: Sequence[PartitionKey] | None) -> dict[str, TopicRecord]:
        """The topics of ``asked`` (None: ``names``) that exist. What this broker knows of one is enough where the
        request means the same one, by its id; otherwise ZooKeeper says which it is now."""
        known = self._cluster().topics
        if asked is not None:
            names = {at.topic for at in asked}
        ids = {at.topic: at.topic_id for at in asked or ()}
        same = {
            name: known[name].record for name in names if name in known and known[name].record.topic_id == ids.get(name)
        }
        return same | read_topic_records(self._client, sorted(set(names) - same.keys()))

    def _write(
        self,
        request: CommitOffsetsRequest,
        topics: Mapping[int, TopicRecord],
        guard: Guard,
        errors: list[ErrorInfo | None],
    ) -> None:
        now_ms = self._wall_ms()
        by_topic: dict[str, dict[int, StoredOffset]] = {}
        ids: dict[str, bytes] = {}
        for number, record in topics.items():
            committed = request.offsets[number]
            ids[committed.at.topic] = record.topic_id
            by_topic.setdefault(committed.at.topic, {})[committed.at.partition] = StoredOffset(
                offset=committed.offset,
                leader_epoch=committed.leader_epoch,
                committed_at_ms=now_ms,
                metadata=committed.metadata,
                member_epoch=request.member_epoch if request.member_id else -1,
                sequence=request.sequence if request.member_id else -1,
            )
        for name, offsets in by_topic.items():
            try:
                self._store.commit(
                    request.group_id, name, ids[name], offsets, only_forward=request.only_forward, guard=guard
                )
            except PylogError as error:
                for number in topics:
                    if request.offsets[number].at.topic == name:
                        errors[number] = ErrorInfo.of(error)

    def _info(self, name: str, claim: ZNode | None, node: ZNode | None) -> GroupInfo:
        try:
            record = None if node is None else from_json(node.data, GroupMembers, group_members_path(name))
        except CorruptRecordError:
            record = None  # the coordinator reports the damage to whoever asks it
        members = record.members if record is not None else ()
        state: Literal["empty", "assigning", "stable"] = "stable"
        if not members:
            state = "empty"
        elif any(member.state in _MOVING or any(held.releasing for held in member.held) for member in members):
            state = "assigning"
        owner = self._claims.owner_in(name, claim)
        return GroupInfo(
            group_id=name,
            state=state,
            kind=members[0].kind if members else "",
            members=len(members),
            coordinator=-1 if owner is None else owner,
        )


def _check_subscription(topics: Sequence[str]) -> None:
    chars = sum(len(check_topic_name(name)) for name in topics)
    if chars > MAX_REQUEST_BYTES:
        raise InvalidRequestError(
            f"the names of the {len(topics)} topics of a subscription are {chars} characters in all; "
            f"at most {MAX_REQUEST_BYTES} go to ZooKeeper"
        )


def _check_distinct(partitions: Sequence[PartitionKey]) -> None:
    seen: set[TopicPartition] = set()
    for key in partitions:
        at = TopicPartition(key.topic, key.partition)
        if at in seen:
            raise InvalidRequestError(f"{at} is in the commit twice")
        seen.add(at)


def _existing(topic: TopicRecord | None, at: PartitionKey) -> TopicRecord:
    if topic is None:
        raise UnknownTopicOrPartitionError(f"no topic {at.topic!r}")
    if at.topic_id is not None and at.topic_id != topic.topic_id:
        raise InconsistentTopicIdError(
            f"topic {at.topic!r} has the id {topic.topic_id.hex()}, not {at.topic_id.hex()}: it was recreated"
        )
    if at.partition >= len(topic.assignment):
        raise UnknownTopicOrPartitionError(
            f"topic {at.topic!r} has no partition {at.partition}, only 0 to {len(topic.assignment) - 1}"
        )
    return topic
