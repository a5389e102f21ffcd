"""`read`: what a topic holds, as a stream of Arrow batches that ends. One line into pandas, Polars, DuckDB.

Rule: the ranges are fixed when `read` returns. Partitions follow one another, each in order. Batches are passed on as
they are read: nothing is collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from broker_runtime.contract.errors import InvalidRequestError, OffsetOutOfRangeError
from broker_runtime.contract.model import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition
from broker_runtime.contract.settings import resolve
from pyspark_log.client.connection import offsets
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.reading.range_reader import OffsetRange, read_ranges
from pyspark_log.client.reading.rows import KAFKA_COLUMNS, METADATA, RowAssembler, topic_predicate

Limit = str | datetime | int | Mapping[int, int]


def read(
    topic: str,
    *,
    start: Limit = "earliest",
    end: Limit = "latest",
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    metadata: bool = False,
    bootstrap_servers: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> pa.RecordBatchReader:
    """The records of a topic from ``start`` up to but not including ``end``, as they are now.

    ``start``, ``end``: ``"earliest"``, ``"latest"``, an aware datetime (the first record at or after it), an offset
    for every partition, or offsets by partition (by default earliest and latest). ``partitions``: only these.
    ``columns``: only these, in this order; the broker sends no others. ``where``: only the records that match, in the
    words of Spark SQL (``"delay > 15 AND carrier LIKE 'U%'"``); the guide Spark says which. A topic with a schema has
    its columns, one without has `KAFKA_COLUMNS` (and ``headers`` if asked for). ``metadata``: also ``_metadata``, a
    struct of topic, partition, offset, timestamp, timestampType, headers. ``config``: settings of an admin client by
    dotted name, such as ``security.protocol``.

    The reader blocks while the broker is away, up to 30 s without progress. Connections end with the reader: read it
    to its end, or close it. Raises `UnknownTopicOrPartitionError`, `SchemaMismatchError` (unknown column),
    `OffsetOutOfRangeError`, `InvalidPredicateError`; while reading also `CorruptRecordError`, `DataLossError`.
    """
    cluster = Cluster.from_settings(resolve("admin", config, {"bootstrap_servers": bootstrap_servers}))
    try:
        described = cluster.topic(topic)
        names = list(columns) if columns is not None else _all_names(described)
        if metadata and METADATA not in names:
            names.append(METADATA)
        predicate = None if where is None else topic_predicate(where, described.schema)
        rows = RowAssembler(topic, described.schema, names, where=predicate)
        chosen = range(len(described.partitions)) if partitions is None else list(dict.fromkeys(partitions))
        for partition in chosen:
            described.partition(partition)
        ranges = _ranges(cluster, described, list(chosen), start, end)
    except BaseException:
        cluster.close()
        raise
    return pa.RecordBatchReader.from_batches(rows.arrow_schema, _batches(cluster, described, rows, ranges))


def _all_names(topic: Topic) -> list[str]:
    return list(topic.schema.arrow.names if topic.is_typed else KAFKA_COLUMNS)


def _batches(
    cluster: Cluster, topic: Topic, rows: RowAssembler, ranges: Mapping[int, tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    try:
        wanted = [OffsetRange(partition, first, last) for partition, (first, last) in ranges.items()]
        for one, frame in read_ranges(cluster, topic, wanted, columns=rows.column_ids, where=rows.frame_test):
            batch = rows.batch(frame, one.partition, one.start, one.end)
            if batch is not None:
                yield batch
    finally:
        cluster.close()


def _ranges(
    cluster: Cluster, topic: Topic, partitions: list[int], start: Limit, end: Limit
) -> dict[int, tuple[int, int]]:
    all_of = [TopicPartition(topic.name, partition) for partition in partitions]
    earliest = {at.partition: a.offset for at, a in _limits(cluster, all_of, EARLIEST).items()}
    latest = {at.partition: a.offset for at, a in _limits(cluster, all_of, LATEST).items()}
    first = _resolve(cluster, all_of, start, earliest, latest, otherwise=earliest)
    last = _resolve(cluster, all_of, end, earliest, latest, otherwise=latest)
    for partition in partitions:
        for what, offset in (("start", first[partition]), ("end", last[partition])):
            if not earliest[partition] <= offset <= latest[partition]:
                raise OffsetOutOfRangeError(
                    f"{what}={offset}: {topic.name}-{partition} has {earliest[partition]} to {latest[partition]}"
                )
    return {partition: (first[partition], last[partition]) for partition in partitions}


def _limits(cluster: Cluster, partitions: list[TopicPartition], which: int) -> dict[TopicPartition, OffsetAndTimestamp]:
    return offsets.list_offsets(cluster, dict.fromkeys(partitions, which))


def _resolve(
    cluster: Cluster,
    partitions: list[TopicPartition],
    limit: Limit,
    earliest: dict[int, int],
    latest: dict[int, int],
    *,
    otherwise: dict[int, int],
) -> dict[int, int]:
    if isinstance(limit, str):
        if limit not in ("earliest", "latest"):
            raise InvalidRequestError(f"{limit!r} is not a place in a log; allowed: earliest, latest, a time, offsets")
        return earliest if limit == "earliest" else latest
    if isinstance(limit, Mapping):
        unknown = sorted(set(limit) - {at.partition for at in partitions})
        if unknown:
            raise InvalidRequestError(f"partition {unknown[0]} has an offset but is not read")
        return {partition: limit.get(partition, otherwise[partition]) for partition in otherwise}
    if isinstance(limit, datetime):
        found = offsets.list_offsets(cluster, dict.fromkeys(partitions, offsets.wire_timestamp(limit)))
        return {at.partition: a.offset if a.offset >= 0 else latest[at.partition] for at, a in found.items()}
    return dict.fromkeys(otherwise, limit)
