"""From header to header through a segment's file, with few reads for many small frames.

Rule: a frame's successor is at its end and continues its offsets. Whatever breaks that is `CorruptRecordError` with
file and position, and nothing behind it is believed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import HEADER_BYTES, FrameHeader, parse_header
from broker_runtime.log.files import FileSystem

WINDOW_BYTES = 256 << 10
_LARGE_FRAME_BYTES = 64 << 10  # from here on a window would mostly hold bytes that nobody asked for


def walk_headers(
    files: FileSystem, descriptor: int, path: Path, *, position: int, end_position: int, offset: int
) -> Iterator[tuple[int, FrameHeader]]:
    """(position, header) of the frames in [position, end_position); the first must begin with ``offset``.

    Headers are checked for form and for dense offsets, not against their checksums. Raises `CorruptRecordError`,
    also where the last frame passes ``end_position``, and `OSError`.
    """
    window = b""
    window_position = position
    window_bytes = min(WINDOW_BYTES, 4096)  # grows with what turns out to be useful
    while position < end_position:
        if position + HEADER_BYTES > window_position + len(window):
            window = files.read(descriptor, min(window_bytes, end_position - position), position)
            window_position = position
        header = header_at(window, position - window_position, path, position, end_position, offset)
        yield position, header
        window_bytes = HEADER_BYTES if header.frame_bytes >= _LARGE_FRAME_BYTES else WINDOW_BYTES
        position += header.frame_bytes
        offset = header.next_offset


def header_at(
    buffer: bytes | memoryview, at: int, path: Path, position: int, end_position: int, offset: int
) -> FrameHeader:
    """The header of the frame at ``buffer[at]``, which lies at ``position`` in the file and must begin ``offset``.

    Raises `CorruptRecordError` with file, position and offset.
    """
    try:
        header = parse_header(buffer, at)
    except CorruptRecordError as error:
        raise damaged(path, position, offset, error.message) from None
    if header.base_offset != offset:
        raise damaged(path, position, offset, f"the frame there begins with offset {header.base_offset}")
    if header.is_pruned:
        raise damaged(path, position, offset, "the frame there says that parts of it are left out")
    if position + header.frame_bytes > end_position:
        raise damaged(
            path, position, offset, f"the frame there has {header.frame_bytes} bytes, the file ends at {end_position}"
        )
    return header


def damaged(path: Path, position: int, offset: int, reason: str) -> CorruptRecordError:
    """The error for bad bytes at ``position`` of ``path`` where the record ``offset`` should begin."""
    return CorruptRecordError(f"{path} is damaged at position {position}, offset {offset}: {reason}")
