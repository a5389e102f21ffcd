"""A frame without the chunks that a reader did not ask for.

Rule: nothing is decoded, recompressed or copied. A pruned answer consists of the frame's own header (marked in
`pruned_bytes`, which no checksum covers), its whole directory, presence bits, and the chunks that were asked for,
unchanged. So the reader verifies the checksum of everything it gets. A frame whose columns share one chunk is sent
whole.

| pruned answer                                                                                   |
|-------------------------------------------------------------------------------------------------|
| header, 128 bytes, and directory: the frame's own                                               |
| presence bits, padded to 64: bit i % 8 of byte i // 8 is set if chunk i is present              |
| the chunks that are present, in their order                                                     |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame.directory import padded, parse_directory
from broker_runtime.contract.frame.header import Buffer, FrameHeader, parse_checked_header, pruned_head


class Projection(NamedTuple):
    """How to answer: ``prefix``, then ``ranges`` (start, end) of the whole frame's bytes, ``answer_bytes`` in total."""

    prefix: bytes | bytearray
    ranges: list[tuple[int, int]]
    answer_bytes: int


def plan_projection(head: Buffer, column_ids: Iterable[int]) -> Projection:
    """What to send of a frame to a reader of ``column_ids``. ``head`` begins with the frame's header and directory.

    ``head`` must have at least `FrameHeader.head_bytes`; the prefix is a copy. Columns that the frame lacks are null in
    all its rows and cost nothing. Adjacent chunks make one range. Raises `CorruptRecordError`,
    `UnsupportedVersionError`.
    """
    view = memoryview(head).cast("B")
    header = parse_checked_header(view)
    directory = parse_directory(view, header)
    start = header.head_bytes
    wanted = frozenset(column_ids)
    bits = bytearray(padded((header.chunk_count + 7) // 8))
    ranges: list[tuple[int, int]] = []
    position = start
    first = kept_bytes = 0
    for index, chunk in enumerate(directory.chunks):
        end = position + chunk.length
        if not wanted.isdisjoint(directory.columns[first : first + chunk.column_count]):
            bits[index // 8] |= 1 << index % 8
            kept_bytes += chunk.length
            if ranges and ranges[-1][1] == position:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((position, end))
        first += chunk.column_count
        position = end
    answer_bytes = start + len(bits) + kept_bytes
    if answer_bytes >= header.frame_bytes:
        return Projection(bytes(view[:start]), [(start, header.frame_bytes)], header.frame_bytes)
    prefix = pruned_head(view[:start], answer_bytes)
    prefix += bits
    return Projection(prefix, ranges, answer_bytes)


def chunks_present(view: memoryview, header: FrameHeader) -> tuple[int, int]:
    """(position of the first chunk, presence bits) of a frame, whole or pruned.

    Raises `CorruptRecordError`.
    """
    everything = (1 << header.chunk_count) - 1
    if not header.is_pruned:
        return header.head_bytes, everything
    bits_bytes = padded((header.chunk_count + 7) // 8)
    bits = int.from_bytes(view[header.head_bytes : header.head_bytes + bits_bytes], "little")
    if bits & ~everything:
        raise CorruptRecordError("a pruned frame marks chunks as present that the frame does not have")
    return header.head_bytes + bits_bytes, bits
