"""The transactions of a log as its frames tell them, for looking at it from outside: which are open, how far the log is
stable, what its indexes of aborted transactions must name.

Rule: reads only. What began before the walk is known if the log begins there, or if a snapshot says it; where it is not
known, nothing is said about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.frame import Control, FrameHeader, TransactionBegin, TransactionEnd
from broker_runtime.log.files import FileSystem, read_file
from broker_runtime.log.producer_state import ProducerState, snapshot_path
from broker_runtime.log.transactions import OpenTransaction, Transactions

IndexEntry = tuple[int, ...]
"""Of `TransactionIndex`: producer id, first offset, offset of the end, last stable offset behind that."""


class TransactionWalk:
    """Takes frames in the order of their offsets. ``is_complete``: whether all that is open is known."""

    def __init__(self, start: int, known: Transactions | None = None) -> None:
        """``start``: the offset of the first frame. ``known``: what is open there."""
        self._start = start
        self._transactions = known if known is not None else Transactions()
        self.is_complete = known is not None or start == 0

    @classmethod
    def at(cls, files: FileSystem, directory: Path, offset: int) -> TransactionWalk:
        """A walk from ``offset``, with what the snapshot there says, if it can be read. Raises `OSError`."""
        state = read_snapshot(files, directory, offset)
        return cls(offset, None if state is None else state.transactions)

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """What is open behind the last frame, the oldest first."""
        return tuple(sorted(self._transactions.open.values(), key=lambda each: each.first_offset))

    def last_stable_offset(self, end: int) -> int:
        """How far the log is stable if everything below ``end`` is committed."""
        return min([end, *(each.first_offset for each in self.open)])

    def add(self, header: FrameHeader, control: Control | None) -> str | None:
        """The next frame; returns what about it contradicts the frames before."""
        opened = self._transactions.open
        problem: str | None = None
        if isinstance(control, TransactionBegin):
            if header.producer_id in opened:
                problem = f"a second transaction of producer {header.producer_id} begins before the first one ends"
            self._transactions.begin(header, control, 0)
        elif isinstance(control, TransactionEnd):
            problem = self._problem_of_end(header, control)
            self._transactions.end(header, control, 0)
        elif header.is_transactional and self.is_complete and header.producer_id not in opened:
            problem = f"a frame of producer {header.producer_id} lies outside of any transaction"
        return problem

    def _problem_of_end(self, header: FrameHeader, end: TransactionEnd) -> str | None:
        opened = self._transactions.open
        for each in end.ended:
            known = opened.get(each.producer_id)
            if known is None and not self.is_complete and each.first_offset < self._start:
                continue
            if known is None or known.first_offset != each.first_offset:
                return (
                    f"it ends a transaction of producer {each.producer_id} from offset {each.first_offset} on, which "
                    "did not begin there"
                )
        ended = {each.producer_id for each in end.ended}
        kept = [each.first_offset for each in opened.values() if each.producer_id not in ended]
        stable = min(kept, default=header.next_offset)
        if end.last_stable_offset > stable or (self.is_complete and end.last_stable_offset != stable):
            return f"it says that the last stable offset is {end.last_stable_offset}; by the frames it is {stable}"
        return None


def read_snapshot(files: FileSystem, directory: Path, offset: int) -> ProducerState | None:
    """The state in the snapshot at ``offset``; None if there is none that can be read. Raises `OSError`."""
    try:
        data = read_file(files, snapshot_path(directory, offset))
        return None if data is None else ProducerState.decode(data)
    except PylogError:
        return None


def difference_of_entries(found: Sequence[IndexEntry], expected: Sequence[IndexEntry]) -> str | None:
    """What is wrong with a transaction index that has ``found``; None: nothing."""
    if list(found) == list(expected):
        return None
    lacking, extra = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    for entry in expected:
        if entry in lacking:
            return f"it lacks the aborted {_transaction(entry)}"
    for entry in found:
        if entry in extra:
            return f"it names an aborted {_transaction(entry)}, which the frames do not say"
    return "its entries are not in the order of the frames"


def said(control: Control) -> str:
    """One line about what a control frame says."""
    which = f"{control.transactional_id} epoch {control.epoch} batch {control.batch_id}"
    if isinstance(control, TransactionBegin):
        return f"begin {which}"
    outcomes = [
        f"{name} {', '.join(str(each.producer_id) for each in control.ended if each.is_committed == is_committed)}"
        for name, is_committed in (("committed", True), ("aborted", False))
        if any(each.is_committed == is_committed for each in control.ended)
    ]
    return f"end {which}: {', '.join(outcomes) or 'nothing'}; stable to {control.last_stable_offset}"


def _transaction(entry: IndexEntry) -> str:
    producer_id, first_offset, end_offset, stable = entry
    return f"transaction of producer {producer_id}, offsets {first_offset} to {end_offset}, stable to {stable}"
