"""The partitions that a consumer reads now, and the callbacks that say so.

Rule: only the caller's thread changes them, and only through here. A partition that is given back is committed as far
as the caller is done with it, where auto-commit is on; one that is lost never is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from broker_runtime.contract.errors import ClientStateError
from broker_runtime.contract.frame import HEADERS_COLUMN_ID, TIMESTAMP_COLUMN_ID
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.committer import Commits
from pyspark_log.client.consumer.fetcher import Fetcher
from pyspark_log.client.consumer.partition_state import PartitionState

OnPartitions = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What the caller wants to be told: of partitions given, taken back, and lost."""

    on_assign: OnPartitions | None = None
    on_revoke: OnPartitions | None = None
    on_lost: OnPartitions | None = None


class Assignment:
    """One consumer's. For its caller's thread."""

    def __init__(
        self, settings: ConsumerSettings, *, fetcher: Fetcher, commits: Commits, begin: Callable[[], object]
    ) -> None:
        """``begin`` starts the threads that the partitions need."""
        self._columns = settings.columns
        self._fetcher = fetcher
        self._commits = commits
        self._begin = begin
        self.callbacks = Callbacks()

    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """By partition."""
        return self._fetcher.states

    def state(self, at: TopicPartition) -> PartitionState:
        """Of an assigned partition; raises `ClientStateError`."""
        found = self._fetcher.states.get(at)
        if found is None:
            raise ClientStateError(f"{at} is not assigned to this consumer")
        return found

    def replace(
        self, kept: Iterable[PartitionState], topics: Iterable[Topic], positions: Mapping[TopicPartition, int]
    ) -> None:
        """What is kept and what begins at ``positions``, and no others."""
        self._commits.looped = None
        self._fetcher.set_assignment([*kept, *self._new_states(topics, positions)])
        self._begin()

    def add(self, topics: Iterable[Topic], positions: Mapping[TopicPartition, int]) -> None:
        """These are read too. Calls nobody."""
        if positions:
            self._fetcher.add(self._new_states(topics, positions))
            self._begin()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """These are not read any more. Calls nobody, commits nothing."""
        dropped = set(partitions)
        self._commits.forget(dropped)
        for at in dropped & self.states.keys():
            self.states[at].begin_generation()  # a loop that is in the midst of it hands out no more
        self._fetcher.set_assignment([state for at, state in self.states.items() if at not in dropped])

    def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """The group takes these: ``on_revoke``, what auto-commit covers, gone. Raises what the callback does, then."""
        if not partitions:
            return
        try:
            self.say_revoked(partitions)
        finally:
            self._commits.give_back([self.states[at] for at in partitions if at in self.states])
            self.drop(partitions)

    def lose_all(self) -> None:
        """All of them may be others' by now: ``on_lost``."""
        lost = sorted(self.states)
        self.drop(lost)
        if lost and self.callbacks.on_lost is not None:
            self.callbacks.on_lost(lost)

    def say_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Calls ``on_assign``."""
        if self.callbacks.on_assign is not None:
            self.callbacks.on_assign(sorted(partitions))

    def say_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Calls ``on_revoke``."""
        if self.callbacks.on_revoke is not None:
            self.callbacks.on_revoke(sorted(partitions))

    # --- private ----------------------------------------------------------------------------------------------

    def _new_states(self, topics: Iterable[Topic], positions: Mapping[TopicPartition, int]) -> list[PartitionState]:
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
