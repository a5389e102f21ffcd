"""What the heads of frames say of their columns, kept in memory for reads with a predicate: by segment and position.

A frame never changes, and a segment whose frames are replaced becomes another `Segment`, so what is kept stays true.
Beside single heads there are runs: of all frames that begin in the same `RUN_BYTES` of a segment, what holds for each
of them, so that a search passes over a run at once. The segments that were searched last are kept, up to a number of
bounds for all logs of a data directory together; of one frame those of a few columns, asked for last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from broker_runtime.contract.predicate.frames import Bounds, Key, common_bounds
from broker_runtime.log.segment import Segment

RUN_BYTES: Final = 32 << 20
_MOST_BOUNDS: Final = 100_000  # some 25 MB
MOST_KEYS: Final = 16
"""Of which a frame's bounds are kept. A search that asks for more keeps none of them."""


class Head(NamedTuple):
    """Where a frame ends, or the last one of a run, and its bounds by what was asked for.

    ``bounds`` None: a control frame, which has no rows.
    """

    end_position: int
    next_offset: int
    bounds: Mapping[Key, Bounds] | None


class SegmentHeads:
    """The heads of one segment by position, and the runs by that of their first frame. Look up at will."""

    __slots__ = ("bounds", "counted", "heads", "runs")

    def __init__(self) -> None:
        self.heads: dict[int, Head] = {}
        self.runs: dict[int, Head] = {}
        self.bounds = 1  # how many there are in all, about: several threads may count at once
        self.counted = 0  # how many of them `FrameHeads` knows of

    def keep(self, heads: dict[int, Head], position: int, head: Head) -> None:
        """Adds to `heads` or `runs`, unless that would be too much; what is known of other columns stays or goes."""
        known = heads.get(position)
        before = {} if known is None or known.bounds is None else known.bounds
        if head.bounds is not None:
            if len(head.bounds) > MOST_KEYS:
                return
            if len(before) + len(head.bounds) <= MOST_KEYS:
                head = head._replace(bounds={**before, **head.bounds})
        heads[position] = head
        self.bounds += _weight(head) - (0 if known is None else _weight(known))


def _weight(head: Head) -> int:
    return 1 + len(head.bounds or ())


class RunBuilder:
    """Makes runs of the heads of a search, which come in order. ``keys``: what all of them have bounds of."""

    def __init__(self, known: SegmentHeads, keys: Collection[Key]) -> None:
        self._known = known
        self._keys = keys
        self._start: int | None = None  # of the run that is under way: all its frames have been seen
        self._bounds: dict[Key, Bounds] = {}

    def begins_at(self, position: int, previous: int | None) -> bool:
        """Whether the frame at ``position`` is the first of its run. ``previous``: where the one before begins, or
        the run before."""
        return position == 0 or (previous is not None and previous // RUN_BYTES < position // RUN_BYTES)

    def add(self, position: int, head: Head, *, is_first: bool) -> None:
        """The search came to this frame."""
        if is_first:
            self._start, self._bounds = position, {}
        if self._start is None:
            return
        if head.bounds is not None:
            mine = self._bounds
            for key in self._keys:
                mine[key] = common_bounds(mine[key], head.bounds[key]) if key in mine else head.bounds[key]
        if head.end_position // RUN_BYTES > position // RUN_BYTES:
            self._known.keep(self._known.runs, self._start, Head(head.end_position, head.next_offset, self._bounds))
            self._start = None


class FrameHeads:
    """The heads of many segments. Thread-safe."""

    def __init__(self, *, most: int = _MOST_BOUNDS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._segments: OrderedDict[Segment, SegmentHeads] = OrderedDict()  # least recently used first
        self._total = 0  # of what is counted in them

    def __len__(self) -> int:
        """How many bounds are kept; each segment and each head counts one more."""
        return self._total

    def of(self, segment: Segment) -> SegmentHeads:
        """The segment's heads. What is added to them counts from the next call of `settle` on."""
        with self._lock:
            known = self._segments.setdefault(segment, SegmentHeads())
            self._segments.move_to_end(segment)
            return known

    def settle(self, segment: Segment) -> None:
        """Counts what was added to the segment's heads, and forgets the segments that were not searched for longest,
        until the others have few enough."""
        with self._lock:
            known = self._segments.get(segment)
            if known is not None:
                self._total += known.bounds - known.counted
                known.counted = known.bounds
            while self._total > self._most:
                _, forgotten = self._segments.popitem(last=False)
                self._total -= forgotten.counted
