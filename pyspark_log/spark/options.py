"""The options of a source or a sink, checked and parsed once, before any broker is asked.

Names, meanings and messages are those of Spark's Kafka source and sink (``kafka.`` read as ``pylog.``). Everything
past this module takes these dataclasses, never a mapping; they pickle.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from broker_runtime.contract.errors import InvalidConfigError, OptionError
from broker_runtime.contract.model import LATEST, TopicPartition, check_group_id, check_topic_name
from broker_runtime.contract.settings import (
    ConsumerSettings,
    ProducerSettings,
    is_transactional_id,
    parse_duration,
    resolve,
)
from pyspark_log.spark.offsets import (
    OffsetLimit,
    Position,
    SameTime,
    SpecificOffsets,
    SpecificTimes,
    parse_assignment,
    parse_offset_limit,
    parse_time,
    parse_times,
)
from pyspark_log.spark.option_definitions import REPLAY_DIFFERS
from pyspark_log.spark.option_table import SortedOptions, sort_options

TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""How long a query that died may hold readers of its topics back, unless it is started again or aborted."""
TRIGGER_DELAY_MS = 15 * 60_000
"""How long fewer than ``minOffsetsPerTrigger`` offsets wait for more."""
COALESCE_ROWS = 10_000
"""A task costs 13 to 30 ms; in that time 40,000 rows and more are read, so ranges below this share a task."""

_OF_THE_SINK = ("transactional.id", "transaction.timeout.ms")
_APP_PREFIX = "app-"
_SELECTIONS = ("subscribe", "subscribePattern", "assign")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Which partitions a source reads; exactly one field is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None  # sorted, each once

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics that must exist; None: whatever matches the pattern."""
        if self.partitions is not None:
            return tuple(dict.fromkeys(partition.topic for partition in self.partitions))
        return self.topics

    def selects(self, partition: TopicPartition) -> bool:
        """Whether the source reads ``partition``."""
        if self.partitions is not None:
            place = bisect_left(self.partitions, partition)  # asked for each partition every few milliseconds
            return self.partitions[place : place + 1] == (partition,)
        if self.topics is not None:
            return partition.topic in self.topics
        return re.fullmatch(self.pattern or "", partition.topic) is not None

    def __str__(self) -> str:
        if self.partitions is not None:
            return "assign=" + ",".join(str(partition) for partition in self.partitions)
        return f"subscribe={','.join(self.topics)}" if self.topics is not None else f"subscribePattern={self.pattern}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user asked of a source. ``None`` for a limit means not given: its default differs by kind of query.

    ``unmatched_time_is_end``: a partition without a record as late as the starting time starts at its end.
    """

    selection: TopicSelection
    starting: OffsetLimit | None
    ending: OffsetLimit | None
    unmatched_time_is_end: bool
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    coalesce_rows: int
    columns: tuple[str, ...] | None
    where: str | None
    include_headers: bool
    include_metadata: bool
    group_id: str | None
    client: Mapping[str, str]  # settings by dotted name, bootstrap.servers always among them

    def settings(self) -> ConsumerSettings:
        """The client's settings."""
        return resolve("consumer", self.client)

    def batch_limits(self) -> tuple[OffsetLimit, OffsetLimit]:
        """Start and end of a batch read; raises `OptionError` for limits that only streams may have."""
        starting = self.starting if self.starting is not None else Position.EARLIEST
        ending = self.ending if self.ending is not None else Position.LATEST
        if starting is Position.LATEST:
            raise OptionError("starting offset can't be latest for batch queries on pylog")
        if ending is Position.EARLIEST:
            raise OptionError("ending offset can't be earliest for batch queries on pylog")
        if isinstance(starting, SpecificOffsets):
            for name, offset in starting.items():
                if offset == LATEST:
                    raise OptionError(f"startingOffsets for {name} can't be latest for batch queries on pylog")
        if isinstance(ending, SpecificOffsets):
            for name, offset in ending.items():
                if offset < LATEST:
                    raise OptionError(f"ending offset for {name} can't be earliest for batch queries on pylog")
        return starting, ending

    def stream_start(self) -> OffsetLimit:
        """Where a new query starts; raises `OptionError` for limits that only batch reads may have."""
        if isinstance(self.ending, SameTime | SpecificTimes):
            raise OptionError("ending timestamp not valid in streaming queries")
        if self.ending is not None:
            raise OptionError("ending offset not valid in streaming queries")
        return self.starting if self.starting is not None else Position.LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a user asked of a sink. ``topic`` None: each row names its own.

    ``transactional_id`` None: the query's id. ``app_id`` and ``version``: which batch write it is, so that it is
    written once. ``keeps_first``: a batch that is replayed with other contents stays as it was first.
    """

    topic: str | None
    client: Mapping[str, str]
    transactional_id: str | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    app_id: str | None = None
    version: int | None = None
    keeps_first: bool = False

    def settings(self) -> ProducerSettings:
        """The producer's settings."""
        return resolve("producer", self.client)


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Checks and parses what ``spark.read`` or ``spark.readStream`` was given; raises `OptionError`."""
    sorted_options = sort_options(given, "source")
    own = sorted_options.own
    group_id = sorted_options.client.get("group.id")
    options = SourceOptions(
        selection=_parse_selection(own),
        starting=_parse_limit(own, "starting"),
        ending=_parse_limit(own, "ending"),
        unmatched_time_is_end=_parse_strategy(own.get("startingOffsetsByTimestampStrategy")),
        fail_on_data_loss=_parse_boolean(own, "failOnDataLoss", default=True),
        max_offsets_per_trigger=_parse_positive(own, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_parse_positive(own, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=_parse_delay(own.get("maxTriggerDelay")),
        min_partitions=_parse_positive(own, "minPartitions"),
        max_records_per_partition=_parse_positive(own, "maxRecordsPerPartition"),
        coalesce_rows=_parse_integer(own, "coalesceRows", default=COALESCE_ROWS),
        columns=_parse_columns(own.get("columns")),
        where=own.get("where"),
        include_headers=_parse_boolean(own, "includeHeaders", default=False),
        include_metadata=_parse_boolean(own, "includeMetadata", default=False),
        group_id=None if group_id is None else check_group_id(group_id),
        client=_checked_client("consumer", sorted_options),
    )
    if options.coalesce_rows < 0:
        raise OptionError(f"coalesceRows must be 0 (off) or positive, got {own['coalesceRows']}")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"The value of minOffsetsPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    if Position.COMMITTED in (options.starting, options.ending) and options.group_id is None:
        raise OptionError("startingOffsets=committed (and endingOffsets=committed) needs the option pylog.group.id")
    return options


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Checks and parses what ``df.write`` or ``df.writeStream`` was given; raises `OptionError`."""
    sorted_options = sort_options(given, "sink")
    own, client = sorted_options.own, _checked_client("producer", sorted_options)
    settings = resolve("producer", client)
    topic, app_id, version = own.get("topic"), own.get("txnAppId"), own.get("txnVersion")
    if (app_id is None) != (version is None):
        raise OptionError("txnAppId and txnVersion say together which write it is: give both, or neither")
    if app_id is not None and (len(app_id) > 200 or not is_transactional_id(app_id)):
        raise OptionError(f"txnAppId must have 1 to 200 printable characters up to U+FFEF, without '/', got '{app_id}'")
    number = None if version is None else _parse_integer(own, "txnVersion", default=0)
    if number is not None and not 0 <= number < 1 << 62:
        raise OptionError(f"txnVersion must be 0 or positive, got '{version}'")
    given_timeout = "transaction.timeout.ms" in sorted_options.client
    return SinkOptions(
        topic=None if topic is None else check_topic_name(topic.strip()),
        client={name: value for name, value in client.items() if name not in _OF_THE_SINK},
        transactional_id=settings.transactional_id,
        transaction_timeout_ms=settings.transaction_timeout_ms if given_timeout else TRANSACTION_TIMEOUT_MS,
        app_id=None if app_id is None else f"{_APP_PREFIX}{app_id}",
        version=number,
        keeps_first=_parse_replay(own.get(REPLAY_DIFFERS)),
    )


def _parse_replay(text: str | None) -> bool:
    if text is None or text.strip().lower() == "error":
        return False
    if text.strip().lower() != "keep":
        raise OptionError(f"pylog.replay.differs must be error or keep, got '{text}'")
    return True


def _parse_selection(own: Mapping[str, str]) -> TopicSelection:
    names = [name for name in _SELECTIONS if name in own]
    listed = "subscribe, subscribepattern, assign. See the docs for more details."
    if not names:
        raise OptionError(f"One of the following options must be specified for pylog source: {listed}")
    if len(names) > 1:
        raise OptionError(f"Only one of the following options can be specified for pylog source: {listed}")
    value = own[names[0]]
    if names[0] == "assign":
        return TopicSelection(partitions=parse_assignment(value))
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'")
        return TopicSelection(topics=tuple(check_topic_name(topic) for topic in topics))
    if not value.strip():
        raise OptionError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
        )
    try:
        re.compile(value.strip())
    except re.error as error:
        raise OptionError(
            f"subscribePattern is '{value}', which is no regular expression of Python's: {error}"
        ) from None
    return TopicSelection(pattern=value.strip())


def _parse_limit(own: Mapping[str, str], which: str) -> OffsetLimit | None:
    """The option that counts of those that say where to start, or to end: Kafka's order."""
    if (text := own.get(f"{which}Timestamp")) is not None:
        return parse_time(text)
    if (text := own.get(option := f"{which}OffsetsByTimestamp")) is not None:
        return parse_times(option, text)
    text = own.get(option := f"{which}Offsets")
    return None if text is None else parse_offset_limit(option, text)


def _parse_strategy(text: str | None) -> bool:
    if text is None or text.strip().lower() == "error":
        return False
    if text.strip().lower() != "latest":
        raise OptionError(f"startingOffsetsByTimestampStrategy must be error or latest, got '{text}'")
    return True


def _parse_delay(text: str | None) -> int:
    if text is None:
        return TRIGGER_DELAY_MS
    try:
        return parse_duration(re.sub("min$", "m", text.strip().lower()))
    except ValueError:
        raise OptionError(f"maxTriggerDelay must be a time such as 500ms, 30s or 15m, got '{text}'") from None


def _parse_columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    repeated = sorted({name for name in names if names.count(name) > 1})
    if not names or repeated:
        what = f"names {', '.join(repeated)} twice" if repeated else "names no column"
        raise OptionError(f"columns is '{text}', which {what}. Allowed: column names with commas between")
    return names


def _parse_boolean(own: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = own.get(name)
    if text is None:
        return default
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise OptionError(f"{name} must be true or false, got '{text}'")
    return value


def _parse_positive(own: Mapping[str, str], name: str) -> int | None:
    if name not in own:
        return None
    value = _parse_integer(own, name, default=0)
    if value < 1:
        raise OptionError(f"{name} must be positive, got '{own[name]}'")
    return value


def _parse_integer(own: Mapping[str, str], name: str, *, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()) is None:
        raise OptionError(f"{name} must be a whole number, got '{text}'")
    return int(text)


def _checked_client(scope: str, options: SortedOptions) -> dict[str, str]:
    """The client's settings, checked, with the brokers' addresses as this process knows them: executors may not."""
    try:
        settings = resolve("consumer", options.client) if scope == "consumer" else resolve("producer", options.client)
    except InvalidConfigError as error:
        raise OptionError(f"pylog.{error.message}") from None
    servers = ",".join(str(address) for address in settings.bootstrap_servers)
    return {**options.client, "bootstrap.servers": servers}
