"""The sequence of one partition's frames, for an idempotent producer: which number comes next, and which still count.

    id, epoch 0:   0 ── 10 ── 25 ── 40 …           a frame gets its number when it first leaves, and keeps it
                               └ void from here    the frame that was 25 is surely in no log and will never be,
    id, epoch 1:   0 ── 15 …                       so nothing behind it can be either: they are numbered anew

Rule: a number is used once. Partitions are independent of each other: each has its own epoch of the same producer id,
and a broker that has seen the newer one refuses the older, so what was sent under it cannot come in late. Pure.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

_SEQUENCES: Final = 1 << 31
_LAST_EPOCH: Final = (1 << 15) - 1
_NOTHING_VOID: Final = sys.maxsize


class FrameNumber(NamedTuple):
    """Who sends a frame, and the sequence of its first record."""

    producer_id: int
    epoch: int
    sequence: int


class Sequence:
    """See the module. Without an id at first: `begin` gives it one."""

    __slots__ = ("_epoch", "_next", "_producer_id", "_void_from")

    def __init__(self) -> None:
        self._producer_id = -1
        self._epoch = 0
        self._next = 0
        self._void_from = _NOTHING_VOID  # the first serial whose number of this epoch does not count

    @property
    def producer_id(self) -> int:
        """Whose sequence it is; -1 before `begin`."""
        return self._producer_id

    @property
    def begins_anew(self) -> bool:
        """Whether the next number is the first of another epoch. Older ones must have come back before it leaves."""
        return self._void_from != _NOTHING_VOID

    @property
    def needs_id(self) -> bool:
        """Whether the next number needs another producer id: there is none, or its epochs are used up."""
        return self._producer_id < 0 or (self.begins_anew and self._epoch == _LAST_EPOCH)

    def begin(self, producer_id: int) -> None:
        """Begins with 0, as ``producer_id``, which this partition has not seen."""
        self._producer_id = producer_id
        self._epoch = self._next = 0
        self._void_from = _NOTHING_VOID

    def take(self, count: int) -> FrameNumber:
        """The number of the next frame, of ``count`` records."""
        assert not self.needs_id
        if self.begins_anew:
            self._epoch += 1
            self._next = 0
            self._void_from = _NOTHING_VOID
        number = FrameNumber(self._producer_id, self._epoch, self._next)
        self._next = (self._next + count) % _SEQUENCES
        return number

    def holds(self, number: FrameNumber, serial: int) -> bool:
        """Whether the number of the frame with this serial still counts."""
        return number[:2] == (self._producer_id, self._epoch) and serial < self._void_from

    def void_from(self, serial: int) -> None:
        """The frame with this serial, and so all behind it, is surely in no log, and will never be under its number."""
        self._void_from = min(self._void_from, serial)
