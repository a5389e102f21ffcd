"""Where a consumer begins: the group's committed offset, else what ``auto.offset.reset`` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_runtime.contract.errors import InvalidGroupIdError, NoOffsetForPartitionError
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition, check_group_id
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client import offsets
from pyspark_log.client.cluster import Cluster

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

    def first(self, partitions: Sequence[TopicPartition], *, saves: bool) -> dict[TopicPartition, int]:
        """The position of each; with ``saves`` and a group, those not committed before are now (W17)."""
        return self._committed_or(partitions, self.reset, saves=saves)

    def of_new(self, partitions: Sequence[TopicPartition], *, timeout_s: float) -> dict[TopicPartition, int]:
        """The same for partitions that came while they were subscribed to: their first record, not the latest.

        Blocks at most ``timeout_s`` for each of its questions, then raises the last `RetriableError`.
        """
        return self._committed_or(
            partitions, lambda missing: self._limits(missing, EARLIEST, timeout_s), saves=True, timeout_s=timeout_s
        )

    def reset(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """What ``auto.offset.reset`` says of each. Raises `NoOffsetForPartitionError` where it says none."""
        if self._reset not in _RESETS:
            who = "there is no group" if self._group_id is None else f"group {self._group_id!r} committed no offset"
            raise NoOffsetForPartitionError(f"{partitions[0]}: {who}, and auto_offset_reset is 'none'")
        return self._limits(partitions, _RESETS[self._reset])

    def _limits(
        self, partitions: Sequence[TopicPartition], which: int, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        answers = offsets.list_offsets(self._cluster, dict.fromkeys(partitions, which), timeout_s=timeout_s)
        return {at: answer.offset for at, answer in answers.items()}

    def _committed_or(
        self,
        partitions: Sequence[TopicPartition],
        otherwise: Callable[[list[TopicPartition]], dict[TopicPartition, int]],
        *,
        saves: bool,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        found: dict[TopicPartition, int] = {}
        if self._group_id is not None:
            found = offsets.committed(self._cluster, self._group_id, partitions, timeout_s=timeout_s)
        missing = [at for at in partitions if at not in found]
        if missing:
            new = otherwise(missing)
            if saves and self._group_id is not None:
                offsets.commit(self._cluster, self._group_id, new, timeout_s=timeout_s)
            found |= new
        return {at: found[at] for at in partitions}
