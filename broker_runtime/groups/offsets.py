"""The offsets that groups have acknowledged: one packed znode per group and topic, changed by compare-and-set.

Rules: an acknowledgement comes after the write; commits of one group and topic that wait while another is written go
out together, as one write; offsets that are as they were write nothing. A write holds only while the topic exists
(checked in the same transaction), and offsets kept under another topic id are of a topic that is no more: they are not
seen, and replaced by the next commit.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    PylogError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    ZNode,
    ZooKeeperClient,
)
from broker_runtime.zookeeper.znodes import (
    GroupOffsets,
    StoredOffset,
    from_json,
    group_offsets_parent,
    group_offsets_path,
    to_json,
    topic_path,
)

log = logging.getLogger(__name__)

COMMIT_LIMIT_S: Final = 25.0
# How long one write is tried again, after others' writes and lost answers. The pauses are drawn by chance, so that two
# brokers that write at once do not go on meeting.
_WRITE_LIMIT_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 0.1


@dataclass(slots=True, eq=False)
class _Commit:
    """One caller's offsets of one group and topic, waiting to be written."""

    topic_id: bytes
    offsets: Mapping[int, StoredOffset]
    only_forward: bool
    # Set when there is news: it was written (or refused: `error`), or it is this caller's turn to write.
    news: threading.Event = field(default_factory=threading.Event)
    is_done: bool = False
    error: PylogError | None = None


@dataclass(slots=True, eq=False)
class _Queue:
    """What waits for one group and topic. Invariant: nobody waits without somebody who writes."""

    waiting: list[_Commit] = field(default_factory=list)
    is_writing: bool = False


class OffsetStore:
    """All groups' offsets. Thread-safe; every call blocks for ZooKeeper, up to `COMMIT_LIMIT_S`."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._lock = threading.Lock()  # guards the queues; never held over a call to ZooKeeper
        self._queues: dict[tuple[str, str], _Queue] = {}
        self.writes = 0
        """How many writes were made."""

    def commit(
        self,
        group_id: str,
        topic: str,
        topic_id: bytes,
        offsets: Mapping[int, StoredOffset],
        *,
        only_forward: bool = False,
    ) -> None:
        """Returns when the offsets are in ZooKeeper. ``only_forward``: those below the committed ones change nothing.

        Raises `UnknownTopicOrPartitionError` if the topic is gone, `InvalidRequestError` if the znode would become too
        large, `ZooKeeperUnavailableError` (whether they are committed is unknown then).
        """
        key = (group_id, topic)
        commit = _Commit(topic_id=topic_id, offsets=dict(offsets), only_forward=only_forward)
        with self._lock:
            queue = self._queues.setdefault(key, _Queue())
            queue.waiting.append(commit)
            is_writer = not queue.is_writing
            queue.is_writing = True
        if not is_writer and not commit.news.wait(COMMIT_LIMIT_S):
            with self._lock:
                if not commit.news.is_set():
                    if commit in queue.waiting:
                        queue.waiting.remove(commit)
                    raise ZooKeeperUnavailableError(f"offsets of {group_id} wait for ZooKeeper. Try again later")
        if not commit.is_done:
            self._write_waiting(key, queue)
        if commit.error is not None:
            raise commit.error

    def fetch(self, group_id: str, topics: Sequence[str]) -> dict[str, GroupOffsets]:
        """What the group has committed in ``topics``, under whatever topic id; topics without are left out.

        Raises `ZooKeeperUnavailableError`.
        """
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
        """Writes what waits now, the caller's own included, and hands the pen to the next who waits."""
        with self._lock:
            batch, queue.waiting = queue.waiting, []
        # What nobody foresaw is raised to this caller only; the others must not take it for a success.
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
                    if error is None and commit.topic_id != batch[-1].topic_id:
                        commit.error = InconsistentTopicIdError(
                            f"topic {key[1]!r} was made anew; nothing was committed"
                        )
                    commit.news.set()
                if queue.waiting:
                    queue.waiting[0].news.set()
                else:
                    queue.is_writing = False
                    del self._queues[key]

    def _write(self, key: tuple[str, str], batch: Sequence[_Commit]) -> None:
        group_id, topic = key
        path = group_offsets_path(group_id, topic)
        deadline = time.monotonic() + _WRITE_LIMIT_S
        longest_pause = 0.001
        while True:
            node = self._client.find(path)
            present = None if node is None else from_json(node.data, GroupOffsets, path)
            merged = merge(present, batch)
            if merged == present:
                return
            data = to_json(merged)
            try:
                self._client.transaction([Check(topic_path(topic), ANY_VERSION), _operation(path, node, data)])
                self.writes += 1
            except (BadVersionError, NodeExistsError):
                pass  # another broker wrote meanwhile
            except NoNodeError as missing:
                if missing.path == topic_path(topic):
                    raise UnknownTopicOrPartitionError(f"no topic {topic!r}: it was deleted") from None
                self._client.ensure_path(group_offsets_parent(group_id))
            except ZooKeeperUnavailableError:
                # Unknown whether it was written: the next round reads it back, and finds nothing left to change if so.
                if not self._client.is_connected or time.monotonic() > deadline:
                    raise
            else:
                return
            if time.monotonic() > deadline:
                raise ZooKeeperUnavailableError(f"{path} keeps changing; the offsets were not written. Try again later")
            time.sleep(random.uniform(0, longest_pause))
            longest_pause = min(longest_pause * 2, _LONGEST_PAUSE_S)


def merge(present: GroupOffsets | None, batch: Sequence[_Commit]) -> GroupOffsets:
    """``present`` with the commits on top, in order; ``present`` itself, or an equal one, if they change nothing."""
    topic_id = batch[-1].topic_id
    offsets = dict(present.offsets) if present is not None and present.topic_id == topic_id else {}
    for commit in batch:
        if commit.topic_id != topic_id:
            continue  # for a topic that was made anew while it waited: the caller is told
        for partition, new in commit.offsets.items():
            old = offsets.get(partition)
            if old is not None:
                if commit.only_forward and new.offset <= old.offset:
                    continue
                if (old.offset, old.leader_epoch, old.metadata) == (new.offset, new.leader_epoch, new.metadata):
                    continue
            offsets[partition] = new
    return GroupOffsets(topic_id=topic_id, offsets=offsets)


def _operation(path: str, node: ZNode | None, data: bytes) -> Operation:
    return Create(path, data) if node is None else Set(path, data, node.version)
