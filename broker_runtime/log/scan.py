"""From frame to frame through a segment's file, whole or damaged: the only code that scans.

    `walk_headers`      from header to header, with few reads for many small frames. A frame's successor is at its end
                        and continues its offsets; anything else is a `CorruptRecordError` with file and position, and
                        nothing after it is believed.
    `verified_frames`   the same with all checksums, up to the first bad frame. A frame counts as good if all its
                        checksums are right, that of the stamp for this very topic id and partition.
    `frames_anywhere`   good frames after a bad one.

Rule: reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker_runtime.contract.errors import CorruptRecordError, UnsupportedVersionError
from broker_runtime.contract.frame import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    STAMP_BYTES,
    FrameHeader,
    check_stamp,
    parse_header,
    verify_frame,
)
from broker_runtime.contract.frame.header import parse_checked_header
from broker_runtime.log.files import FileSystem
from broker_runtime.log.identity import PartitionIdentity
from broker_runtime.log.open_files import OpenFiles

if TYPE_CHECKING:
    from broker_runtime.log.segment import Segment

LOG_SUFFIX = ".log"
"""Of a segment's file of frames."""
WINDOW_BYTES = 256 << 10
_LARGE_FRAME_BYTES = 64 << 10  # from here on a window would mostly hold bytes that nobody asked for

_SEARCH_BYTES = 1 << 20
_ALIGNMENT_BYTES = 64
_MAGIC = b"PLOG"
_MAGIC_POSITION = STAMP_BYTES  # the producer's part of the header begins with it


def walk_headers(
    files: FileSystem, descriptor: int, path: Path, *, position: int, end_position: int, offset: int
) -> Iterator[tuple[int, FrameHeader]]:
    """(position, header) of the frames in [position, end_position); the first must begin with ``offset``.

    Headers are checked for form and for dense offsets, not against their checksums. Raises `CorruptRecordError`,
    also where the last frame passes ``end_position``, and `OSError`.
    """
    window = b""
    window_position = position
    window_bytes = min(WINDOW_BYTES, 4096)  # grows when frames turn out to be small
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
    """The header of the frame at ``buffer[at]``, which is at ``position`` in the file and must begin with ``offset``.

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


class BadFrame(NamedTuple):
    """Where the good frames of a segment end: its position, the offset expected there, and what is wrong."""

    position: int
    offset: int
    reason: str


def verified_frames(
    files: FileSystem,
    descriptor: int,
    path: Path,
    *,
    size_bytes: int,
    base_offset: int,
    identity: PartitionIdentity,
    verify_from: int = 0,
    deleted_below: int = 0,
) -> Iterator[tuple[int, FrameHeader, memoryview | None]]:
    """(position, header, bytes) of the good frames from the segment's beginning, in order and dense.

    Of frames below the offset ``verify_from`` only the header is read, and the bytes are None. They are None, too, of
    frames whose records are all below ``deleted_below`` and of which only the header is sound. Holds one frame in
    memory, or 1 MiB if that is more. Raises `CorruptRecordError` at the first bad one, `UnsupportedVersionError` at one
    of a newer format, `OSError`.
    """
    position, offset = 0, base_offset
    if base_offset < verify_from:
        for at, header in walk_headers(
            files, descriptor, path, position=0, end_position=size_bytes, offset=base_offset
        ):
            if header.next_offset > verify_from:
                break
            yield at, header, None
            position, offset = at + header.frame_bytes, header.next_offset
    window, window_position = memoryview(b""), position
    while position < size_bytes:
        at = position - window_position
        if at + HEADER_BYTES > len(window):
            window, window_position, at = _read(files, descriptor, position, _SEARCH_BYTES), position, 0
        header = _header(window, at, path, position, size_bytes, offset)
        if at + header.frame_bytes > len(window):
            length = max(_SEARCH_BYTES, header.frame_bytes)
            window, window_position, at = _read(files, descriptor, position, length), position, 0
        frame = window[at : at + header.frame_bytes]
        try:
            verify_frame(frame, topic_id=identity.topic_id.bytes, partition=identity.partition)
        except CorruptRecordError:
            if header.next_offset > deleted_below:
                raise
            parse_checked_header(frame)
            check_stamp(frame, topic_id=identity.topic_id.bytes, partition=identity.partition)
            yield position, header, None
        else:
            yield position, header, frame
        position += header.frame_bytes
        offset = header.next_offset


def watermark_behind(
    open_files: OpenFiles, segments: list[Segment], bad: BadFrame, identity: PartitionIdentity, *, leader_epoch: int = 0
) -> int:
    """A high watermark above the bad frame's offset, from the stamp of a good frame after it, of ``leader_epoch`` or a
    later one; -1 if there is none.

    ``segments``: that of the bad frame, and all later ones. Frames begin at multiples of 64, so every such place is
    tried. Raises `OSError`.
    """
    for number, segment in enumerate(segments):
        with segment.hold() as held:
            size = open_files.files.size(held.descriptor)
            position = bad.position + _ALIGNMENT_BYTES if number == 0 else 0
            for _, header in frames_anywhere(open_files.files, held.descriptor, position, size, identity):
                is_believed = header.base_offset >= bad.offset and header.leader_epoch >= leader_epoch
                if is_believed and header.high_watermark > bad.offset:
                    return header.high_watermark
    return -1


def frames_anywhere(
    files: FileSystem, descriptor: int, position: int, size_bytes: int, identity: PartitionIdentity | None
) -> Iterator[tuple[int, FrameHeader]]:
    """(position, header) of the good frames from ``position`` on, whatever is between them. Raises `OSError`.

    Without ``identity`` the stamp's checksum is not verified.
    """
    position += -position % _ALIGNMENT_BYTES
    while position + HEADER_BYTES <= size_bytes:
        header = _good_frame(files, descriptor, position, size_bytes, identity)
        if header is None:
            position = _next_candidate(files, descriptor, position + _ALIGNMENT_BYTES, size_bytes)
        else:
            yield position, header
            position += header.frame_bytes


def belongs_to(files: FileSystem, directory: Path, identity: PartitionIdentity) -> bool:
    """Whether the frames in a partition's directory are of that topic id and partition; True if there are none.

    Searches the first 64 MiB of each segment until it finds one good frame. Raises `OSError`.
    """
    is_empty = True
    for name in files.list(directory):
        if not name.endswith(LOG_SUFFIX):
            continue
        descriptor = files.open(directory / name, read_only=True)
        try:
            size = min(files.size(descriptor), MAX_FRAME_BYTES)
            is_empty = is_empty and size == 0
            if next(frames_anywhere(files, descriptor, 0, size, identity), None) is not None:
                return True
        finally:
            files.close(descriptor)
    return is_empty


def _good_frame(
    files: FileSystem, descriptor: int, position: int, size_bytes: int, identity: PartitionIdentity | None
) -> FrameHeader | None:
    try:
        header = parse_header(files.read(descriptor, HEADER_BYTES, position))
        if header.frame_bytes > size_bytes - position:
            return None
        frame = _read(files, descriptor, position, header.frame_bytes)
        if identity is None:
            return verify_frame(frame)
        return verify_frame(frame, topic_id=identity.topic_id.bytes, partition=identity.partition)
    except (CorruptRecordError, UnsupportedVersionError):
        return None


def _next_candidate(files: FileSystem, descriptor: int, position: int, size_bytes: int) -> int:
    """The next multiple of 64 where a frame may begin, by its magic; ``size_bytes`` if there is none."""
    while position < size_bytes:
        window = files.read(descriptor, _SEARCH_BYTES, position)
        at = window.find(_MAGIC)
        while at >= 0:
            start = at - _MAGIC_POSITION
            if start >= 0 and start % _ALIGNMENT_BYTES == 0:
                return position + start
            at = window.find(_MAGIC, at + 1)
        position += _SEARCH_BYTES - _ALIGNMENT_BYTES  # a magic may lie across two windows
    return size_bytes


def _header(window: memoryview, at: int, path: Path, position: int, size_bytes: int, offset: int) -> FrameHeader:
    try:
        return header_at(window, at, path, position, size_bytes, offset)
    except CorruptRecordError:
        # The checksum tells a frame of a newer format from a damaged one.
        if len(window) >= at + HEADER_BYTES:
            _raise_if_newer(window[at:])
        raise


def _raise_if_newer(frame: memoryview) -> None:
    try:
        verify_frame(frame)
    except CorruptRecordError:
        return


def _read(files: FileSystem, descriptor: int, position: int, length_bytes: int) -> memoryview:
    return memoryview(files.read(descriptor, length_bytes, position))
