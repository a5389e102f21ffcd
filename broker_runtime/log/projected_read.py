"""Reading frames without the chunks that nobody asked for: neither from the disk nor into memory.

Rule: header and directory first, then only the chunks needed; what lies close together is one read. Frames small
enough to come along with the read of their header cost no read of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import HEADER_BYTES, plan_projection
from broker_runtime.log.files import FileSystem
from broker_runtime.log.frame_walk import WINDOW_BYTES, damaged, header_at
from broker_runtime.log.open_files import HeldFile

_LARGE_FRAME_BYTES = 64 << 10
_HEAD_WINDOW_BYTES = 8 << 10  # header and directory of a frame with some dozen columns
_GAP_BYTES = 16 << 10  # cheaper to read than another call


class _FileRange(NamedTuple):
    position: int
    size_bytes: int


class ProjectedRead:
    """One read; used once, by one thread."""

    def __init__(self, files: FileSystem, held: HeldFile, column_ids: Iterable[int]) -> None:
        self._files = files
        self._held = held
        self._column_ids = frozenset(column_ids)
        self._window = memoryview(b"")
        self._window_position = 0
        # The answer in order: bytes at hand, or where in the file they are.
        self._pieces: list[bytes | bytearray | memoryview | _FileRange] = []

    def load(self, position: int, end_position: int, offset: int) -> pa.Buffer:
        """The pruned frames of [position, end_position), the first of which begins ``offset``, in memory of their own.

        Raises `CorruptRecordError`, `OSError`.
        """
        window_bytes = WINDOW_BYTES
        while position < end_position:
            self._need(position, HEADER_BYTES, window_bytes)
            at = position - self._window_position
            header = header_at(self._window, at, self._held.path, position, end_position, offset)
            self._need(position, header.head_bytes, window_bytes)
            self._plan(position, header.head_bytes, offset)
            position += header.frame_bytes
            offset = header.next_offset
            window_bytes = _HEAD_WINDOW_BYTES if header.frame_bytes >= _LARGE_FRAME_BYTES else WINDOW_BYTES
            window_bytes = min(window_bytes, end_position - position)
        return self._fill()

    def _need(self, position: int, size_bytes: int, window_bytes: int) -> None:
        """Makes the window hold ``size_bytes`` from ``position``, if the file has them."""
        if position + size_bytes <= self._window_position + len(self._window):
            return
        data = self._files.read(self._held.descriptor, max(size_bytes, window_bytes), position)
        self._window, self._window_position = memoryview(data), position

    def _plan(self, position: int, head_bytes: int, offset: int) -> None:
        at = position - self._window_position
        try:
            projection = plan_projection(self._window[at : at + head_bytes], self._column_ids)
        except CorruptRecordError as error:
            raise damaged(self._held.path, position, offset, error.message) from None
        self._pieces.append(projection.prefix)
        for start, end in projection.ranges:
            if at + end <= len(self._window):
                self._pieces.append(self._window[at + start : at + end])
            else:
                self._pieces.append(_FileRange(position + start, end - start))

    def _fill(self) -> pa.Buffer:
        sizes = [piece.size_bytes if isinstance(piece, _FileRange) else len(piece) for piece in self._pieces]
        answer = pa.allocate_buffer(sum(sizes))
        view = memoryview(answer).cast("B")
        wanted: list[tuple[int, memoryview]] = []
        at = 0
        for piece, size in zip(self._pieces, sizes, strict=True):
            if isinstance(piece, _FileRange):
                wanted.append((piece.position, view[at : at + size]))
            else:
                view[at : at + size] = piece
            at += size
        self._read(wanted)
        return answer

    def _read(self, wanted: list[tuple[int, memoryview]]) -> None:
        """Fills memory from file positions, which rise; near ones by one call, the gaps into scratch memory."""
        scratch = memoryview(bytearray(_GAP_BYTES))
        number = 0
        while number < len(wanted):
            first = position = wanted[number][0]
            buffers: list[memoryview] = []
            while number < len(wanted) and wanted[number][0] - position <= _GAP_BYTES:
                start, target = wanted[number]
                buffers += [scratch[: start - position], target] if start > position else [target]
                position = start + target.nbytes
                number += 1
            got = self._files.read_into(self._held.descriptor, buffers, first)
            if got != position - first:
                raise CorruptRecordError(f"{self._held.path} ends at {first + got}, its frames need it to {position}")
