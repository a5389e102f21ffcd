"""The sequence numbers of one partition, for an idempotent producer: which comes next, and which are still valid.

    id, epoch 0:   0 ── 10 ── 25 ── 40 …           a batch gets its number when it is first sent, and keeps it
                               └ void from here    batch 25 is certainly in no log and never will be, so no later one
    id, epoch 1:   0 ── 15 …                       can be either: they get new numbers, in a new epoch

Rule: a number is used once. Partitions are independent of each other: each has its own epoch of the same producer id.
A broker that has seen a newer epoch refuses an older one, so a batch sent under that cannot be appended late. Pure.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

_SEQUENCES: Final = 1 << 31
_LAST_EPOCH: Final = (1 << 15) - 1
_NOTHING_VOID: Final = sys.maxsize


class FrameNumber(NamedTuple):
    """The producer of a batch, and the sequence number of its first record."""

    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool = False


class Sequence:
    """See the module. Without an id at first: `begin` gives it one."""

    __slots__ = ("_epoch", "_next", "_producer_id", "_void_from")

    def __init__(self) -> None:
        self._producer_id = -1
        self._epoch = 0
        self._next = 0
        self._void_from = _NOTHING_VOID  # the first serial whose number in this epoch is void

    @property
    def producer_id(self) -> int:
        """Whose sequence it is; -1 before `begin`."""
        return self._producer_id

    @property
    def begins_new_epoch(self) -> bool:
        """Whether the next number is the first of a new epoch. Before it is sent, all batches of the old one must have
        come back."""
        return self._void_from != _NOTHING_VOID

    @property
    def needs_id(self) -> bool:
        """Whether the next number needs a producer id: there is none yet, or all its epochs are used up."""
        return self._producer_id < 0 or (self.begins_new_epoch and self._epoch == _LAST_EPOCH)

    def begin(self, producer_id: int) -> None:
        """Starts at 0 under ``producer_id``, which must be new to this partition."""
        self._producer_id = producer_id
        self._epoch = self._next = 0
        self._void_from = _NOTHING_VOID

    def take(self, count: int) -> FrameNumber:
        """The number of the next batch, which has ``count`` records."""
        assert not self.needs_id
        if self.begins_new_epoch:
            self._epoch += 1
            self._next = 0
            self._void_from = _NOTHING_VOID
        number = FrameNumber(self._producer_id, self._epoch, self._next)
        self._next = (self._next + count) % _SEQUENCES
        return number

    def holds(self, number: FrameNumber, serial: int) -> bool:
        """Whether ``number``, of the batch with this serial, is still valid."""
        return number[:2] == (self._producer_id, self._epoch) and serial < self._void_from

    def void_from(self, serial: int) -> None:
        """The batch with this serial is certainly in no log under its number and never will be, nor are later ones."""
        self._void_from = min(self._void_from, serial)
