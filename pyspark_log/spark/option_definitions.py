"""THE list of options of ``format("pylog")``: each is defined once, here.

`option_table` sorts what a user gave by these names, and the reference is generated from all of it. What a default
means is in `options`, which parses the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SparkOption:
    """One option. ``default`` and ``sentence`` are markdown, for people."""

    name: str
    default: str
    sentence: str


REPLAY_DIFFERS: Final = "pylog.replay.differs"

# A definition reads as a row, so it is not laid out by the formatter.
# fmt: off
SOURCE_OPTIONS: Final = (
    SparkOption("subscribe", "", "Topics with commas between: `a,b`."),
    SparkOption("assign", "", 'Partitions of topics: `{"a":[0,1]}`.'),
    SparkOption("subscribePattern", "", "A pattern (Python's) that matches whole names of topics."),
    SparkOption("startingOffsets", "stream `latest`, batch `earliest`",
        '`earliest`, `latest`, `committed`, or `{"t":{"0":23,"1":-2}}` (-2 earliest, -1 latest). `committed` needs '
        "`pylog.group.id`. A stream's checkpoint wins."),
    SparkOption("startingTimestamp", "none",
        "Milliseconds since 1970: each partition starts at its first record with that timestamp or a later one. Takes "
        "precedence over the two other starting options."),
    SparkOption("startingOffsetsByTimestamp", "none",
        'The same per partition, `{"t":{"0":1767225600000}}`, or per topic, `{"t":1767225600000}`. Takes precedence '
        "over `startingOffsets`."),
    SparkOption("startingOffsetsByTimestampStrategy", "`error`",
        "For both: what to do if a partition has no record that late. `error` fails; `latest` starts at its end."),
    SparkOption("endingOffsets", "`latest`", "Batch only: `latest`, `committed` or JSON."),
    SparkOption("endingTimestamp", "none",
        "Batch only: read up to, but not including, the first record with that timestamp or a later one. Without one: "
        "up to the end that the log has when the read is planned."),
    SparkOption("endingOffsetsByTimestamp", "none", "The same per partition or per topic, in JSON."),
    SparkOption("failOnDataLoss", "`true`", "`false`: logs a warning and continues with what exists."),
    SparkOption("maxOffsetsPerTrigger", "none", "Shared over the partitions by their backlog."),
    SparkOption("minOffsetsPerTrigger", "none",
        "A micro-batch waits until there are so many. The first one after a start does not wait, and `availableNow` "
        "never does."),
    SparkOption("maxTriggerDelay", "`15m`",
        "How long after the previous micro-batch `minOffsetsPerTrigger` may hold the next one back."),
    SparkOption("minPartitions", "none", "Splits large ranges into at least this many input partitions."),
    SparkOption("maxRecordsPerPartition", "none", "Splits ranges into input partitions of at most so many records."),
    SparkOption("coalesceRows", "`10000`",
        "Ranges smaller than this share one task, each in order; 0: one task each."),
    SparkOption("columns", "all",
        "`carrier,dep_delay`: only these are read, and of frames large enough to have a chunk per column only these "
        "leave the broker."),
    SparkOption("where", "none", "`dep_delay > 15 AND carrier LIKE 'U%'`: only the rows that match."),
    SparkOption("includeHeaders", "`false`", "Adds `headers` to Kafka's columns."),
    SparkOption("includeMetadata", "`false`",
        "Adds `_metadata` (topic, partition, offset, timestamp, timestampType, headers) to the columns."),
)
SINK_OPTIONS: Final = (
    SparkOption("topic", "the column", "All rows go to this topic."),
    SparkOption("txnAppId", "none",
        "Batch writes: this is version `txnVersion` of what `txnAppId` writes; one that was written is not written "
        "again."),
    SparkOption("txnVersion", "none", "The version; given together with `txnAppId`."),
    SparkOption(REPLAY_DIFFERS, "`error`",
        "`keep`, for one start: a batch that is replayed with other rows is not an error, and what was written first "
        "stays."),
)
# Settings of clients that are something else in Spark; a name here is without `pylog.`.
SETTINGS_IN_SPARK: Final = (
    SparkOption("group.id", "none",
        "A query's progress becomes this group's committed offsets; no other live query may use it."),
    SparkOption("transactional.id", "the query's id", "What a streaming query's micro-batches are numbered under."),
    SparkOption("transaction.timeout.ms", "`15m`",
        "How long the tasks of one write may take before it is aborted; a broker allows `transaction.max.timeout.ms`."),
)
# fmt: on
