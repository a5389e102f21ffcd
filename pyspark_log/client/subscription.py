"""What a consumer reads: topics by name or by a pattern, or the partitions it was assigned; and how that changes.

Rule: the assignment changes here and nowhere else, and like the callbacks only in the caller's thread. With a group, a
subscription's first positions are committed before it is in force (W17). What the consumer's own thread learns of
topics waits in ``_news`` until the caller comes by.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence

from broker_runtime.contract.errors import (
    ClientStateError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.frame import HEADERS_COLUMN_ID, TIMESTAMP_COLUMN_ID
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client.cluster import Cluster
from pyspark_log.client.commits import Commits
from pyspark_log.client.fetcher import Fetcher
from pyspark_log.client.partition_state import PartitionState
from pyspark_log.client.start_positions import StartPositions
from pyspark_log.client.topics import Topic

_ASK_LIMIT_S = 5.0  # of a question that a poll asks on its own account

_logger = logging.getLogger(__name__)

OnPartitions = Callable[[list[TopicPartition]], object]


class Subscription:
    """One consumer's. For its caller's thread, but for `describe` and `tell`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        start: StartPositions,
        fetcher: Fetcher,
        commits: Commits,
        begin: Callable[[], object],
    ) -> None:
        """``begin`` starts the threads that the assignment needs."""
        self._cluster = cluster
        self._columns = settings.columns
        self._start = start
        self._fetcher = fetcher
        self._commits = commits
        self._begin = begin
        self._names: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._on_assign: OnPartitions | None = None
        self._on_revoke: OnPartitions | None = None
        self._news: list[Topic] | None = None
        self._news_lock = threading.Lock()

    @property
    def is_in_use(self) -> bool:
        """Whether something was subscribed to or assigned."""
        return bool(self._fetcher.states) or self._by_topic

    @property
    def topics(self) -> set[str]:
        """The names that are subscribed to, those that the pattern found included."""
        if self._pattern is not None:
            return {at.topic for at in self._fetcher.states}
        return set(self._names)

    def state(self, at: TopicPartition) -> PartitionState:
        """Of an assigned partition; raises `ClientStateError`."""
        found = self._fetcher.states.get(at)
        if found is None:
            raise ClientStateError(f"{at} is not assigned to this consumer")
        return found

    # --- what the caller asks for -----------------------------------------------------------------------------

    def subscribe(
        self,
        names: list[str],
        pattern: re.Pattern[str] | None,
        on_assign: OnPartitions | None,
        on_revoke: OnPartitions | None,
    ) -> None:
        """See `Consumer.subscribe`."""
        topics = self._find(names, pattern)
        partitions = _partitions_of(topics)
        # With a group the way goes over what it has committed, else nobody but this consumer knows where it was.
        known = {}
        if not self._start.has_group:
            known = {at: state.position for at, state in self._fetcher.states.items() if at in partitions}
        self.unsubscribe()
        first = self._start.first([at for at in partitions if at not in known], saves=True)
        states = self._states(topics, {**known, **first})
        self._names, self._pattern = names, pattern
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._assign(states)
        if on_assign is not None:
            on_assign(sorted(partitions))

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `Consumer.assign`."""
        wanted = list(dict.fromkeys(partitions))
        topics = {name: self._cluster.fetch_topics([name])[0] for name in dict.fromkeys(at.topic for at in wanted)}
        for at in wanted:
            topics[at.topic].partition(at.partition)
        if self._by_topic:
            self.unsubscribe()
        states = self._fetcher.states
        kept = {
            at: one for at, one in states.items() if at in wanted and one.topic.topic_id == topics[at.topic].topic_id
        }
        self._commits.give_up(state for at, state in states.items() if at not in kept)
        first = self._start.first([at for at in wanted if at not in kept], saves=False)
        self._assign([*kept.values(), *self._states(list(topics.values()), first)])

    def unsubscribe(self) -> None:
        """Nothing is read any more; what auto-commit covers is committed."""
        revoked = sorted(self._fetcher.states)
        self._commits.give_up(self._fetcher.states.values())
        self._names, self._pattern, self._commits.looped = [], None, None
        self._fetcher.set_assignment([])
        on_revoke, self._on_assign, self._on_revoke = self._on_revoke, None, None
        if revoked and on_revoke is not None:
            on_revoke(revoked)

    def revoke_all(self) -> None:
        """The consumer is closed: calls ``on_revoke``."""
        revoked = sorted(self._fetcher.states)
        if revoked and self._on_revoke is not None:
            self._on_revoke(revoked)

    # --- topics come and go -----------------------------------------------------------------------------------

    def take_news(self) -> None:
        """New partitions and topics of a subscription are read from their first record on. Blocks a bounded time."""
        with self._news_lock:
            news, self._news = self._news, None
        if news is None or not self._by_topic:
            return
        new = [at for at in _partitions_of(news) if at not in self._fetcher.states]
        if not new:
            return
        self._add(news, new)

    def goes_on_without(self, state: PartitionState) -> bool:
        """Whether to go on although a partition's leader says that its topic is gone.

        A pattern: until a topic of that name is there again. Names: if the topic was made anew, with the new one's
        first record, unless ``auto_offset_reset="none"`` forbids to choose a position. Blocks a bounded time.
        """
        name = state.at.topic
        if self._pattern is not None:
            self._drop_topic(name)
            return True
        if not self._names or not self._start.can_reset:
            return False
        try:
            topic = self._cluster.fetch_topics([name], timeout_s=_ASK_LIMIT_S)[0]
        except (UnknownTopicOrPartitionError, RetriableError):
            return False
        if topic.topic_id == state.topic.topic_id:
            return False
        _logger.warning("topic was made anew topic=%s", name)
        self._drop_topic(name)
        self._add([topic], _partitions_of([topic]))
        return True

    # --- for the consumer's own thread ------------------------------------------------------------------------

    def describe(self) -> list[Topic]:
        """The topics as they are now. Blocks and raises as `Cluster.fetch_topics`."""
        if self._by_topic:
            return self._find(self._names, self._pattern)
        names = list(dict.fromkeys(at.topic for at in list(self._fetcher.states)))
        return self._cluster.fetch_topics(names) if names else []

    def tell(self, news: list[Topic] | PylogError) -> None:
        """Leaders are used at once, the rest waits for the caller. (An error the caller learns from the leader.)"""
        if isinstance(news, list):
            for topic in news:
                self._fetcher.update(topic)
            with self._news_lock:
                self._news = news
        with self._fetcher.condition:
            self._fetcher.condition.notify_all()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``."""
        self._news_lock = threading.Lock()

    # --- private ----------------------------------------------------------------------------------------------

    @property
    def _by_topic(self) -> bool:
        return self._pattern is not None or bool(self._names)

    def _find(self, names: list[str], pattern: re.Pattern[str] | None) -> list[Topic]:
        if pattern is not None:
            return [topic for topic in self._cluster.fetch_topics() if pattern.fullmatch(topic.name)]
        return self._cluster.fetch_topics(names)

    def _assign(self, states: list[PartitionState]) -> None:
        self._commits.looped = None
        self._fetcher.set_assignment(states)
        self._begin()

    def _add(self, topics: list[Topic], partitions: list[TopicPartition]) -> None:
        """These are read too. If nobody says where they begin they have to wait: the next news brings them again."""
        try:
            first = self._start.of_new(partitions, timeout_s=_ASK_LIMIT_S)
        except RetriableError as error:
            _logger.info("new partitions have to wait count=%d error=%s", len(partitions), error)
            return
        self._fetcher.add(self._states(topics, first))
        self._begin()
        if self._on_assign is not None:
            self._on_assign(sorted(partitions))

    def _drop_topic(self, name: str) -> None:
        dropped = sorted(at for at in self._fetcher.states if at.topic == name)
        self._fetcher.set_assignment([s for at, s in self._fetcher.states.items() if at.topic != name])
        if self._on_revoke is not None:
            self._on_revoke(dropped)

    def _states(self, topics: list[Topic], positions: Mapping[TopicPartition, int]) -> list[PartitionState]:
        by_name = {topic.name: topic for topic in topics}
        self._commits.acknowledged(positions)
        return [
            PartitionState(by_name[at.topic], at.partition, position, self._column_ids(by_name[at.topic]))
            for at, position in positions.items()
        ]

    def _column_ids(self, topic: Topic) -> tuple[int, ...] | None:
        if self._columns is None:
            return None
        return (*sorted(topic.schema.column_ids(self._columns)), TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID)


def _partitions_of(topics: list[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions]
