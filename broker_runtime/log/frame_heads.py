"""What the heads of frames say of their columns, kept in memory for reads with a predicate: by segment and position.

A frame never changes, and a segment whose frames are replaced becomes another `Segment`, so what is kept stays true.
The segments that were searched last are kept, up to a number of heads for all logs of a data directory together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker_runtime.contract.predicate.frames import Bounds, Key
from broker_runtime.log.segment import Segment

_MOST_HEADS: Final = 50_000  # some 25 MB


class Head(NamedTuple):
    """Where a frame ends, and its bounds by what was asked for; ``bounds`` None: a control frame, which has no rows."""

    end_position: int
    next_offset: int
    bounds: Mapping[Key, Bounds] | None


class FrameHeads:
    """The heads of many segments. Thread-safe."""

    def __init__(self, *, most: int = _MOST_HEADS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._segments: OrderedDict[Segment, dict[int, Head]] = OrderedDict()  # least recently used first

    def of(self, segment: Segment) -> dict[int, Head]:
        """The segment's heads by position: look up and add at will. They count from the next call of `settle` on."""
        with self._lock:
            heads = self._segments.setdefault(segment, {})
            self._segments.move_to_end(segment)
            return heads

    def settle(self) -> None:
        """Forgets the segments that were not searched for longest, until the others are few enough."""
        with self._lock:
            total = sum(map(len, self._segments.values()))
            while total > self._most:
                _, heads = self._segments.popitem(last=False)
                total -= len(heads)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._segments.values()))
