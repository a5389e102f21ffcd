"""A leader's part: what is over in the partitions of this broker ends, in their logs.

    once a second        which transactions are open here ─▶ what was decided of them ─▶ those that are over end
    finish_transactions  a decision was just made: the same for the partitions that it names, at once

Rules: a partition's log ends a transaction only by what ZooKeeper has. A transaction that has been open for longer than
its time limit is aborted there first: by the time in its frame, or by how long its leader has known it, so that a clock
that was set back keeps nobody waiting. So is everything of a transactional id of which ZooKeeper has nothing: that is
no decision, and is made one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline
from broker_runtime.log import OpenTransaction
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.transactions.coordination import LedIn, TransactionCoordinator
from broker_runtime.transactions.transactional_id import last_batch, outcomes
from broker_runtime.zookeeper.znodes import TransactionRecord

LOOK_S: Final = 1.0
_COMPLETE_S: Final = 10.0
_APPEND_S: Final = 1.0
_SHORTEST_WAIT_S: Final = 0.05

_logger = logging.getLogger(__name__)


class TransactionEnding:
    """See the module. Thread-safe."""

    def __init__(
        self,
        registry: PartitionRegistry,
        coordinator: TransactionCoordinator,
        *,
        broker_id: int,
        wall_ms: Callable[[], int],
        clock: Clock = CLOCK,
    ) -> None:
        """``wall_ms``: the time that appends carry."""
        self._registry = registry
        self._coordinator = coordinator
        self._broker_id = broker_id
        self._wall_ms = wall_ms
        self._clock = clock
        self._known_since_s: dict[tuple[Partition, int], float] = {}  # of those that were open at the last step

    def step(self) -> None:
        """Ends what is over in all partitions that this broker leads. Blocks on ZooKeeper and on disks, in bounds.
        Raises nothing: what fails is tried again by the next step."""
        found = self.open_here()
        self._note(found)
        by_id: dict[str, list[tuple[Partition, OpenTransaction]]] = {}
        for partition, opened in found:
            by_id.setdefault(opened.begin.transactional_id, []).append((partition, opened))
        names = sorted(by_id)
        try:
            records = self._coordinator.read_sound(names) if names else {}
        except PylogError as error:
            event(_logger, "end transactions", level=logging.WARNING, error=error)
            return
        for name, found_record in records.items():
            try:
                record = self._without_late(name, found_record, by_id[name])
            except PylogError as error:  # what is wrong with one id holds up no other
                event(_logger, "end transactions", level=logging.WARNING, transactional_id=name, error=error)
                continue
            for partition in dict.fromkeys(partition for partition, _ in by_id[name]):
                self._end(partition, name, record)
        deadline = Deadline(_COMPLETE_S, clock=self._clock)
        for partition in dict.fromkeys(partition for partition, _ in found):
            self._complete(partition, deadline)

    def finish(self, name: str, *, epoch: int, batch_id: int, partitions: Sequence[Partition | None]) -> list[bool]:
        """By partition: whether all is ended, on all in-sync replicas, that is over by the decision about this batch.
        A partition that this broker does not lead is None: false. So is one of which it merely believes that it leads
        it: the decision is forgotten when all partitions know it. Raises `ZooKeeperUnavailableError`."""
        record = self._coordinator.read_decided(name, epoch=epoch, batch_id=batch_id)
        if record is None:
            return [True for _ in partitions]  # forgotten, so it was finished before
        deadline = Deadline(_COMPLETE_S, clock=self._clock)
        epochs = {partition: partition.leader_epoch for partition in partitions if partition is not None}
        have_ended = [partition is not None and self._end(partition, name, record) for partition in partitions]
        are_complete = [
            has_ended and partition is not None and self._complete(partition, deadline)
            for partition, has_ended in zip(partitions, have_ended, strict=True)
        ]
        unproved = [
            partition
            for partition, is_complete in zip(partitions, are_complete, strict=True)
            if is_complete and partition is not None and not _knows(partition, name, record, batch_id)
        ]
        deposed = set(unproved) - set(self._still_led({each: epochs[each] for each in unproved}))
        return [
            is_complete and partition not in deposed
            for partition, is_complete in zip(partitions, are_complete, strict=True)
        ]

    def forget_if_anew(self, partition: Partition, name: str) -> bool:
        """Makes the partition forget a transactional id that ZooKeeper has forgotten and that has begun anew since. An
        idle log does not forget by itself, because its time stands still. Returns whether that was so. Raises
        `ZooKeeperUnavailableError`."""
        known = partition.log.known_transactional_id(name)
        if known is None or not self._coordinator.is_anew(name, epoch=known.epoch, batch_id=known.batch_id):
            return False
        event(
            _logger,
            "forget transactional id",
            transactional_id=name,
            topic=partition.topic,
            partition=partition.partition,
        )
        partition.log.forget_transactional_id(name)
        return True

    def open_here(self, name: str = "") -> list[tuple[Partition, OpenTransaction]]:
        """What has begun and not ended in the partitions that this broker leads ("": of all transactional ids)."""
        found: list[tuple[Partition, OpenTransaction]] = []
        for partition in self._registry.hosted():
            if not partition.is_leader or not partition.log.has_open_transactions:
                continue
            try:
                opened = partition.log.open_transactions()
            except PylogError:
                continue  # the log is offline: whoever leads next ends them
            found += [(partition, each) for each in opened if not name or each.begin.transactional_id == name]
        return found

    # --- private ----------------------------------------------------------------------------------------------

    def _note(self, found: Iterable[tuple[Partition, OpenTransaction]]) -> None:
        now_s, before = self._clock.now_s(), self._known_since_s
        keys = [(partition, opened.producer_id) for partition, opened in found]
        self._known_since_s = {key: before.get(key, now_s) for key in keys}

    def _without_late(
        self, name: str, record: TransactionRecord | None, found: Sequence[tuple[Partition, OpenTransaction]]
    ) -> TransactionRecord:
        """The record, in which those of ``found`` are aborted that have been open for too long."""
        if record is None:
            return self._coordinator.abort_producers(name, (), epoch=max(each.begin.epoch for _, each in found))
        over = outcomes(name, record)
        late = [
            each.producer_id
            for partition, each in found
            if not over.ends(each) and self._age_ms(partition, each) > record.timeout_ms
        ]
        return self._coordinator.abort_producers(name, late, epoch=record.epoch) if late else record

    def _age_ms(self, partition: Partition, opened: OpenTransaction) -> float:
        known_since_s = self._known_since_s[partition, opened.producer_id]
        return max(self._wall_ms() - opened.began_ms, (self._clock.now_s() - known_since_s) * 1000)

    def _still_led(self, epochs: Mapping[Partition, int]) -> list[Partition]:
        """``epochs``: the leader epoch in which this broker believes to lead each."""
        if not epochs:
            return []
        believed = [LedIn(each.topic, each.partition, epoch) for each, epoch in epochs.items()]
        are_led = self._coordinator.are_led_by(self._broker_id, believed)
        return [partition for partition, is_led in zip(epochs, are_led, strict=True) if is_led]

    def _end(self, partition: Partition, name: str, record: TransactionRecord) -> bool:
        """Ends in the partition's log what is over; returns whether that was possible. Not durable yet."""
        over = outcomes(name, record)
        try:
            while partition.end_transactions(over, now_ms=self._wall_ms(), timeout_s=_APPEND_S) is not None:
                pass
        except PylogError as error:
            self._log(partition, error)
            return False
        return True

    def _complete(self, partition: Partition, deadline: Deadline) -> bool:
        """Waits until all in-sync replicas have all that was ended before; returns whether they have."""
        try:
            partition.complete_all(max(_SHORTEST_WAIT_S, deadline.remaining_s()))
        except PylogError as error:
            self._log(partition, error)
            return False
        return True

    def _log(self, partition: Partition, error: PylogError) -> None:
        event(
            _logger,
            "end transactions",
            level=logging.WARNING,
            topic=partition.topic,
            partition=partition.partition,
            error=error,
        )


def _knows(partition: Partition, name: str, record: TransactionRecord, batch_id: int) -> bool:
    """Whether the partition's log shows that everything up to the batch has ended. A log without a word of it may be
    that of a leader which stood still and was replaced: others have the batch's frames then."""
    known = partition.log.known_transactional_id(name)
    return known is not None and known.epoch <= record.epoch and batch_id <= known.batch_id <= last_batch(record)
