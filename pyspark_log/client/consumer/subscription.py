"""What a consumer reads: topics by name or by a pattern, or the partitions it was assigned; and how that changes.

Rule: the assignment changes in the caller's thread, and like the callbacks only there. Without a group a subscription
is all partitions; with one it is a membership (`group_share`), and its share. What the consumer's own thread learns of
topics waits in ``_news`` until the caller comes by.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from broker_runtime.contract.errors import FencedError, PylogError, RetriableError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import TopicPartition
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.assignment import Assignment, Callbacks
from pyspark_log.client.consumer.committer import Commits
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.group_share import GroupShare
from pyspark_log.client.consumer.partition_state import PartitionState
from pyspark_log.client.consumer.start_positions import StartPositions

_ASK_LIMIT_S = 5.0  # of a question that a poll asks on its own account

_logger = logging.getLogger(__name__)


class Subscription:
    """One consumer's. For its caller's thread, but for `describe` and `tell`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        start: StartPositions,
        fetcher: Fetcher,
        commits: Commits,
        assignment: Assignment,
        share: GroupShare | None,
    ) -> None:
        """``share``: of the group, where the consumer has one."""
        self._cluster = cluster
        self._start = start
        self._fetcher = fetcher
        self._commits = commits
        self._assignment = assignment
        self._share = share
        self._names: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._news: list[Topic] | None = None
        self._missing: UnknownTopicOrPartitionError | None = None
        self._news_lock = threading.Lock()

    @property
    def is_in_use(self) -> bool:
        """Whether something was subscribed to or assigned."""
        return bool(self._fetcher.states) or self._by_topic

    @property
    def needs_metadata(self) -> bool:
        """Whether leaders, new partitions or topics matter: not to a group's member that waits for its share."""
        return self._share is None or self._pattern is not None or bool(self._fetcher.states)

    @property
    def topics(self) -> set[str]:
        """The names that are subscribed to, those that the pattern found included."""
        if self._pattern is None:
            return set(self._names)
        return self._share.topics if self._share is not None else {at.topic for at in self._fetcher.states}

    def state(self, at: TopicPartition) -> PartitionState:
        """Of an assigned partition; raises `ClientStateError`."""
        return self._assignment.state(at)

    # --- what the caller asks for -----------------------------------------------------------------------------

    def subscribe(self, names: list[str], pattern: re.Pattern[str] | None, callbacks: Callbacks) -> None:
        """See `Consumer.subscribe`."""
        topics = self._find(names, pattern)
        if self._share is not None:
            self.unsubscribe()
            self._begin(names, pattern, callbacks)
            try:
                self._share.join(topics, is_by_name=pattern is None)
            except BaseException:
                self._leave_in_haste()
                raise
            return
        partitions = _partitions_of(topics)
        known = {at: state.position for at, state in self._fetcher.states.items() if at in partitions}
        self.unsubscribe()
        first = self._start.first([at for at in partitions if at not in known])
        self._begin(names, pattern, callbacks)
        self._assignment.replace([], topics, {**known, **first})
        self._assignment.say_assigned(partitions)

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
        first = self._start.first([at for at in wanted if at not in kept])
        self._assignment.replace(kept.values(), topics.values(), first)

    def unsubscribe(self) -> None:
        """Nothing is read any more; what auto-commit covers is committed, and the group left."""
        if self._is_lost:
            self._assignment.lose_all()
        else:
            try:
                self._commits.give_up(self._fetcher.states.values())
            except FencedError as error:
                _logger.warning("auto-commit failed error=%s", error)
        revoked = list(self._fetcher.states)
        self._names, self._pattern = [], None
        try:
            if self._share is None or not self._share.is_joined:
                self._assignment.drop(revoked)
            if revoked:
                self._assignment.say_revoked(revoked)
        finally:
            self._assignment.drop(revoked)
            self._assignment.callbacks = Callbacks()
            if self._share is not None:
                self._share.leave()

    def end(self) -> None:
        """The consumer is closed, and all is committed: ``on_revoke``, then out of the group. Blocks a bounded time."""
        try:
            if self._fetcher.states:
                self._assignment.say_revoked(self._fetcher.states)
        finally:
            if self._share is not None:
                self._share.leave()

    def lose_if_lost(self) -> bool:
        """Whether all that was held is lost; then ``on_lost`` was called."""
        if self._is_lost:
            self._assignment.lose_all()
            return True
        return False

    # --- the group --------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether `take_news` has something to do at once."""
        return self._news is not None or (self._share is not None and self._share.has_news)

    def polling(self) -> AbstractContextManager[None]:
        """Around every call in which the caller waits for records: who waits is not away."""
        return nullcontext() if self._share is None else self._share.polling()

    def goes_on(self) -> bool:
        """Whether a loop may hand out its next record at once. Cheap."""
        return self._share is None or self._share.goes_on()

    def is_valid(self) -> bool:
        """Whether what was taken out of the store may be handed out: the group has not given it to others meanwhile."""
        return self._share is None or self._share.is_valid()

    # --- topics come and go -----------------------------------------------------------------------------------

    def take_news(self) -> None:
        """What the group's coordinator has told, and new partitions of a subscription without a group.

        New ones are read from their first record on. Blocks a bounded time. Raises as `GroupShare.follow`, and
        `UnknownTopicOrPartitionError` of a group's topic that is gone.
        """
        with self._news_lock:
            news, self._news = self._news, None
            missing, self._missing = self._missing, None
        if not self._by_topic:
            return
        if self._share is not None:
            self._share.follow()
            if missing is not None:
                raise missing
        elif news is not None:
            new = [at for at in _partitions_of(news) if at not in self._fetcher.states]
            if new:
                self._add(news, new)

    def goes_on_without(self, state: PartitionState) -> bool:
        """Whether to go on although a partition's leader says that its topic is gone.

        A pattern: until a topic of that name is there again. Names: if the topic was made anew, with the new one's
        first record, unless ``auto_offset_reset="none"`` forbids to choose a position. Blocks a bounded time.
        """
        name = state.at.topic
        if self._pattern is not None:
            self._let_go(name)
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
        self._let_go(name)
        if self._share is None:
            self._add([topic], _partitions_of([topic]))
        return True

    # --- for the consumer's own thread ------------------------------------------------------------------------

    def describe(self) -> list[Topic]:
        """The topics as they are now. Blocks and raises as `Cluster.fetch_topics`.

        Of a topic that is gone the others are not held up: their leaders are used at once.
        """
        if self._by_topic:
            try:
                return self._find(self._names, self._pattern)
            except UnknownTopicOrPartitionError as error:
                self._update_each(self._names)
                raise error from None
        names = list(dict.fromkeys(at.topic for at in list(self._fetcher.states)))
        return self._cluster.fetch_topics(names) if names else []

    def tell(self, news: list[Topic] | PylogError) -> None:
        """Leaders, and a group's pattern's topics, are used at once; the rest waits for the caller.

        An error the caller learns from the leader; or, where the group has taken the partition away, as it is.
        """
        if isinstance(news, list):
            for topic in news:
                self._fetcher.update(topic)
            if self._share is None:
                with self._news_lock:
                    self._news = news
            elif self._pattern is not None:
                self._share.subscribe_to(topic.name for topic in news)
        elif isinstance(news, UnknownTopicOrPartitionError) and self._share is not None:
            with self._news_lock:
                self._missing = news
        with self._fetcher.condition:
            self._fetcher.condition.notify_all()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``. The group's member is the parent: the child reads nothing of the group."""
        self._news_lock = threading.Lock()
        if self._share is not None and self._by_topic:
            self._names, self._pattern = [], None
            self._fetcher.states = {}
            self._share.forget()

    # --- private ----------------------------------------------------------------------------------------------

    @property
    def _by_topic(self) -> bool:
        return self._pattern is not None or bool(self._names)

    @property
    def _is_lost(self) -> bool:
        return self._share is not None and self._share.is_lost()

    def _begin(self, names: list[str], pattern: re.Pattern[str] | None, callbacks: Callbacks) -> None:
        self._names, self._pattern = names, pattern
        self._assignment.callbacks = callbacks

    def _leave_in_haste(self) -> None:
        """A subscription failed half-way."""
        assert self._share is not None
        begun = list(self._fetcher.states)
        self._names, self._pattern = [], None
        self._assignment.drop(begun)
        try:
            if begun:
                self._assignment.say_revoked(begun)
        finally:
            self._assignment.callbacks = Callbacks()
            self._share.leave()

    def _find(self, names: list[str], pattern: re.Pattern[str] | None) -> list[Topic]:
        if pattern is not None:
            return [topic for topic in self._cluster.fetch_topics() if pattern.fullmatch(topic.name)]
        return self._cluster.fetch_topics(names)

    def _add(self, topics: list[Topic], partitions: list[TopicPartition]) -> None:
        """These are read too. If nobody says where they begin they have to wait: the next news brings them again."""
        try:
            first = self._start.beginnings(partitions, timeout_s=_ASK_LIMIT_S)
        except RetriableError as error:
            _logger.info("new partitions have to wait count=%d error=%s", len(partitions), error)
            return
        self._assignment.add(topics, first)
        self._assignment.say_assigned(partitions)

    def _update_each(self, names: list[str]) -> None:
        for name in names if len(names) > 1 else ():
            with suppress(UnknownTopicOrPartitionError):
                self._fetcher.update(self._cluster.fetch_topics([name], timeout_s=_ASK_LIMIT_S)[0])

    def _let_go(self, topic: str) -> None:
        if self._share is not None:
            self._share.let_go(topic)
            return
        dropped = [at for at in self._fetcher.states if at.topic == topic]
        self._assignment.drop(dropped)
        self._assignment.say_revoked(dropped)


def _partitions_of(topics: list[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions]
