"""A consumer's share of its group's topics: what the coordinator tells is carried out here, in the caller's thread.

Rule: what is taken away goes first (``on_revoke``, commit, gone), then the epoch is acknowledged, then what is new
begins where the group is in it, which may take several tries; what is kept is read on without a gap. When the lease
has ended, or the group has forgotten the member, all is lost: ``on_lost``, no commit, and a new stay begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from broker_runtime.contract.errors import (
    ClientTimeoutError,
    FencedError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.assignment import Assignment
from pyspark_log.client.consumer.committer import Commits
from pyspark_log.client.consumer.heartbeats import Heartbeats
from pyspark_log.client.consumer.membership import Phase, Told
from pyspark_log.client.consumer.start_positions import StartPositions

SETTLE_LIMIT_S = 10.0
"""How long a subscription waits for what others still have to release."""
_ASK_LIMIT_S = 5.0  # of a question that a poll asks on its own account
_LOOK_S = 0.5

_logger = logging.getLogger(__name__)


class GroupShare:
    """One consumer's. For its caller's thread."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        heartbeats: Heartbeats,
        start: StartPositions,
        commits: Commits,
        assignment: Assignment,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._heartbeats = heartbeats
        self._start = start
        self._commits = commits
        self._assignment = assignment
        self._known: set[tuple[bytes, int]] = set()  # partitions, by topic id, that were there at the subscription
        self._named: dict[str, bytes] = {}  # topics that were subscribed to by name, as they were then
        self._granted: dict[TopicPartition, bytes] = {}  # given to the member, not begun yet; with topic ids
        self._backoff = Backoff(first_s=0.1)
        self._not_before_s = 0.0

    @property
    def topics(self) -> set[str]:
        """The names that the member subscribes to."""
        return set(self._heartbeats.machine.topics)

    @property
    def is_joined(self) -> bool:
        """Whether the consumer is, or wants to be, a member."""
        return self._heartbeats.machine.phase is not Phase.OUT

    @property
    def has_news(self) -> bool:
        """Whether `follow` has something to do at once."""
        return self._heartbeats.has_news

    def polling(self) -> AbstractContextManager[None]:
        """See `Heartbeats.polling`."""
        return self._heartbeats.polling()

    def goes_on(self) -> bool:
        """See `Heartbeats.goes_on`."""
        return self._heartbeats.goes_on()

    def is_valid(self) -> bool:
        """See `Heartbeats.is_valid`. Once it is not, it never is again, until `follow` has dropped everything."""
        return self._heartbeats.is_valid()

    # --- joining and leaving ----------------------------------------------------------------------------------

    def join(self, topics: Iterable[Topic], *, is_by_name: bool = True) -> None:
        """Joins the group for these, and blocks until all that is this member's has begun.

        That is, until the coordinator says that nothing more is to come; or until what others still hold is committed,
        so that nothing can be missed; or for `SETTLE_LIMIT_S`. Raises why the group refuses the member, as
        `StartPositions`, and the last `RetriableError` when nobody answers for ``request.timeout.ms``.
        """
        known = list(topics)
        self._known = {(topic.topic_id, number) for topic in known for number in range(len(topic.partitions))}
        self._named = {topic.name: topic.topic_id for topic in known} if is_by_name else {}
        self._granted = {}
        self._not_before_s = 0.0
        with self._heartbeats.polling():
            self._heartbeats.join([topic.name for topic in known])
            self._wait_until_settled(known)

    def subscribe_to(self, names: Iterable[str]) -> None:
        """A pattern found others. Any thread."""
        if self.is_joined:
            self._heartbeats.subscribe_to(list(names))

    def leave(self) -> None:
        """Nothing is held any more. Blocks a bounded time."""
        self._granted = {}
        self._heartbeats.leave()

    def forget(self) -> None:
        """In a child after ``os.fork``: the member is the parent."""
        self._granted = {}

    # --- what is told -----------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Carries out what the coordinator has told since. Blocks a bounded time.

        Raises what callbacks raise, why the group refuses the member (as often as it is called), and
        `NoOffsetForPartitionError`.
        """
        while True:
            reason = self._heartbeats.loss()
            if reason is not None:
                self._lose(reason)
                continue
            told = self._heartbeats.pending()
            if told is None:
                break
            self._carry_out(told)
        if self._granted and self._clock() >= self._not_before_s:
            self._begin_granted(_ASK_LIMIT_S)

    def is_lost(self) -> bool:
        """Whether what is held may be others' by now."""
        return self._heartbeats.loss() is not None

    def let_go(self, topic: str) -> None:
        """A topic is gone, or was made anew, as its leader says: the coordinator will say so, too."""
        gone = {at: state.topic.topic_id for at, state in self._assignment.states.items() if at.topic == topic}
        try:
            self._assignment.give_back(list(gone))
        finally:
            self._granted |= gone  # should it be there all the same

    # --- private ----------------------------------------------------------------------------------------------

    def _lose(self, reason: PylogError | str) -> None:
        if self._assignment.states:
            _logger.warning("partitions lost count=%d reason=%s", len(self._assignment.states), reason)
        self._granted = {}
        if isinstance(reason, PylogError):
            self._assignment.lose_all()
            raise reason
        try:
            self._assignment.lose_all()
        finally:
            self._heartbeats.join_anew()

    def _carry_out(self, told: Told) -> None:
        wanted = {granted.at: granted.topic_id for granted in sorted(told.partitions)}
        states = self._assignment.states
        taken = [at for at, state in states.items() if wanted.get(at) != state.topic.topic_id]
        _logger.info("assigned epoch=%d partitions=%d taken=%d", told.epoch, len(wanted), len(taken))
        self._granted = {}
        try:
            self._assignment.give_back(taken)
        finally:
            if self._heartbeats.carried_out(told):
                kept = self._assignment.states
                self._granted = {at: topic_id for at, topic_id in wanted.items() if at not in kept}
                self._not_before_s = 0.0
                self._backoff.reset()

    def _begin_granted(self, limit_s: float) -> None:
        """Finds out where the new ones begin; what nobody answers for has to wait."""
        begun: list[TopicPartition] = []
        try:
            topics = self._topics_of_granted()
            asked = {at: topic_id for at, topic_id in self._granted.items() if at.topic in topics}
            found = self._start.committed(asked, topic_ids=asked, timeout_s=limit_s)
            begun += self._begin(topics, found)
            for is_known in (True, False):
                missing = [
                    at
                    for at, topic_id in asked.items()
                    if at not in found and ((topic_id, at.partition) in self._known) == is_known
                ]
                if missing:
                    begun += self._begin(topics, self._first(missing, is_known=is_known, limit_s=limit_s))
        except (RetriableError, ClientTimeoutError, FencedError, UnknownTopicOrPartitionError) as error:
            _logger.info("new partitions have to wait count=%d error=%s", len(self._granted), error)
        finally:
            self._not_before_s = self._clock() + (self._backoff.next_s() if self._granted else 0.0)
            if begun:
                self._assignment.say_assigned(begun)

    def _topics_of_granted(self) -> dict[str, Topic]:
        """Of those that are as the coordinator knows them."""
        wanted: dict[str, tuple[bytes, int]] = {}  # by name, the topic's id and the last partition
        for at, topic_id in self._granted.items():
            wanted[at.topic] = topic_id, max(at.partition, wanted.get(at.topic, (topic_id, 0))[1])
        found = {}
        for name, (topic_id, last) in wanted.items():
            try:
                topic = self._cluster.topic(name, timeout_s=_ASK_LIMIT_S)
                if topic.topic_id != topic_id or last >= len(topic.partitions):
                    topic = self._cluster.fetch_topics([name], timeout_s=_ASK_LIMIT_S)[0]
            except UnknownTopicOrPartitionError:
                continue
            if topic.topic_id == topic_id and last < len(topic.partitions):
                found[name] = topic
        return found

    def _first(self, missing: list[TopicPartition], *, is_known: bool, limit_s: float) -> dict[TopicPartition, int]:
        """Where the group begins in what it has no offset in; it is written before it is in force (W17)."""
        is_anew = any(self._named.get(at.topic, self._granted[at]) != self._granted[at] for at in missing)
        if is_known or (is_anew and not self._start.can_reset):
            positions = self._start.reset(missing, timeout_s=limit_s)
        else:
            positions = self._start.beginnings(missing, timeout_s=limit_s)
        self._commits.save(positions, {at: self._granted[at] for at in missing}, timeout_s=limit_s)
        return positions

    def _begin(self, topics: Mapping[str, Topic], positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        self._assignment.add(topics.values(), positions)
        for at in positions:
            del self._granted[at]
        return list(positions)

    def _wait_until_settled(self, topics: list[Topic]) -> None:
        heartbeats, machine = self._heartbeats, self._heartbeats.machine
        answer_by = Deadline(self._cluster.request_timeout_s)
        settled_by: Deadline | None = None
        look_s = self._clock() + _LOOK_S
        while True:
            self.follow()
            if not self._granted and machine.is_settled:
                return
            if settled_by is None and machine.was_answered:
                settled_by = Deadline(SETTLE_LIMIT_S)
            if settled_by is not None and settled_by.expired:
                _logger.info("subscribed before the group is settled granted=%d", len(self._granted))
                return
            if machine.has_been_told and not self._granted and self._clock() >= look_s:
                if self._is_committed(topics):
                    return
                look_s = self._clock() + _LOOK_S
            if settled_by is None and answer_by.expired:
                raise machine.failure or ClientTimeoutError(f"the group's coordinator did not answer: {machine.why}")
            heartbeats.wait(0.2 if not self._granted else max(0.01, self._not_before_s - self._clock()))

    def _is_committed(self, topics: list[Topic]) -> bool:
        """Whether the group has an offset in all that others hold: whoever gets it goes on there."""
        others = {
            at: topic.topic_id
            for topic in topics
            for number in range(len(topic.partitions))
            if (at := TopicPartition(topic.name, number)) not in self._assignment.states
        }
        try:
            found = self._start.committed(others, topic_ids=others, timeout_s=_ASK_LIMIT_S)
        except (RetriableError, UnknownTopicOrPartitionError):
            return False
        return len(found) == len(others)
