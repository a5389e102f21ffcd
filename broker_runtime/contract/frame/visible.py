"""Which of the frames that a broker sent have records for a reader: the only place where others are dropped.

Rule: a reader of committed records is told which transactions aborted, and where. Control frames have no records.
Offsets of frames that are dropped are gaps: a reader continues behind them (``next_offset``), and never counts rows to
know where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broker_runtime.contract.frame.header import Buffer, FrameHeader
from broker_runtime.contract.frame.verify import iter_frames

AbortedRange = tuple[int, int, int]
"""Producer id, first offset, end: its frames that begin in [first offset, end) are aborted."""


def visible_frames(buffer: Buffer, aborted: Sequence[AbortedRange] = ()) -> Iterator[tuple[FrameHeader, Any]]:
    """As `iter_frames`, without control frames and without the frames of ``aborted`` transactions."""
    hidden: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, end in aborted:
        hidden.setdefault(producer_id, []).append((first, end))
    for header, frame in iter_frames(buffer):
        if header.is_control:
            continue
        ranges = hidden.get(header.producer_id, ()) if header.is_transactional else ()
        if not any(first <= header.base_offset < end for first, end in ranges):
            yield header, frame
