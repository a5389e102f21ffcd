"""``<base offset>.timeindex``: how far the timestamps had risen, at some of the segment's frames.

    bytes    type   field
    0–7      i64    largest timestamp (ms) of all the segment's records before the offset
    8–11     u32    that offset, less the segment's base offset
    12–15    u32    checksum (index_file.py)

Rule: an entry is written with an offset index entry, before its frame, if the maximum rose since the last entry; and
a last one, for the segment's end, when the segment is closed. So timestamps in the file rise strictly, a closed
segment's last entry has its maximum, and the entries follow from the frames alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker_runtime.log.index_file import IndexFile
from broker_runtime.log.open_files import OpenFiles

NO_TIMESTAMP = -(1 << 63)
"""Below every timestamp: the maximum over no records."""

_TIMESTAMP = 0


class TimeIndex:
    """Timestamp → offset before which no record is younger. Not thread-safe against writers."""

    __slots__ = ("_base_offset", "_last_timestamp_ms", "file")

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int) -> None:
        self._base_offset = base_offset
        self.file = IndexFile(open_files, directory / f"{base_offset:020d}.timeindex", "<qI", base_offset)
        self._last_timestamp_ms: int | None = None  # None: not read yet. Kept, so that an append only writes

    def maybe_append(self, max_timestamp_ms: int, offset: int) -> None:
        """All records before ``offset`` have timestamps ≤ ``max_timestamp_ms``; declines where that is no news."""
        if max_timestamp_ms > self.last_timestamp():
            self.file.append((max_timestamp_ms, offset - self._base_offset))
            self._last_timestamp_ms = max_timestamp_ms

    def last_timestamp(self) -> int:
        """The last entry's timestamp, or `NO_TIMESTAMP`. Raises `CorruptRecordError`, `OSError`, the first time."""
        if self._last_timestamp_ms is None:
            count = len(self.file)
            self._last_timestamp_ms = self.file.entry(count - 1)[_TIMESTAMP] if count else NO_TIMESTAMP
        return self._last_timestamp_ms

    def replace(self, entries: Sequence[tuple[int, int]], *, is_durable: bool = True) -> None:
        """Makes (timestamp, relative offset) ``entries`` the whole content, as `IndexFile.replace`."""
        self.file.replace(entries, is_durable=is_durable)
        self._last_timestamp_ms = None

    def offset_before(self, timestamp_ms: int) -> int:
        """An offset before which no record has a timestamp ≥ ``timestamp_ms``: where to begin to look."""
        number = self.file.last_at_most(_TIMESTAMP, timestamp_ms - 1)
        return self._base_offset if number < 0 else self._base_offset + self.file.entry(number)[1]
