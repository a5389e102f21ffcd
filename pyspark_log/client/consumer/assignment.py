"""What a consumer reads: topics by name or by a pattern, or the partitions that it assigned itself.

Rule: the assignment changes, and callbacks run, in the caller's thread and nowhere else. What the background thread
learns of topics waits in ``_new_metadata`` until the caller polls. A partition that is revoked is committed as far as
the caller is done with it, where auto-commit is on; one that was lost never is.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from broker_runtime.contract.errors import (
    ClientStateError,
    FencedError,
    NoOffsetForPartitionError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import HEADERS_COLUMN_ID, TIMESTAMP_COLUMN_ID
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.committer import Committer
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.heartbeats import Heartbeats
from pyspark_log.client.consumer.membership import Phase
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters
from pyspark_log.client.reading.rows import RowFilter, topic_predicate

REFRESH_S: Final = 3.0
"""How often the background thread looks for new partitions, topics and leaders."""
POLL_CALL_LIMIT_S: Final = 5.0
"""How long a call to the cluster may take that a poll makes on its own account."""
_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}

_logger = logging.getLogger(__name__)

OnPartitions = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What the caller has called when partitions are assigned, revoked or lost."""

    on_assign: OnPartitions | None = None
    on_revoke: OnPartitions | None = None
    on_lost: OnPartitions | None = None


class Assignment:
    """What one consumer reads: of a subscription all partitions. `GroupAssignment` has the share of a group's member.

    For the caller's thread, except `fetch_metadata`, `take_metadata` and `metadata_interval_s`.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        fetcher: Fetcher,
        committer: Committer,
        heartbeats: Heartbeats,
        start_threads: Callable[[], object],
        meters: ConsumerMeters = NO_CONSUMER_METERS,
    ) -> None:
        """``start_threads`` starts the threads that newly assigned partitions need."""
        self._cluster = cluster
        self._reset = settings.auto_offset_reset
        self._columns = settings.columns
        self._where = settings.where
        self._fetcher = fetcher
        self._committer = committer
        self._heartbeats = heartbeats
        self._start_threads = start_threads
        self._meters = meters
        self._callbacks = Callbacks()
        self._names: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._lock = threading.Lock()  # guards what the background thread leaves for the caller
        self._new_metadata: list[Topic] | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether something was subscribed to or assigned."""
        return bool(self._fetcher.states) or self._is_by_topic

    @property
    def topics(self) -> set[str]:
        """The names that are subscribed to, including those that the pattern found."""
        return set(self._names) if self._pattern is None else {at.topic for at in self._fetcher.states}

    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """The partitions that are read now."""
        return self._fetcher.states

    def state(self, at: TopicPartition) -> PartitionState:
        """The state of an assigned partition; raises `ClientStateError` if it is not assigned."""
        found = self._fetcher.states.get(at)
        if found is None:
            raise ClientStateError(f"{at} is not assigned to this consumer")
        return found

    # --- what the caller asks for -----------------------------------------------------------------------------

    def subscribe(self, names: list[str], pattern: re.Pattern[str] | None, callbacks: Callbacks) -> None:
        """See `Consumer.subscribe`."""
        topics = self._find(names, pattern)
        partitions = _partitions_of(topics)
        ids = {topic.name: topic.topic_id for topic in topics}
        known = {
            at: state.position
            for at, state in self.states.items()
            if at in partitions and state.topic.topic_id == ids[at.topic]
        }
        self.unsubscribe()
        first = self._first_positions([at for at in partitions if at not in known])
        self._names, self._pattern, self._callbacks = names, pattern, callbacks
        self._replace([], topics, {**known, **first})
        self._call_on_assign(partitions)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `Consumer.assign`."""
        wanted = list(dict.fromkeys(partitions))
        topics = {name: self._cluster.fetch_topics([name])[0] for name in dict.fromkeys(at.topic for at in wanted)}
        for at in wanted:
            topics[at.topic].partition(at.partition)
        if self._is_by_topic:
            self.unsubscribe()
        states = self._fetcher.states
        kept = {
            at: one for at, one in states.items() if at in wanted and one.topic.topic_id == topics[at.topic].topic_id
        }
        self._committer.commit_released(state for at, state in states.items() if at not in kept)
        first = self._first_positions([at for at in wanted if at not in kept])
        self._replace(kept.values(), topics.values(), first)

    def unsubscribe(self) -> None:
        """Stops reading everything: commits what auto-commit covers, and leaves the group."""
        if self._heartbeats.loss() is not None:
            self._lose_all()
        else:
            try:
                self._committer.commit_released(self._fetcher.states.values())
            except FencedError as error:
                event(_logger, "commit offsets", level=logging.WARNING, error=error)
        revoked = list(self._fetcher.states)
        self._names, self._pattern = [], None
        try:
            if not self._is_member:
                self._drop(revoked)
            if revoked:
                self._call_on_revoke(revoked)
        finally:
            self._drop(revoked)
            self._callbacks = Callbacks()
            self._leave()

    def close(self) -> None:
        """Calls ``on_revoke`` and leaves the group, after everything was committed. Blocks a bounded time."""
        try:
            if self._fetcher.states:
                self._call_on_revoke(self._fetcher.states)
        finally:
            self._leave()

    def drop_if_lost(self) -> bool:
        """Whether everything that was held is lost; if so, it is dropped and ``on_lost`` was called."""
        if self._heartbeats.loss() is None:
            return False
        self._lose_all()
        return True

    # --- positions --------------------------------------------------------------------------------------------

    @property
    def can_reset(self) -> bool:
        """Whether a position that does not exist is replaced by the log's beginning or end."""
        return self._reset in _RESETS

    def reset_positions(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Where ``auto.offset.reset`` says that each begins. Raises `NoOffsetForPartitionError` if it says nowhere."""
        if self._reset not in _RESETS:
            group = f"group {self._committer.group_id!r} committed no offset" if self._committer.has_group else None
            why = group or "there is no group"
            raise NoOffsetForPartitionError(f"{partitions[0]}: {why}, and auto_offset_reset is 'none'")
        return self._log_limits(partitions, _RESETS[self._reset], timeout_s)

    # --- topics come and go -----------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether `apply_changes` has something to do at once."""
        return self._new_metadata is not None

    def apply_changes(self) -> None:
        """Begins to read partitions that were added to what is subscribed to, from their first record.

        Blocks a bounded time.
        """
        with self._lock:
            topics, self._new_metadata = self._new_metadata, None
        if topics is not None and self._is_by_topic:
            added = [at for at in _partitions_of(topics) if at not in self._fetcher.states]
            if added:
                self._begin_added(topics, added)

    def continues_without(self, state: PartitionState) -> bool:
        """Whether the consumer continues although a partition's leader says that its topic is gone.

        One that subscribed to a pattern reads the other topics until there is one of that name again. One that
        subscribed to names continues if the topic was recreated, with the new topic's first record, unless
        ``auto_offset_reset="none"`` forbids choosing a position. Blocks a bounded time.
        """
        name = state.at.topic
        if self._pattern is not None:
            self._replace_topic(name, None)
            return True
        if not self._names or not self.can_reset:
            return False
        try:
            topic = self._cluster.fetch_topics([name], timeout_s=POLL_CALL_LIMIT_S)[0]
        except (UnknownTopicOrPartitionError, RetriableError):
            return False
        if topic.topic_id == state.topic.topic_id:
            return False
        event(_logger, "follow recreated topic", level=logging.WARNING, topic=name)
        self._replace_topic(name, topic)
        return True

    # --- for the background thread ----------------------------------------------------------------------------

    @property
    def metadata_interval_s(self) -> float:
        """How long metadata may be used before it is fetched again."""
        return REFRESH_S

    def fetch_metadata(self) -> list[Topic]:
        """The topics as they are now. Blocks and raises as `Cluster.fetch_topics`.

        A topic that is gone does not hold up the others: their leaders are used at once.
        """
        if self._is_by_topic:
            try:
                return self._find(self._names, self._pattern)
            except UnknownTopicOrPartitionError as error:
                self._update_each(self._names)
                raise error from None
        names = list(dict.fromkeys(at.topic for at in list(self._fetcher.states)))
        return self._cluster.fetch_topics(names) if names else []

    def take_metadata(self, topics: list[Topic] | PylogError) -> None:
        """Uses the leaders at once; new partitions wait for the caller. An error is left to the partition's leader."""
        if isinstance(topics, list):
            for topic in topics:
                self._fetcher.update(topic)
            with self._lock:
                self._new_metadata = topics
        self._fetcher.wake_caller()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``."""
        self._lock = threading.Lock()
        self._meters = NO_CONSUMER_METERS

    # --- private: the partitions and their callbacks ----------------------------------------------------------

    @property
    def _is_by_topic(self) -> bool:
        return self._pattern is not None or bool(self._names)

    @property
    def _is_member(self) -> bool:
        """Whether the consumer is, or wants to be, a member of its group."""
        return self._heartbeats.machine.phase is not Phase.OUT

    def _leave(self) -> None:
        self._heartbeats.leave()

    def _replace(
        self, kept: Iterable[PartitionState], topics: Iterable[Topic], positions: Mapping[TopicPartition, int]
    ) -> None:
        """From now on the partitions in ``kept`` and in ``positions`` are read, and no others."""
        self._committer.looped = None
        self._fetcher.set_assignment([*kept, *self._new_states(topics, positions)])
        self._start_threads()

    def _add(self, topics: Iterable[Topic], positions: Mapping[TopicPartition, int]) -> None:
        """Reads these as well. Runs no callback."""
        if positions:
            self._fetcher.add(self._new_states(topics, positions))
            self._start_threads()

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stops reading these. Runs no callback and commits nothing."""
        dropped = set(partitions)
        self._committer.forget(dropped)
        for at in dropped & self.states.keys():
            self.states[at].begin_generation()  # a loop that is in the middle of it delivers nothing more
        self._fetcher.set_assignment([state for at, state in self.states.items() if at not in dropped])

    def _lose_all(self) -> None:
        """Drops everything, as others may have it by now, and calls ``on_lost``."""
        lost = sorted(self.states)
        self._committer.refuse_waiting(lost)
        self._drop(lost)
        if lost and self._callbacks.on_lost is not None:
            self._callbacks.on_lost(lost)

    def _call_on_assign(self, partitions: Iterable[TopicPartition]) -> None:
        if self._callbacks.on_assign is not None:
            self._callbacks.on_assign(sorted(partitions))

    def _call_on_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        if self._callbacks.on_revoke is not None:
            self._callbacks.on_revoke(sorted(partitions))

    def _new_states(self, topics: Iterable[Topic], positions: Mapping[TopicPartition, int]) -> list[PartitionState]:
        by_name = {topic.name: topic for topic in topics}
        self._committer.note_committed(positions)
        return [self._new_state(by_name[at.topic], at.partition, position) for at, position in positions.items()]

    def _new_state(self, topic: Topic, partition: int, position: int) -> PartitionState:
        where = None
        if self._where is not None:
            where = RowFilter(topic.name, topic.schema, topic_predicate(self._where, topic.schema))
        if self._columns is None:
            return PartitionState(topic, partition, position, None, where=where)
        chosen = frozenset(topic.schema.column_ids(self._columns))
        ids = chosen | {TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID} | (where.column_ids if where is not None else set())
        names = [topic.schema.arrow.names[column_id] for column_id in sorted(chosen)]
        return PartitionState(topic, partition, position, tuple(sorted(ids)), names=names, where=where)

    # --- private: topics and positions ------------------------------------------------------------------------

    def _find(self, names: list[str], pattern: re.Pattern[str] | None) -> list[Topic]:
        if pattern is not None:
            return [topic for topic in self._cluster.fetch_topics() if pattern.fullmatch(topic.name)]
        return self._cluster.fetch_topics(names)

    def _update_each(self, names: list[str]) -> None:
        for name in names if len(names) > 1 else ():
            with suppress(UnknownTopicOrPartitionError):
                self._fetcher.update(self._cluster.fetch_topics([name], timeout_s=POLL_CALL_LIMIT_S)[0])

    def _replace_topic(self, name: str, newer: Topic | None) -> None:
        """Stops reading a topic that is gone, and begins to read the one that was created in its place, if any."""
        dropped = [at for at in self._fetcher.states if at.topic == name]
        self._drop(dropped)
        self._call_on_revoke(dropped)
        if newer is not None:
            self._begin_added([newer], _partitions_of([newer]))

    def _begin_added(self, topics: list[Topic], partitions: list[TopicPartition]) -> None:
        """Reads these as well. If nobody answers where they begin, the next metadata names them again."""
        try:
            first = self._log_starts(partitions, timeout_s=POLL_CALL_LIMIT_S)
        except RetriableError as error:
            event(_logger, "begin partitions", partitions=len(partitions), error=error)
            return
        self._add(topics, first)
        self._call_on_assign(partitions)

    def _first_positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each begins: at the committed offset, else as ``auto.offset.reset`` says. Writes nothing."""
        if not partitions:
            return {}
        found = self._committer.committed(partitions) if self._committer.has_group else {}
        missing = [at for at in partitions if at not in found]
        new = self.reset_positions(missing) if missing else {}
        return {at: found[at] if at in found else new[at] for at in partitions}

    def _log_starts(self, partitions: Sequence[TopicPartition], *, timeout_s: float) -> dict[TopicPartition, int]:
        """Where partitions begin that were added during the subscription: at their first record, never the latest.

        Blocks at most ``timeout_s``, then raises the last `RetriableError`.
        """
        return self._log_limits(partitions, EARLIEST, timeout_s)

    def _log_limits(
        self, partitions: Sequence[TopicPartition], which: int, timeout_s: float | None
    ) -> dict[TopicPartition, int]:
        answers = offsets.list_offsets(
            self._cluster,
            dict.fromkeys(partitions, which),
            timeout_s=timeout_s,
            isolation_level=self._fetcher.isolation_level,
        )
        return {at: answer.offset for at, answer in answers.items()}


def _partitions_of(topics: list[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions]
