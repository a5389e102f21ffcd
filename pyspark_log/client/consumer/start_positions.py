"""Where a consumer begins: the group's committed offset, else what ``auto.offset.reset`` says. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker_runtime.contract.errors import InvalidGroupIdError, NoOffsetForPartitionError
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition, check_group_id
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster

_RESETS = {"earliest": EARLIEST, "latest": LATEST}


class StartPositions:
    """Looks positions up for one consumer. Keeps nothing."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._cluster = cluster
        self._reset = settings.auto_offset_reset
        self._group_id = None if settings.group_id is None else check_group_id(settings.group_id)

    @property
    def has_group(self) -> bool:
        """Whether the consumer has a group."""
        return self._group_id is not None

    @property
    def group_id(self) -> str:
        """The group; raises `InvalidGroupIdError` without one."""
        if self._group_id is None:
            raise InvalidGroupIdError("this needs a group: give the consumer a group_id")
        return self._group_id

    @property
    def can_reset(self) -> bool:
        """Whether a position that is not there is replaced by the log's beginning or end."""
        return self._reset in _RESETS

    def first(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The position of each: committed, else as ``auto.offset.reset`` says. Writes nothing."""
        if not partitions:
            return {}
        found = self.committed(partitions) if self.has_group else {}
        missing = [at for at in partitions if at not in found]
        new = self.reset(missing) if missing else {}
        return {at: found[at] if at in found else new[at] for at in partitions}

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        topic_ids: Mapping[TopicPartition, bytes] | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, int]:
        """What the group has; partitions without are left out. ``topic_ids``: as `offsets.committed`."""
        return offsets.committed(self._cluster, self.group_id, partitions, topic_ids=topic_ids, timeout_s=timeout_s)

    def beginnings(self, partitions: Sequence[TopicPartition], *, timeout_s: float) -> dict[TopicPartition, int]:
        """Of partitions that came while they were subscribed to: their first record, not the latest.

        Blocks at most ``timeout_s``, then raises the last `RetriableError`.
        """
        return self._limits(partitions, EARLIEST, timeout_s)

    def reset(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """What ``auto.offset.reset`` says of each. Raises `NoOffsetForPartitionError` where it says none."""
        if self._reset not in _RESETS:
            who = "there is no group" if self._group_id is None else f"group {self._group_id!r} committed no offset"
            raise NoOffsetForPartitionError(f"{partitions[0]}: {who}, and auto_offset_reset is 'none'")
        return self._limits(partitions, _RESETS[self._reset], timeout_s)

    def _limits(
        self, partitions: Sequence[TopicPartition], which: int, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        answers = offsets.list_offsets(self._cluster, dict.fromkeys(partitions, which), timeout_s=timeout_s)
        return {at: answer.offset for at, answer in answers.items()}
