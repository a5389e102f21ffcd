"""What must hold of transactions, looked at after every step (invariants 4, 9 and 10 of the design).

4.  A reader of committed records gets nothing at or above the last stable offset, and nothing that is aborted.
9.  There is at most one decision about a batch. Readable are exactly the records of the transactions that it names, all
    of which were acknowledged. An end in a log follows a decision; no transaction has two outcomes, or records before
    its beginning or after its end. Whatever is read of a query is each of its rows, once.
10. Healed and quiet, every transaction has ended, and the last stable offset is the log's end.

Rule: as `partitions.invariants`: looks, and never touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from broker_runtime.contract.frame import TransactionBegin, TransactionEnd, visible_frames
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.transactions import EndTransactionResponse
from broker_runtime.zookeeper.znodes import DecisionRecord
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.history import History, body_of
from tests.simulation.partitions.invariants import Invariants
from tests.simulation.partitions.log_view import StoredFrame
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.transactions import situations
from tests.simulation.transactions.attempts import Scope, Written
from tests.simulation.transactions.decisions import Decisions

Key = tuple[bytes, int]


class PartitionTransactions:
    """The transactions of one partition, by its committed frames alone."""

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.open: dict[int, int] = {}  # producer id → first offset
        self.ended: dict[int, bool] = {}  # producer id → whether it was committed
        self.end = 0
        self.frames: list[StoredFrame] = []

    @property
    def last_stable_offset(self) -> int:
        """Everything below belongs to no open transaction."""
        return min(self.open.values(), default=self.end)

    def add(self, frame: StoredFrame) -> None:
        """The next committed frame. Raises `ViolationError`."""
        header, control, producer_id = frame.header, frame.control, frame.header.producer_id
        self.end = frame.next_offset
        self.frames.append(frame)
        if isinstance(control, TransactionBegin):
            # One that was just aborted may begin once more, if its leader looked before: it is aborted again.
            if producer_id in self.open or self.ended.get(producer_id, False):
                raise self._wrong(f"transaction {producer_id} begins a second time at {header.base_offset}")
            self.open[producer_id] = header.base_offset
        elif isinstance(control, TransactionEnd):
            for each in control.ended:
                if self.open.pop(each.producer_id, None) != each.first_offset:
                    raise self._wrong(f"transaction {each.producer_id} ends at {header.base_offset}, and is not open")
                if each.is_committed and not self.ended.get(each.producer_id, True):
                    raise self._wrong(f"transaction {each.producer_id}, which was aborted, is committed")
                self.ended[each.producer_id] = each.is_committed
        elif header.is_transactional and producer_id not in self.open:
            raise self._wrong(f"transaction {producer_id} has records at {header.base_offset}, where it is not open")

    def visible(self, start: int, end: int) -> list[int]:
        """The offsets of the frames in the range that a reader of committed records gets."""
        return [
            frame.base_offset
            for frame in self.frames
            if start < frame.next_offset
            and frame.base_offset < end
            and frame.control is None
            and (not frame.header.is_transactional or self.ended.get(frame.header.producer_id, False))
        ]

    def _wrong(self, text: str) -> ViolationError:
        return ViolationError(9, f"{self.at}: {text}")


class Checker:
    """The checker of one run."""

    def __init__(
        self,
        invariants: Invariants,
        history: History,
        situation: Callable[[str], None],
    ) -> None:
        self.decisions = Decisions(self._decided, lambda name: situation(situations.ABORTED_LATE))
        self._invariants = invariants
        self._history = history
        self._situation = situation
        self.on_decision: Callable[[str], None] = lambda name: None
        self._partitions: dict[Key, PartitionTransactions] = {}
        self._written: dict[int, Written] = {}  # by producer id
        self._complete: set[int] = set()  # of whom everything was acknowledged before the decision was asked for
        self._aborted: dict[int, str] = {}  # producer id → where its end was first written
        self._ends: dict[tuple[int, TopicPartition], set[int]] = {}  # (broker, partition) → offsets of ends
        self.read: dict[str, Counter[str]] = {}  # reader → row → how often
        invariants.on_written = self._frame_written
        invariants.on_committed = self._frame_committed

    # --- writers --------------------------------------------------------------------------------------------------

    def began(self, written: Written) -> None:
        """A transaction was given a producer id."""
        if written.producer_id in self._written:
            raise ViolationError(9, f"producer id {written.producer_id} was given to two transactions")
        self._written[written.producer_id] = written

    def to_be_decided(self, written: Sequence[Written]) -> None:
        """A decision that names these is about to be asked for."""
        self._complete.update(each.producer_id for each in written)

    def answered(self, scope: Scope, answer: EndTransactionResponse, *, keeps_first: bool, is_same: bool) -> None:
        """A driver was told that its batch is decided."""
        if (scope.transactional_id, scope.batch_id) not in self.decisions.made:
            raise ViolationError(9, f"{scope} was answered, and there is no decision")
        if not answer.is_commit or (not is_same and not keeps_first):
            raise ViolationError(9, f"{scope} was answered {answer}, and other contents were decided")

    def committed(self, written: Written, answer: EndTransactionResponse) -> None:
        """A process that decides alone was told that its transaction is committed."""
        if not answer.is_commit or answer.is_replay:
            raise ViolationError(9, f"{written.scope} was answered {answer}, and is not what was decided")

    def _decided(self, name: str, decision: DecisionRecord) -> None:
        committed = [each for first, last in decision.producer_ids for each in range(first, last + 1)]
        for producer_id in committed:
            if producer_id in self._aborted:
                raise ViolationError(
                    9, f"{name}: batch {decision.batch_id} commits transaction {producer_id}, which has ended aborted "
                    f"in {self._aborted[producer_id]}",
                )  # fmt: skip
            written = self._written.get(producer_id)
            if written is None or written.scope.transactional_id != name or producer_id not in self._complete:
                raise ViolationError(9, f"{name}: {decision} commits transaction {producer_id}: {written}")
            for batch in written.batches:
                if not self._is_committed(batch.at, batch.body):
                    raise ViolationError(9, f"{name}: {decision} commits {batch}, which is in no log")
        self.on_decision(name)

    def _is_committed(self, at: TopicPartition, body: int) -> bool:
        return any(each.at == at and each.offset_of(body) is not None for each in self._invariants.committed.values())

    # --- logs -----------------------------------------------------------------------------------------------------

    def _frame_written(self, node: Node, key: Key, frame: StoredFrame) -> None:
        """A leader has written a frame, committed or not."""
        control = frame.control
        if not isinstance(control, TransactionEnd):
            return
        at = TopicPartition(self._invariants.of(key, TopicPartition("", 0)).at.topic, key[1])
        self._ends.setdefault((node.broker_id, at), set()).add(frame.base_offset)
        # A former leader may read of decisions that its successor has finished: its end is never committed.
        if self._invariants.is_newest_leader(key, frame.header.leader_epoch):
            self._check_end(at, f"broker {node.broker_id}", control)

    def _check_end(self, at: TopicPartition, who: str, control: TransactionEnd) -> None:
        for each in control.ended:
            is_decided = self.decisions.is_committed(each.producer_id)
            if each.is_committed and not is_decided:
                raise ViolationError(
                    9, f"{at}: {who} ends transaction {each.producer_id} as committed, and nothing was decided",
                )  # fmt: skip
            if not each.is_committed:
                if is_decided:
                    raise ViolationError(
                        9, f"{at}: {who} ends transaction {each.producer_id} as aborted, and it was committed",
                    )  # fmt: skip
                self._aborted.setdefault(each.producer_id, str(at))

    def _frame_committed(self, key: Key, frame: StoredFrame) -> None:
        known = self.of(key)
        if isinstance(frame.control, TransactionEnd):
            self._check_end(known.at, "the log", frame.control)
        known.add(frame)

    def was_cut(self, node: Node, at: TopicPartition, end: int) -> None:
        """A broker's log ends there now."""
        ends = self._ends.get((node.broker_id, at), set())
        if any(offset >= end for offset in ends):
            self._situation(situations.END_CUT)
            ends.difference_update({offset for offset in ends if offset >= end})

    def of(self, key: Key) -> PartitionTransactions:
        """The transactions of a partition."""
        found = self._partitions.get(key)
        if found is None:
            at = self._invariants.of(key, TopicPartition("", key[1])).at
            found = self._partitions[key] = PartitionTransactions(at)
        return found

    @property
    def has_open(self) -> bool:
        """Whether any transaction is open in a log."""
        return any(each.open for each in self._partitions.values())

    # --- readers --------------------------------------------------------------------------------------------------

    def delivered(
        self,
        reader: str,
        key: Key,
        position: int,
        cell: Any,
        *,
        aborted: Sequence[tuple[int, int, int]],
        next_offset: int,
        last_stable_offset: int,
    ) -> None:
        """A reader of committed records got these frames for its position."""
        known = self.of(key)
        stable = known.last_stable_offset
        if next_offset > stable or last_stable_offset > stable:
            raise ViolationError(
                4, f"{known.at}: {reader} got records up to {next_offset}, a last stable offset of "
                f"{last_stable_offset}, and it is {stable}",
            )  # fmt: skip
        got: list[int] = []
        rows = self.read.setdefault(reader, Counter())
        for header, frame in visible_frames(cell, aborted):
            if header.next_offset <= position:
                continue
            got.append(header.base_offset)
            batch = self._history.batches[body_of(frame)]
            for value in batch.values:
                name = value.split("|")[0]
                rows[name] += 1
                if rows[name] > 1 and "|" in value:
                    raise ViolationError(9, f"{known.at}: {reader} got {name} twice, now at {header.base_offset}")
        wanted = known.visible(position, next_offset)
        if got != wanted:
            number = 4 if set(got) - set(wanted) else 9
            raise ViolationError(
                number, f"{known.at}: {reader} got the frames at {got} of {position} to {next_offset}, committed are "
                f"those at {wanted}",
            )  # fmt: skip
        records = [each for each in known.frames if position < each.next_offset <= next_offset and each.control is None]
        if len(wanted) < len(records):
            self._situation(situations.ABORTED_READ)
