"""What a hosted partition needs of its disk, and what it says of appends and of its end."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec


class Disk(Protocol):
    """The disk below a partition, as far as is known without waiting for it."""

    @property
    def takes_appends(self) -> bool:
        """Whether there is enough room, and the disk answers."""
        ...

    def require_room(self, *, is_urgent: bool = False) -> None:
        """Raises `LogStorageError` if there is too little room, or the disk has stalled. ``is_urgent``: for the end of
        transactions, less is enough."""
        ...

    def require_answers(self) -> None:
        """Raises `LogStorageError` if the disk has stalled."""
        ...


class PendingAppend(msgspec.Struct, frozen=True, kw_only=True):
    """Frames that are in the leader's log, from ``base_offset`` up to ``next_offset``, and not yet acknowledged.
    ``is_duplicate``: they were there before."""

    base_offset: int
    next_offset: int
    append_time_ms: int  # -1: the records keep their own timestamps
    leader_epoch: int
    is_duplicate: bool = False


class LatestOffsets(NamedTuple):
    """Where a partition ends, for readers of all records and for those of committed ones."""

    high_watermark: int
    last_stable_offset: int
