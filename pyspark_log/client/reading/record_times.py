"""The timestamps of records at given offsets: the inverse of `offsets.list_offsets`.

Rule: one frame per partition is read, without its columns; brokers keep no state for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from broker_runtime.contract.errors import DataLossError, OffsetOutOfRangeError
from broker_runtime.contract.frame import TIMESTAMP_COLUMN_ID, DecodedFrame
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.reading.range_reader import read_range
from pyspark_log.client.records import datetime_of

_AT_ONCE = 8
_PREFETCH_BYTES = 64 << 10


def timestamps_at(cluster: Cluster, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, datetime | None]:
    """For each partition the time (UTC) of the first record at or after an offset; None: there is none.

    Blocks and raises as `offsets.list_offsets` and `read_range`.
    """
    starts = offsets.list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    ends = offsets.list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    found: dict[TopicPartition, datetime | None] = dict.fromkeys(wanted)
    places = {at: offset for at, given in wanted.items() if (offset := max(given, starts[at].offset)) < ends[at].offset}
    if places:
        with ThreadPoolExecutor(min(_AT_ONCE, len(places)), thread_name_prefix="pylog-times") as threads:
            times = threads.map(lambda place: _time_at(cluster, *place), places.items())
            found.update(zip(places, times, strict=True))
    return found


def _time_at(cluster: Cluster, at: TopicPartition, offset: int) -> datetime | None:
    frames = read_range(
        cluster,
        cluster.topic(at.topic),
        at.partition,
        offset,
        offset + 1,
        columns=(TIMESTAMP_COLUMN_ID,),
        prefetch_bytes=_PREFETCH_BYTES,
    )
    try:
        times = [datetime_of(_time_in(frame, offset)) for frame in frames]
    except (OffsetOutOfRangeError, DataLossError):
        return None  # the records were deleted meanwhile, by retention or by an administrator
    return times[0] if times else None


def _time_in(frame: DecodedFrame, offset: int) -> int:
    if frame.constant_timestamp_ms is not None:
        return frame.constant_timestamp_ms
    assert frame.timestamps is not None
    return int(frame.timestamps[max(0, offset - frame.header.base_offset)].as_py())
