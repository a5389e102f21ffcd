"""What a member of a group reads: its share of the subscribed topics' partitions, as the group's coordinator says.

Rule: the coordinator's assignment is carried out in the caller's thread. First what is taken away goes (``on_revoke``,
commit, drop). Then the epoch is acknowledged. Then what is new begins where the group is in it, which may take several
tries. What is kept is read on without a gap. When the lease has ended, or the group has forgotten the member,
everything is lost: ``on_lost``, no commit, and the consumer joins again as another member.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

from broker_runtime.contract.errors import (
    ClientTimeoutError,
    FencedError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from broker_runtime.contract.waiting import CLOCK, Backoff, Clock, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.assignment import POLL_CALL_LIMIT_S, REFRESH_S, Assignment, Callbacks
from pyspark_log.client.consumer.committer import Committer
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.heartbeats import Heartbeats
from pyspark_log.client.consumer.membership import TargetAssignment
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters

SETTLE_LIMIT_S: Final = 10.0
"""How long a subscription waits for partitions that other members still have to release."""
IDLE_REFRESH_S: Final = 15.0
"""How often the background thread looks for topics and leaders where the coordinator announces what is new and there
are no leaders to ask."""
_CHECK_INTERVAL_S: Final = 0.5

_logger = logging.getLogger(__name__)


class GroupAssignment(Assignment):
    """The assignment of one consumer with a group. Without a membership (`assign`) it is as `Assignment`."""

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
        clock: Clock = CLOCK,
    ) -> None:
        super().__init__(
            cluster,
            settings,
            fetcher=fetcher,
            committer=committer,
            heartbeats=heartbeats,
            start_threads=start_threads,
            meters=meters,
        )
        self._clock = clock
        self._known: set[tuple[bytes, int]] = set()  # partitions, by topic id, that existed when it subscribed
        self._named: dict[str, bytes] = {}  # topics that were subscribed to by name, with their ids at that time
        self._granted: dict[TopicPartition, bytes] = {}  # given to the member, not begun yet; with topic ids
        self._backoff = Backoff(first_s=0.1)
        self._pause = Deadline(0.0, clock=clock)  # until it is over, the granted partitions are not tried again
        self._missing: UnknownTopicOrPartitionError | None = None

    @property
    def topics(self) -> set[str]:
        """The names that are subscribed to, including those that the pattern found."""
        return set(self._names) if self._pattern is None else set(self._heartbeats.machine.topics)

    def subscribe(self, names: list[str], pattern: re.Pattern[str] | None, callbacks: Callbacks) -> None:
        """See `Consumer.subscribe`."""
        topics = self._find(names, pattern)
        self.unsubscribe()
        self._names, self._pattern, self._callbacks = names, pattern, callbacks
        try:
            self._join(topics, is_by_name=pattern is None)
        except BaseException:
            self._abandon_subscription()
            raise

    # --- what the coordinator says ----------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether `apply_changes` has something to do at once."""
        return self._heartbeats.has_news

    def apply_changes(self) -> None:
        """Carries out what the coordinator has said since the last time. Blocks a bounded time.

        Raises what callbacks raise, why the group refuses the member (each time it is called),
        `NoOffsetForPartitionError`, and `UnknownTopicOrPartitionError` for a subscribed topic that is gone.
        """
        with self._lock:
            missing, self._missing = self._missing, None
        if self._is_by_topic:
            self._follow()
            if missing is not None:
                raise missing

    def _follow(self) -> None:
        while True:
            reason = self._heartbeats.loss()
            if reason is not None:
                self._lose(reason)
                continue
            target = self._heartbeats.pending()
            if target is None:
                break
            self._carry_out(target)
        if self._granted and self._pause.expired:
            self._begin_granted(POLL_CALL_LIMIT_S)

    def _lose(self, reason: PylogError | str) -> None:
        if self.states:
            event(
                _logger,
                "lose partitions",
                level=logging.WARNING,
                group=self._committer.group_id,
                partitions=len(self.states),
                error=reason,
            )
        self._granted = {}
        if isinstance(reason, PylogError):
            self._lose_all()
            raise reason
        try:
            self._lose_all()
        finally:
            self._heartbeats.rejoin()

    def _carry_out(self, target: TargetAssignment) -> None:
        wanted = {granted.at: granted.topic_id for granted in sorted(target.partitions)}
        revoked = [at for at, state in self.states.items() if wanted.get(at) != state.topic.topic_id]
        self._meters.rebalanced()
        event(
            _logger,
            "change assignment",
            group=self._committer.group_id,
            epoch=target.epoch,
            partitions=len(wanted),
            revoked=len(revoked),
        )
        self._granted = {}
        try:
            self._revoke(revoked)
        finally:
            if self._heartbeats.carried_out(target):
                self._granted = {at: topic_id for at, topic_id in wanted.items() if at not in self.states}
                self._pause = Deadline(0.0, clock=self._clock)
                self._backoff.reset()

    def _revoke(self, partitions: Collection[TopicPartition]) -> None:
        """The group takes these: ``on_revoke``, commit what auto-commit covers, drop; then raises what the callback
        raised."""
        if not partitions:
            return
        try:
            self._call_on_revoke(partitions)
        finally:
            self._committer.commit_revoked([self.states[at] for at in partitions if at in self.states])
            self._drop(partitions)

    # --- joining and leaving ----------------------------------------------------------------------------------

    def _join(self, topics: list[Topic], *, is_by_name: bool) -> None:
        """Joins the group for these topics, and blocks until everything that is this member's has begun.

        That is, until the coordinator says that nothing more will come, until everything that others still hold is
        committed, so that nothing can be missed, or for `SETTLE_LIMIT_S`. Raises why the group refuses the member,
        as `reset_positions`, and the last `RetriableError` when nobody answers for ``request.timeout.ms``.
        """
        self._known = {(topic.topic_id, number) for topic in topics for number in range(len(topic.partitions))}
        self._named = {topic.name: topic.topic_id for topic in topics} if is_by_name else {}
        self._granted = {}
        self._pause = Deadline(0.0, clock=self._clock)
        with self._heartbeats.polling():
            self._heartbeats.join([topic.name for topic in topics])
            self._wait_until_settled(topics)

    def _wait_until_settled(self, topics: list[Topic]) -> None:
        heartbeats, machine = self._heartbeats, self._heartbeats.machine
        answer_by = Deadline(self._cluster.request_timeout_s)
        settled_by: Deadline | None = None
        next_check = Deadline(_CHECK_INTERVAL_S, clock=self._clock)
        while True:
            self._follow()
            if not self._granted and machine.is_settled:
                return
            if settled_by is None and machine.was_answered:
                settled_by = Deadline(SETTLE_LIMIT_S)
            if settled_by is not None and settled_by.expired:
                event(
                    _logger,
                    "join group",
                    group=self._committer.group_id,
                    granted=len(self._granted),
                    is_settled=machine.is_settled,
                )
                return
            if machine.has_assignment and not self._granted and next_check.expired:
                if self._is_committed(topics):
                    return
                next_check = Deadline(_CHECK_INTERVAL_S, clock=self._clock)
            if settled_by is None and answer_by.expired:
                raise machine.failure or ClientTimeoutError(f"the group's coordinator did not answer: {machine.why}")
            heartbeats.wait(0.2 if not self._granted else max(0.01, self._pause.remaining_s()))

    def _is_committed(self, topics: list[Topic]) -> bool:
        """Whether the group has an offset for everything that others hold: whoever gets a partition continues there."""
        others = {
            at: topic.topic_id
            for topic in topics
            for number in range(len(topic.partitions))
            if (at := TopicPartition(topic.name, number)) not in self.states
        }
        try:
            found = self._committer.committed(others, topic_ids=others, timeout_s=POLL_CALL_LIMIT_S)
        except (RetriableError, UnknownTopicOrPartitionError):
            return False
        return len(found) == len(others)

    def _abandon_subscription(self) -> None:
        """A subscription failed half-way: everything goes that it had begun."""
        begun = list(self.states)
        self._names, self._pattern = [], None
        self._drop(begun)
        try:
            if begun:
                self._call_on_revoke(begun)
        finally:
            self._callbacks = Callbacks()
            self._leave()

    def _leave(self) -> None:
        self._granted = {}
        super()._leave()

    # --- partitions that are granted begin --------------------------------------------------------------------

    def _begin_granted(self, limit_s: float) -> None:
        """Finds out where the granted partitions begin; those that nobody answers for are tried again later."""
        begun: list[TopicPartition] = []
        try:
            topics = self._topics_of_granted()
            asked = {at: topic_id for at, topic_id in self._granted.items() if at.topic in topics}
            found = self._committer.committed(asked, topic_ids=asked, timeout_s=limit_s)
            begun += self._begin(topics, found)
            for is_known in (True, False):
                missing = [
                    at
                    for at, topic_id in asked.items()
                    if at not in found and ((topic_id, at.partition) in self._known) == is_known
                ]
                if missing:
                    begun += self._begin(topics, self._first_of_group(missing, is_known=is_known, limit_s=limit_s))
        except (RetriableError, ClientTimeoutError, FencedError, UnknownTopicOrPartitionError) as error:
            event(
                _logger,
                "begin partitions",
                group=self._committer.group_id,
                partitions=len(self._granted),
                error=error,
            )
        finally:
            self._pause = Deadline(self._backoff.next_s() if self._granted else 0.0, clock=self._clock)
            if begun:
                self._call_on_assign(begun)

    def _topics_of_granted(self) -> dict[str, Topic]:
        """The topics by name, without those that this client knows in another state than the coordinator does."""
        wanted: dict[str, tuple[bytes, int]] = {}  # by name, the topic's id and the last partition
        for at, topic_id in self._granted.items():
            wanted[at.topic] = topic_id, max(at.partition, wanted.get(at.topic, (topic_id, 0))[1])
        found = {}
        for name, (topic_id, last) in wanted.items():
            try:
                topic = self._cluster.topic(name, timeout_s=POLL_CALL_LIMIT_S)
                if topic.topic_id != topic_id or last >= len(topic.partitions):
                    topic = self._cluster.fetch_topics([name], timeout_s=POLL_CALL_LIMIT_S)[0]
            except UnknownTopicOrPartitionError:
                continue
            if topic.topic_id == topic_id and last < len(topic.partitions):
                found[name] = topic
        return found

    def _first_of_group(
        self, missing: list[TopicPartition], *, is_known: bool, limit_s: float
    ) -> dict[TopicPartition, int]:
        """Where the group begins in partitions without a committed offset; it is committed before it is used (W17)."""
        is_recreated = any(self._named.get(at.topic, self._granted[at]) != self._granted[at] for at in missing)
        if is_known or (is_recreated and not self.can_reset):
            positions = self.reset_positions(missing, timeout_s=limit_s)
        else:
            positions = self._log_starts(missing, timeout_s=limit_s)
        self._committer.commit_first(positions, {at: self._granted[at] for at in missing}, timeout_s=limit_s)
        return positions

    def _begin(self, topics: Mapping[str, Topic], positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        self._add(topics.values(), positions)
        for at in positions:
            del self._granted[at]
        return list(positions)

    # --- topics come and go -----------------------------------------------------------------------------------

    def _replace_topic(self, name: str, newer: Topic | None) -> None:
        """Stops reading a topic that its leader says is gone or recreated: the coordinator will say so, too."""
        gone = {at: state.topic.topic_id for at, state in self.states.items() if at.topic == name}
        try:
            self._revoke(list(gone))
        finally:
            self._granted |= gone  # in case it still exists

    # --- for the background thread ----------------------------------------------------------------------------

    @property
    def metadata_interval_s(self) -> float:
        """How long metadata may be used before it is fetched again: longer for a member that has no partitions."""
        return REFRESH_S if self._pattern is not None or self._fetcher.states else IDLE_REFRESH_S

    def take_metadata(self, topics: list[Topic] | PylogError) -> None:
        """Uses the leaders at once, and tells the coordinator which topics the pattern finds.

        A topic that is gone waits for the caller: the group has taken its partitions away, so no leader reports it.
        """
        if isinstance(topics, list):
            for topic in topics:
                self._fetcher.update(topic)
            if self._pattern is not None and self._is_member:
                self._heartbeats.subscribe_to([topic.name for topic in topics])
        elif isinstance(topics, UnknownTopicOrPartitionError):
            with self._lock:
                self._missing = topics
        self._fetcher.wake_caller()

    def forget_parent(self) -> None:
        """In a child after ``os.fork``. The group's member is the parent: the child reads nothing of the group."""
        super().forget_parent()
        if self._is_by_topic:
            self._names, self._pattern = [], None
            self._fetcher.states = {}
            self._granted = {}
