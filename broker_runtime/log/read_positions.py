"""Where the last reads ended, so that a reader that goes on from there needs no index."""

from __future__ import annotations

import threading
from collections import OrderedDict

_REMEMBERED = 64


class ReadPositions:
    """Offset → (segment's base offset, position) of frames' begins. Thread-safe; bounded; may forget anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def remember(self, offset: int, base_offset: int, position: int) -> None:
        """The frame that begins with ``offset`` lies, or will lie, at ``position`` of the segment."""
        with self._lock:
            self._positions[offset] = (base_offset, position)
            self._positions.move_to_end(offset)
            if len(self._positions) > _REMEMBERED:
                self._positions.popitem(last=False)

    def find(self, offset: int, base_offset: int) -> int | None:
        """The position, if it is remembered and in that segment."""
        with self._lock:
            base, position = self._positions.get(offset, (-1, -1))
            return position if base == base_offset else None

    def clear(self) -> None:
        """Forgets all: positions may mean other frames now."""
        with self._lock:
            self._positions.clear()
