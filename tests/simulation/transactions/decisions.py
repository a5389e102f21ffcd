"""What is written about transactional ids in ZooKeeper, as an observer reads it from the writes themselves.

Invariant 9 as far as the znodes go: at most one decision about a batch, it never changes, and epochs only rise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker_runtime.zookeeper.session import Create, Delete, Operation, Set
from broker_runtime.zookeeper.znodes import TRANSACTIONS, DecisionRecord, TransactionRecord, from_json
from tests.simulation.simulator.outcome import ViolationError

_EXACTLY_ONCE = 9


class Decisions:
    """Follows all transactional ids. ``on_decision`` is called with each new decision, ``on_aborted`` with producer ids
    that will not be committed, when that is written."""

    def __init__(self, on_decision: Callable[[str, DecisionRecord], None], on_aborted: Callable[[str], None]) -> None:
        self._on_decision = on_decision
        self._on_aborted = on_aborted
        self.records: dict[str, TransactionRecord] = {}
        self.made: dict[tuple[str, int], DecisionRecord] = {}  # by id and batch
        self._committed: set[int] = set()

    def written(self, operations: Sequence[Operation]) -> None:
        """ZooKeeper's tree has changed. Raises `ViolationError`."""
        for operation in operations:
            name = operation.path.removeprefix(f"{TRANSACTIONS}/")
            if name == operation.path or "/" in name:
                continue
            if isinstance(operation, Create | Set):
                self._look(name, from_json(operation.data, TransactionRecord, operation.path))
            elif isinstance(operation, Delete):
                raise ViolationError(_EXACTLY_ONCE, f"what was decided of {name} is forgotten, and it is in use")

    def last_batch(self, name: str) -> int:
        """The last batch that was decided; -1: none."""
        record = self.records.get(name)
        return -1 if record is None or record.last is None else record.last.batch_id

    def last_run(self, name: str) -> str:
        """The run that the last decision was made for."""
        last = self.records[name].last
        assert last is not None, "a decision was to be there"
        return last.run_id

    def is_committed(self, producer_id: int) -> bool:
        """Whether a decision says so."""
        return producer_id in self._committed

    def unfinished(self) -> list[str]:
        """The ids with decisions that not all partitions know of."""
        return sorted(name for name, record in self.records.items() if record.unfinished)

    def _look(self, name: str, record: TransactionRecord) -> None:
        before = self.records.get(name)
        self.records[name] = record
        if before is not None and record.epoch < before.epoch:
            raise ViolationError(_EXACTLY_ONCE, f"{name}: the epoch fell from {before.epoch} to {record.epoch}")
        if before is not None and set(record.aborted) - set(before.aborted):
            self._on_aborted(name)
        last, last_before = record.last, None if before is None else before.last
        if last_before is not None and (last is None or last.batch_id < last_before.batch_id):
            raise ViolationError(_EXACTLY_ONCE, f"{name}: the decision about batch {last_before.batch_id} is gone")
        if last is not None:
            self._look_at_decision(name, last)

    def _look_at_decision(self, name: str, last: DecisionRecord) -> None:
        known = self.made.get((name, last.batch_id))
        if known is None:
            self.made[name, last.batch_id] = last
            self._committed.update(_each(last.producer_ids))
            self._on_decision(name, last)
        elif _content(known) != _content(last):
            raise ViolationError(
                _EXACTLY_ONCE, f"{name}: batch {last.batch_id} was decided as {_content(known)}, and then as "
                f"{_content(last)}",
            )  # fmt: skip


def _each(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [each for first, last in ranges for each in range(first, last + 1)]


def _content(decision: DecisionRecord) -> tuple[object, ...]:
    return (decision.run_id, decision.is_commit, decision.producer_ids, decision.rows, decision.payload_bytes)
