"""``<base offset>.index``: where in the segment some of its frames begin.

    bytes    type   field
    0–3      u32    offset of the frame's first record, less the segment's base offset
    4–7      u32    the frame's position in the segment
    8–11     u32    checksum (index_file.py)

Rule: sparse. A frame at position P has an entry if P lies at least ``index.interval.bytes`` behind the last entry's
position (behind 0, where there is none). So the entries follow from the frames alone: an index built anew equals the
one written live, byte by byte.
"""

from __future__ import annotations

from pathlib import Path

from broker_runtime.log.index_file import IndexFile
from broker_runtime.log.open_files import OpenFiles

_OFFSET, _POSITION = 0, 1


class OffsetIndex:
    """Offset → position. Not thread-safe against writers."""

    __slots__ = ("_base_offset", "file")

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int) -> None:
        self._base_offset = base_offset
        self.file = IndexFile(open_files, directory / f"{base_offset:020d}.index", "<II", base_offset)

    def append(self, offset: int, position: int) -> None:
        """The frame with first offset ``offset`` begins at ``position``. Raises `OSError`."""
        self.file.append((offset - self._base_offset, position))

    def floor(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before ``offset``; the segment's begin where there is none."""
        return self._entry(self.file.last_at_most(_OFFSET, offset - self._base_offset))

    def floor_position(self, position: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before ``position``; the segment's begin where there is none."""
        return self._entry(self.file.last_at_most(_POSITION, position))

    def last(self) -> tuple[int, int]:
        """(offset, position) of the last entry; the segment's begin where there is none."""
        return self._entry(len(self.file) - 1)

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return self._base_offset, 0
        relative_offset, position = self.file.entry(number)
        return self._base_offset + relative_offset, position
