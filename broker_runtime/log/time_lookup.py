"""The first record at or behind a point in time, in one segment.

Rule: the time index says where to begin, headers which frame, and only that frame's timestamps are decoded.
"""

from __future__ import annotations

import pyarrow.compute as pc

from broker_runtime.contract.frame import TIMESTAMP_COLUMN_ID, FrameHeader, decode_frame
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema, schema_from_bytes
from broker_runtime.log.files import FileSystem
from broker_runtime.log.frame_walk import damaged
from broker_runtime.log.identity import PartitionIdentity
from broker_runtime.log.open_files import HeldFile
from broker_runtime.log.segment import Segment


class TimeLookup:
    """Looks in one segment, under the log's lock."""

    def __init__(self, files: FileSystem, segment: Segment, identity: PartitionIdentity) -> None:
        self._files = files
        self._segment = segment
        self._identity = identity

    def first_at_or_after(self, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record ≥ ``start_offset`` with a timestamp ≥ ``timestamp_ms``, or None.

        Raises `CorruptRecordError` for indexes and frames alike, `OSError`.
        """
        segment, extent = self._segment, self._segment.extent
        if extent.size_bytes == 0:
            return None
        begin = min(max(segment.time_index.offset_before(timestamp_ms), start_offset), extent.next_offset - 1)
        with segment.hold() as held:
            position, first = segment.locate(held, extent, begin)
            for found, header in segment.walk(held, extent.size_bytes, position, first.base_offset):
                if header.latest_timestamp_ms < timestamp_ms or header.next_offset <= start_offset:
                    continue
                record = self._first_in_frame(held, found, header, timestamp_ms, start_offset)
                if record is not None:
                    return record
        return None

    def _first_in_frame(
        self, held: HeldFile, position: int, header: FrameHeader, timestamp_ms: int, start_offset: int
    ) -> tuple[int, int] | None:
        first = max(start_offset - header.base_offset, 0)
        if header.timestamp_type or header.base_timestamp_ms == header.max_timestamp_ms:
            return header.base_offset + first, header.latest_timestamp_ms
        decoded = decode_frame(
            self._files.read(held.descriptor, header.frame_bytes, position),
            schema_history(self._identity),
            columns=(TIMESTAMP_COLUMN_ID,),
            topic_id=self._identity.topic_id.bytes,
            partition=self._identity.partition,
        )
        timestamps = decoded.timestamps
        if timestamps is None:
            raise damaged(self._segment.path, position, header.base_offset, "its timestamps differ but are not there")
        hits = pc.indices_nonzero(pc.greater_equal(timestamps.slice(first), timestamp_ms))
        if len(hits) == 0:
            return None
        row = first + hits[0].as_py()
        return header.base_offset + row, timestamps[row].as_py()


def schema_history(identity: PartitionIdentity) -> SchemaHistory:
    """The topic's schemas as the partition's directory has them."""
    versions = [
        TopicSchema(schema_id=schema_id, arrow=schema_from_bytes(arrow), is_typed=True, key=None)
        for schema_id, arrow in identity.schemas
    ]
    return SchemaHistory(versions or [UNTYPED])
