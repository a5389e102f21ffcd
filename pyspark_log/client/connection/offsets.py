"""Offsets as brokers know them: where logs begin and end, the offset at a time, what groups have committed.

Rule: a query goes to its partition's leader, in one request with all others for that broker. After a retriable error it
is repeated with new metadata, until the deadline. Partitions are named with their topic's id, so that no answer is
about another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAndTimestamp, TopicPartition
from broker_runtime.contract.requests import (
    READ_COMMITTED,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
    PartitionKey,
    RecordDeletion,
    portions,
)
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.connection.leaders import ask_leaders
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.records import timestamp_ms_of

_ATTEMPT_LIMIT_S = 5.0
_WORDS = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}

_MISSING = (UnknownTopicOrPartitionError, InconsistentTopicIdError)

_Asked: TypeAlias = list[tuple[Topic, int, int]]  # a partition of a topic, and the number of the query


class Signature(NamedTuple):
    """Which member makes a commit, in which epoch; the sequence counts its commits."""

    member_id: str
    member_epoch: int
    sequence: int


_NO_MEMBER = Signature("", -1, -1)


def wire_timestamp(moment: str | datetime | int) -> int:
    """A word, an aware datetime or ms as a query's number. Raises `InvalidRequestError`, `InvalidTimestampError`."""
    if isinstance(moment, str):
        if moment not in _WORDS:
            raise InvalidRequestError(f"{moment!r} is not a place in a log; allowed: {', '.join(_WORDS)}, a time")
        return _WORDS[moment]
    return timestamp_ms_of(moment)


def check_offset(at: TopicPartition, offset: object) -> int:
    """``offset``, if it can be the next offset of a partition. Raises `InvalidRequestError`."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
        raise InvalidRequestError(f"{at}: an offset is an integer of at least 0, not {offset!r}")
    return offset


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    timeout_s: float | None = None,
    isolation_level: int = READ_COMMITTED,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the offset at a wire timestamp (`wire_timestamp`); offset -1: no such record.

    ``isolation_level``: `LATEST` is the end for readers of that level. Blocks at most ``timeout_s`` (default
    ``request.timeout.ms``). Raises `UnknownTopicOrPartitionError`, the last `RetriableError`.
    """
    answers = _ask_leaders(
        cluster,
        wanted,
        timeout_s,
        lambda broker_id, asked, left_s: _list(cluster, broker_id, asked, left_s, isolation_level),
    )
    return {at: OffsetAndTimestamp(a.offset, a.timestamp, a.leader_epoch) for at, a in answers.items()}


def delete_records(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout_s: float | None = None
) -> dict[TopicPartition, int]:
    """Moves each log's start to an offset (-1: its end); returns the new starts. Raises as `list_offsets`."""
    answers = _ask_leaders(
        cluster, wanted, timeout_s, lambda broker_id, asked, left_s: _delete(cluster, broker_id, asked, left_s)
    )
    return {at: answer.offset for at, answer in answers.items()}


def commit(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    only_forward: bool = False,
    topic_ids: Mapping[TopicPartition, bytes | None] | None = None,
    signature: Signature | None = None,
    missing_ok: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Commits a group's next offsets through its coordinator. When it returns, they are in ZooKeeper.

    ``signature``: that of the committing member; without one, only a group without members accepts the commit. Raises
    `NonEmptyGroupError`, `UnknownMemberIdError`, `StaleMemberEpochError` (a partition that the member does not hold).

    ``topic_ids``: the topics that the offsets belong to, if the caller knows them; else the present topics of these
    names. An offset of a deleted topic is refused, and never written for a later topic of the same name. (None as a
    topic's id: the topic that has the name when the offset is written.) A refusal for one partition does not affect the
    others; the first one is raised at the end. ``missing_ok``: partitions that do not exist, or whose topic was
    recreated, are left out, not refused.
    """
    known = topic_ids or {}
    signed = signature or _NO_MEMBER

    def ask(asked: list[TopicPartition], left_s: float) -> CommitOffsetsResponse:
        request = CommitOffsetsRequest(
            group_id=group_id,
            offsets=tuple(CommittedOffset(at=_key(cluster, at, known), offset=offsets[at]) for at in asked),
            member_id=signed.member_id,
            member_epoch=signed.member_epoch,
            sequence=signed.sequence,
            only_forward=only_forward,
        )
        return cluster.call(
            "commit_offsets", request, CommitOffsetsResponse, to=Coordinator(group_id), timeout_s=left_s
        )

    write_each(offsets, ask, cluster.deadline(timeout_s), missing_ok=missing_ok)


def write_each(
    partitions: Iterable[TopicPartition],
    ask: Callable[[list[TopicPartition], float], CommitOffsetsResponse],
    deadline: Deadline,
    *,
    missing_ok: bool = False,
) -> None:
    """Asks a group's coordinator until it has accepted or refused every partition.

    Raises the first refusal at the end, and a retriable error when the deadline has passed. ``missing_ok``: it is no
    refusal that a partition does not exist, or that its topic was recreated.
    """
    backoff = Backoff()
    left = list(partitions)
    refused: PylogError | None = None
    while left:
        again: list[TopicPartition] = []
        failure: PylogError | None = None
        errors = [info for some in portions(left) for info in ask(list(some), deadline.remaining_s()).errors]
        for at, info in zip(left, errors, strict=True):
            error = None if info is None else error_of(info)
            if isinstance(error, RetriableError):
                failure = failure or error
                again.append(at)
            elif not (missing_ok and isinstance(error, _MISSING)):
                refused = refused or error
        left = again
        if failure is not None:
            if deadline.expired:
                raise failure
            deadline.sleep(backoff.next_s())
    if refused is not None:
        raise refused


def committed(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    topic_ids: Mapping[TopicPartition, bytes | None] | None = None,
    timeout_s: float | None = None,
) -> dict[TopicPartition, int]:
    """What a group has committed for these partitions (None: all); those without a commit are left out.

    ``topic_ids``: as `commit`.
    """
    known = topic_ids or {}
    deadline = cluster.deadline(timeout_s)
    found: dict[TopicPartition, int] = {}
    for keys in [None] if partitions is None else portions(_key(cluster, at, known) for at in partitions):
        response = cluster.call(
            "fetch_offsets",
            FetchOffsetsRequest(group_id=group_id, partitions=keys),
            FetchOffsetsResponse,
            to=Coordinator(group_id),
            timeout_s=deadline.remaining_s(),
        )
        found.update({TopicPartition(entry.at.topic, entry.at.partition): entry.offset for entry in response.offsets})
    return found


def _key(cluster: Cluster, at: TopicPartition, topic_ids: Mapping[TopicPartition, bytes | None]) -> PartitionKey:
    if at in topic_ids:
        return PartitionKey(topic=at.topic, partition=at.partition, topic_id=topic_ids[at])
    return cluster.topic(at.topic).partition_key(at.partition)


def _list(cluster: Cluster, broker_id: int, asked: _Asked, left_s: float, isolation_level: int) -> list[OffsetAnswer]:
    queries = tuple(
        OffsetQuery(
            at=topic.partition_key(partition),
            timestamp=timestamp,
            leader_epoch=topic.partition(partition).leader_epoch,
        )
        for topic, partition, timestamp in asked
    )
    request = ListOffsetsRequest(queries=queries, isolation_level=isolation_level)
    response = cluster.call("list_offsets", request, ListOffsetsResponse, to=broker_id, timeout_s=left_s)
    return list(response.answers)


def _delete(cluster: Cluster, broker_id: int, asked: _Asked, left_s: float) -> list[OffsetAnswer]:
    deletions = tuple(
        RecordDeletion(at=topic.partition_key(partition), offset=offset) for topic, partition, offset in asked
    )
    response = cluster.call(
        "delete_records",
        DeleteRecordsRequest(deletions=deletions),
        DeleteRecordsResponse,
        to=broker_id,
        timeout_s=left_s,
    )
    return list(response.answers)


def _ask_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    timeout_s: float | None,
    ask: Callable[[int, _Asked, float], list[OffsetAnswer]],
) -> dict[TopicPartition, OffsetAnswer]:
    """What each partition's leader answers to the number that goes with the partition. Raises what it refuses."""
    deadline = cluster.deadline(timeout_s)
    topics: dict[str, Topic] = {}

    def find_leaders(found: Mapping[TopicPartition, OffsetAnswer]) -> dict[TopicPartition, int | None]:
        left = [at for at in wanted if at not in found]
        for name in dict.fromkeys(at.topic for at in left):
            # What the previous round knew is out of date, or everything would have been answered.
            topics[name] = cluster.topic(name, max_age=topics.get(name), timeout_s=deadline.remaining_s())
        return {at: topics[at.topic].partition(at.partition).leader for at in left}

    def ask_leader(
        leader: int, led: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OffsetAnswer | RetriableError]]:
        for some in portions(led):
            asked = [(topics[at.topic], at.partition, wanted[at]) for at in some]
            for at, answer in zip(some, ask(leader, asked, deadline.remaining_s(_ATTEMPT_LIMIT_S)), strict=True):
                refusal = None if answer.error is None else error_of(answer.error)
                if refusal is not None and not isinstance(refusal, RetriableError):
                    raise refusal
                yield at, answer if refusal is None else refusal

    found, failure = ask_leaders(find_leaders, ask_leader, deadline)
    if failure is not None:
        raise failure
    return found
