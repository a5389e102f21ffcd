"""The offsets that groups have acknowledged: one packed znode per group and topic, changed by compare-and-set.

Rules: a commit is acknowledged after it is written. Commits of one group and topic that wait while another is being
written are written together. Offsets that have not changed are written only once in a while, to show that they are in
use. A write succeeds only while the topic exists and the coordinator's claim stands (the same transaction checks both,
see `claims`). Offsets kept under another topic id belong to a topic that was deleted: they are ignored, and replaced by
the next commit for the present topic. After a write whose outcome is unknown, nothing counts that was read before that
write must have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    NotCoordinatorError,
    PylogError,
    StaleMemberEpochError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.zookeeper.guarded import Guard, GuardFailedError, Planned, barrier, change
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    Check,
    Create,
    NoNodeError,
    Operation,
    Set,
    ZNode,
    ZNodeError,
    ZooKeeperClient,
    check_request_size,
)
from broker_runtime.zookeeper.znodes import (
    GroupOffsets,
    StoredOffset,
    TopicRecord,
    from_json,
    group_offsets_parent,
    group_offsets_path,
    to_compact_json,
    topic_path,
)

COMMIT_LIMIT_S: Final = 25.0
# How long one write is retried after other writers' changes and lost answers.
_WRITE_LIMIT_S: Final = 10.0
_WRITE_ATTEMPTS: Final = 1_000
# The longest time that a write can take once it has begun: its tries, and the requests of the last one.
_WRITE_END_S: Final = 60.0
REFRESH_MS: Final = 86_400_000


@dataclass(slots=True, eq=False)
class _Commit:
    """One caller's offsets of one group and topic, waiting to be written."""

    topic_id: bytes
    offsets: Mapping[int, StoredOffset]
    only_forward: bool
    guard: Guard | None = None
    # Set once: it was written or refused (`is_done`, `error`), or this caller is the next to write.
    news: threading.Event = field(default_factory=threading.Event)
    is_done: bool = False
    error: PylogError | None = None


@dataclass(slots=True, eq=False)
class _Queue:
    """Commits that wait for one group and topic. Invariant: while any waits, one caller is writing."""

    waiting: list[_Commit] = field(default_factory=list)
    is_writing: bool = False


class OffsetStore:
    """All groups' offsets. Thread-safe; calls block on ZooKeeper, up to `COMMIT_LIMIT_S`."""

    def __init__(self, client: ZooKeeperClient, *, refresh_ms: int = REFRESH_MS) -> None:
        """``refresh_ms``: offsets that have not changed are written again when they are as old as this."""
        self._client = client
        self._refresh_ms = refresh_ms
        self._lock = threading.Lock()  # guards _queues; never held over a call to ZooKeeper
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._doubts: set[str] = set()  # see `change`
        self.writes = 0
        """The number of writes made."""

    def commit(
        self,
        group_id: str,
        topic: str,
        topic_id: bytes,
        offsets: Mapping[int, StoredOffset],
        *,
        only_forward: bool = False,
        guard: Guard | None = None,
    ) -> None:
        """Returns when the offsets are in ZooKeeper. ``only_forward``: those below the committed ones change nothing.
        ``guard``: of the claim under which they are written; None: whichever broker has the group.

        Raises `UnknownTopicOrPartitionError` if the topic is gone, `InconsistentTopicIdError` if it was recreated and
        has offsets, `NotCoordinatorError` if the claim does not stand,
        `InvalidRequestError` if the znode would become too large, `ZooKeeperUnavailableError` (whether they are
        committed is unknown then).
        """
        key = (group_id, topic)
        commit = _Commit(topic_id=topic_id, offsets=dict(offsets), only_forward=only_forward, guard=guard)
        with self._lock:
            queue = self._queues.setdefault(key, _Queue())
            queue.waiting.append(commit)
            is_writer = not queue.is_writing
            queue.is_writing = True
        if not is_writer and not commit.news.wait(COMMIT_LIMIT_S):
            with self._lock:
                is_waiting = commit in queue.waiting and not commit.news.is_set()
                if is_waiting:
                    queue.waiting.remove(commit)
            # If this commit is being written already, wait on: a caller that is told it failed must be able to rely on
            # it never being applied later.
            if is_waiting or not commit.news.wait(_WRITE_END_S):
                raise ZooKeeperUnavailableError(f"offsets of {group_id} wait for ZooKeeper. Try again later")
        if not commit.is_done:
            self._write_waiting(key, queue)
        if commit.error is not None:
            raise commit.error

    def planned(
        self, group_id: str, topics: Mapping[str, tuple[bytes, Mapping[int, StoredOffset]]], guard: Guard
    ) -> list[Operation]:
        """The operations that commit these offsets of topics (id, offset by partition), from a fresh read: for a
        transaction that writes something else as well, under ``guard``. Raises as `commit`; `StaleMemberEpochError` if
        one of a later assignment is there: without these offsets there is no transaction."""
        operations: list[Operation] = []
        parent = group_offsets_parent(group_id)
        paths = [group_offsets_path(group_id, topic) for topic in topics]
        above, *nodes = self._client.find_all([parent, *paths])
        if above is None:
            operations.append(Create(parent))
        for (topic, (topic_id, offsets)), path, node in zip(topics.items(), paths, nodes, strict=True):
            present = None if node is None else from_json(node.data, GroupOffsets, path)
            commit = _Commit(topic_id=topic_id, offsets=offsets, only_forward=False, guard=guard)
            stored = {} if present is None or present.topic_id != topic_id else present.offsets
            late = sorted(each for each in offsets if each in stored and _is_superseded(offsets[each], stored[each]))
            if late:
                raise StaleMemberEpochError(
                    f"offsets of {topic}-{late[0]} were committed under a later assignment than the transaction's"
                )
            merged = merge(present, [commit], refresh_ms=self._refresh_ms)
            operations.append(Check(topic_path(topic), self._version_of(topic, topic_id)))
            if merged != present:
                operations.append(_operation(path, node, to_compact_json(merged, path)))
            _check_size((group_id, topic), [guard.check, *operations])
        return operations

    def fetch(
        self, group_id: str, topics: Sequence[str] | None, *, guard: Guard | None = None
    ) -> dict[str, GroupOffsets]:
        """What the group has committed in ``topics`` (None: in all), under any topic id; topics without any are left
        out. With ``guard``: read after everything that was under way before the call.

        Raises `NotCoordinatorError` if the claim does not stand, `ZooKeeperUnavailableError`.
        """
        if guard is not None:
            try:
                barrier(self._client, guard=guard)
            except GuardFailedError:
                raise _deposed(group_id) from None
        if topics is None:
            topics = self.topics_of(group_id)
        paths = [group_offsets_path(group_id, topic) for topic in topics]
        nodes = self._client.find_all(paths)
        return {
            topic: from_json(node.data, GroupOffsets, path)
            for topic, path, node in zip(topics, paths, nodes, strict=True)
            if node is not None
        }

    def topics_of(self, group_id: str) -> list[str]:
        """The topics the group has offsets in. Raises `ZooKeeperUnavailableError`."""
        try:
            return self._client.children(group_offsets_parent(group_id))
        except NoNodeError:
            return []

    # --- private ----------------------------------------------------------------------------------------------

    def _write_waiting(self, key: tuple[str, str], queue: _Queue) -> None:
        """Writes all waiting commits, the caller's own included, and makes the next waiting caller the writer."""
        with self._lock:
            batch, queue.waiting = queue.waiting, []
        # An unforeseen error is raised to this caller alone; to the others it must not look like a success.
        error: PylogError | None = UnknownServerError(f"offsets of {key[0]!r} were not written; see the broker's log")
        try:
            self._write(key, batch)
            error = None
        except PylogError as refusal:
            error = refusal
        finally:
            with self._lock:
                for commit in batch:
                    commit.is_done, commit.error = True, error
                    if error is None and commit.guard != batch[-1].guard:
                        commit.error = _deposed(key[0])
                    elif error is None and commit.topic_id != batch[-1].topic_id:
                        commit.error = InconsistentTopicIdError(
                            f"topic {key[1]!r} was recreated; nothing was committed"
                        )
                    commit.news.set()
                if queue.waiting:
                    queue.waiting[0].news.set()
                else:
                    queue.is_writing = False
                    del self._queues[key]

    def _write(self, key: tuple[str, str], batch: Sequence[_Commit]) -> None:
        group_id, topic = key
        guard = batch[-1].guard
        parent, path = group_offsets_parent(group_id), group_offsets_path(group_id, topic)

        def plan() -> Planned[bool]:
            above, node = self._client.find_all([parent, path])
            present = None if node is None else from_json(node.data, GroupOffsets, path)
            merged = merge(present, batch, refresh_ms=self._refresh_ms)
            if merged == present:
                return Planned(False)
            topic_version = ANY_VERSION
            if present is not None and present.topic_id != merged.topic_id:
                topic_version = self._version_of(topic, merged.topic_id)
            operations: list[Operation] = [Check(topic_path(topic), topic_version)]
            if above is None and guard is None:
                self._client.ensure_path(parent)
            elif above is None:
                operations.append(Create(parent))
            operations.append(_operation(path, node, to_compact_json(merged, path)))
            _check_size(key, operations if guard is None else [guard.check, *operations])
            return Planned(True, operations)

        def on_conflict(refusal: ZNodeError) -> None:
            if isinstance(refusal, NoNodeError) and refusal.path == topic_path(topic):
                raise UnknownTopicOrPartitionError(f"no topic {topic!r}: it was deleted") from None

        try:
            self.writes += change(
                self._client,
                plan,
                what=path,
                guard=guard,
                doubts=self._doubts,
                on_conflict=on_conflict,
                attempts=_WRITE_ATTEMPTS,
                limit_s=_WRITE_LIMIT_S,
            )
        except GuardFailedError:
            raise _deposed(group_id) from None

    def _version_of(self, topic: str, topic_id: bytes) -> int:
        """The version of the topic's znode. Raises `InconsistentTopicIdError` if the topic has another id by now: the
        caller read it before it was recreated, and the stored offsets are the present topic's."""
        node = self._client.find(topic_path(topic))
        if node is None:
            raise UnknownTopicOrPartitionError(f"no topic {topic!r}: it was deleted")
        if from_json(node.data, TopicRecord, topic_path(topic)).topic_id != topic_id:
            raise InconsistentTopicIdError(f"topic {topic!r} was recreated; nothing was committed")
        return node.version


def merge(present: GroupOffsets | None, batch: Sequence[_Commit], *, refresh_ms: int = REFRESH_MS) -> GroupOffsets:
    """``present`` with the commits on top, in order; ``present`` itself, or an equal one, if they change nothing."""
    topic_id, guard = batch[-1].topic_id, batch[-1].guard
    offsets = dict(present.offsets) if present is not None and present.topic_id == topic_id else {}
    for commit in batch:
        if (commit.topic_id, commit.guard) != (topic_id, guard):
            continue  # its topic was recreated or its claim ended while it waited: its caller gets an error
        for partition, new in commit.offsets.items():
            old = offsets.get(partition)
            if old is not None:
                if (commit.only_forward and new.offset < old.offset) or _is_superseded(new, old):
                    continue
                is_same = (old.offset, old.leader_epoch, old.metadata) == (new.offset, new.leader_epoch, new.metadata)
                if (is_same or (commit.only_forward and new.offset == old.offset)) and (
                    new.committed_at_ms - old.committed_at_ms < refresh_ms
                ):
                    continue
            offsets[partition] = new
    return GroupOffsets(topic_id=topic_id, offsets=offsets)


def _is_superseded(new: StoredOffset, old: StoredOffset) -> bool:
    """Whether a commit arrives after a later one: it was stuck on its way, perhaps to a broker that coordinates the
    group again by now. The outcome is as if it had been written in its time."""
    if min(new.member_epoch, old.member_epoch) < 0 or new.member_epoch > old.member_epoch:
        return False
    return new.member_epoch < old.member_epoch or 0 <= new.sequence < old.sequence


def _check_size(key: tuple[str, str], operations: Sequence[Operation]) -> None:
    try:
        check_request_size(operations)
    except InvalidRequestError as error:
        group_id, topic = key
        raise InvalidRequestError(
            f"offsets of group {group_id!r} in topic {topic!r}, with their metadata, are too much: {error.message}"
        ) from None


def _deposed(group_id: str) -> NotCoordinatorError:
    return NotCoordinatorError(f"this broker no longer coordinates group {group_id!r}; find its coordinator again")


def _operation(path: str, node: ZNode | None, data: bytes) -> Operation:
    return Create(path, data) if node is None else Set(path, data, node.version)
