"""``<base offset>.txnindex``: the aborted transactions that ended in the segment (Kafka's AbortedTxn).

    bytes    type   field
    0–7      i64    producer id
    8–15     i64    offset of the transaction's first record
    16–23    i64    offset of its abort marker
    24–31    i64    last stable offset when the marker was written
    32–35    u32    checksum (index_file.py)

Rule: appended when an abort marker is, so the last two fields rise. Nothing aborts yet: the file is there and empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from broker_runtime.log.index_file import IndexFile
from broker_runtime.log.open_files import OpenFiles


class AbortedTransaction(NamedTuple):
    """The range [first_offset, last_offset] of one producer whose records nobody who reads committed ones may see."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Aborted transactions by rising marker offset. Not thread-safe against writers."""

    __slots__ = ("file",)

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int) -> None:
        self.file = IndexFile(open_files, directory / f"{base_offset:020d}.txnindex", "<qqqq", base_offset)

    def append(self, aborted: AbortedTransaction) -> None:
        """Raises `OSError`."""
        self.file.append(aborted)

    def overlapping(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those with records in [start_offset, end_offset). Raises `CorruptRecordError`, `OSError`."""
        found = [AbortedTransaction(*fields) for fields in self.file.entries()]
        return [
            aborted for aborted in found if aborted.first_offset < end_offset and aborted.last_offset >= start_offset
        ]
