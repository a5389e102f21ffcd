"""Which options ``format("pylog")`` knows, and the first sorting of what a user gave.

Rule: names are case-insensitive (Spark lower-cases them); each given name is one of: an option of this direction
(reading or writing), an option of the other direction (ignored with a warning, so that one dict of options may serve
both), a client setting ``pylog.…``, or refused by name. What Kafka's clients know and nothing here needs is one
warning, not an error, so that a job moves over with its settings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import settings_of
from broker_runtime.contract.suggestion import suggestion
from pyspark_log.spark.option_definitions import SINK_OPTIONS, SOURCE_OPTIONS

Direction = Literal["source", "sink"]

CLIENT_PREFIX = "pylog."
KAFKA_PREFIX = "kafka."

_SOURCE = tuple(option.name for option in SOURCE_OPTIONS)
_SINK = tuple(option.name for option in SINK_OPTIONS)
_PROVIDER = "provider"  # of a table: Spark adds it, and some more, when it makes one
_OF_SPARK_ITSELF = ("checkpointLocation", "queryName")  # Spark hands its own options of a query to the sink
_ASYNC_PROGRESS = ("asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs",
                   "_asyncProgressTrackingOverrideSinkSupportCheck")  # fmt: skip
_WITHOUT_A_MEANING = (
    "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
"""They tune what Kafka's source does and this one does not: it has no group of its own, and its patience is fixed."""

_SET_BY_THE_SOURCE = {
    "auto.offset.reset": "the option startingOffsets says where a query begins",
    "enable.auto.commit": "the source publishes a query's progress itself when pylog.group.id is set",
    "key.deserializer": "keys come as binary; use DataFrame operations to convert them",
    "value.deserializer": "values come as binary, or as the topic's typed columns",
    "interceptor.classes": "there are no interceptors",
    "columns": "use the option columns",
}
_SET_BY_THE_SINK = {
    "key.serializer": "keys are written as they are (binary or string)",
    "value.serializer": "values are written as they are (binary or string)",
    "acks": "a task is done when all in-sync replicas have its rows; allowed, with no other meaning: all, -1, 1, 0",
    "interceptor.classes": "there are no interceptors",
}
_PARTITIONER = "Java's classes do not run here; name a row's partition in the column partition"
_PLACES_ROWS = {
    "partitioner.class": ("", "org.apache.kafka.clients.producer.internals.DefaultPartitioner"),
    "partitioner.ignore.keys": ("", "false"),
}
"""Settings of Kafka's producers that send rows to other partitions than the sink would, unless they have one of these
values."""
_ACKS = ("all", "-1", "1", "0")
"""Kafka's. The sink waits for all in-sync replicas whichever it is given: it promises more than was asked for."""
_OTHER_CODECS = ("gzip", "snappy")
"""Kafka's, which frames do not have. Rows are the same without."""
_SECURITY: Final = frozenset({
    "security.protocol", "ssl.cafile", "ssl.certfile", "ssl.keyfile", "sasl.mechanism", "sasl.username",
    "sasl.password", "token", "token.file",
})  # fmt: skip
CLIENT_SETTINGS: Final[Mapping[Direction, frozenset[str]]] = {
    "source": _SECURITY | {"bootstrap.servers", "client.id", "request.timeout.ms", "group.id"},
    "sink": _SECURITY | frozenset({
        "bootstrap.servers", "client.id", "request.timeout.ms", "linger.ms", "batch.size", "buffer.memory",
        "max.block.ms", "delivery.timeout.ms", "compression.type", "partitioner", "transactional.id",
        "transaction.timeout.ms",
    }),
}  # fmt: skip
"""The settings of clients that have a meaning in Spark, without `CLIENT_PREFIX`."""
_KAFKA_CLIENT_KEYS = frozenset({
    "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter", "check.crcs",
    "client.dns.lookup", "client.rack", "config.providers",
    "connections.max.idle.ms", "default.api.timeout.ms", "enable.idempotence", "enable.metrics.push",
    "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.instance.id",
    "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "internal.leave.group.on.close",
    "isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records",
    "max.in.flight.requests.per.connection", "max.request.size", "metadata.max.age.ms", "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy", "metric.reporters",
    "metrics.num.samples", "metrics.recording.level",
    "metrics.sample.window.ms", "partition.assignment.strategy", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms", "partitioner.class", "partitioner.ignore.keys", "receive.buffer.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
    "send.buffer.bytes", "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level",
    "transaction.timeout.ms",
})  # fmt: skip
_UNSAFE_PREFIXES = ("ssl.", "sasl.", "security.")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedOptions:
    """``own``: this direction's options by canonical name; ``client``: settings by dotted name without ``pylog.``."""

    own: Mapping[str, str]
    client: Mapping[str, str]


def sort_options(given: Mapping[str, str], direction: Direction) -> SortedOptions:
    """Sorts ``given`` (names in any case) for reading or writing.

    Raises `OptionError` naming the option and what is known instead. Logs one warning for each kind of ignored name.
    """
    if direction == "source" and any(name.lower() == _PROVIDER for name in given):
        raise OptionError(
            "Spark hands a table of its catalog no options when it is read or written, so CREATE TABLE … USING pylog "
            "would make one that works nowhere. Use CREATE TEMPORARY VIEW … USING pylog OPTIONS (…), or spark.read"
        )
    own_names, other_names = (_SOURCE, _SINK) if direction == "source" else (_SINK, _SOURCE)
    canonical = {name.lower(): name for name in own_names}
    own: dict[str, str] = {}
    client: dict[str, str] = {}
    ignored: list[str] = []
    meaningless: list[str] = []
    for given_name, value in given.items():
        name = given_name.lower()
        if name in canonical:
            own[canonical[name]] = value
        elif name in _lowered(other_names):
            ignored.append(given_name)
        elif name in _lowered(_WITHOUT_A_MEANING):
            meaningless.append(_lowered(_WITHOUT_A_MEANING)[name])
        elif name.startswith(CLIENT_PREFIX):
            _sort_client_setting(name, value, direction, client, meaningless)
        else:
            _refuse_unless_sparks_own(given_name, value, direction, own_names)
    if ignored:
        what = "ignore options for writing" if direction == "source" else "ignore options for reading"
        event(_logger, what, options=",".join(sorted(ignored)), level=logging.WARNING)
    if meaningless:
        names = ",".join(sorted(meaningless))
        event(_logger, "ignore settings without a meaning in spark", settings=names, level=logging.WARNING)
    return SortedOptions(own=own, client=client)


def _sort_client_setting(
    name: str, value: str, direction: Direction, client: dict[str, str], meaningless: list[str]
) -> None:
    setting = name.removeprefix(CLIENT_PREFIX)
    refused = _SET_BY_THE_SOURCE if direction == "source" else _SET_BY_THE_SINK
    if setting in refused and not (setting == "acks" and value.strip().lower() in _ACKS):
        raise OptionError(f"Option '{name}' is not supported: {refused[setting]}")
    if direction == "sink" and setting in _PLACES_ROWS and value.strip() not in _PLACES_ROWS[setting]:
        raise OptionError(f"Option '{name}' is not supported with the value '{value}': {_PARTITIONER}")
    if setting == "compression.type" and direction == "sink" and value.strip().lower() in _OTHER_CODECS:
        meaningless.append(f"{name}={value}")
        return
    if setting in CLIENT_SETTINGS[direction]:
        client[setting] = value
        return
    if setting.startswith(_UNSAFE_PREFIXES):
        raise OptionError(
            f"Option '{name}' has no meaning here. What secures connections is "
            + ", ".join(sorted(CLIENT_PREFIX + each for each in _SECURITY))
        )
    known_to_clients = settings_of("consumer").keys() | settings_of("producer").keys() | _KAFKA_CLIENT_KEYS
    if setting in known_to_clients:
        meaningless.append(name)
        return
    raise OptionError(
        f"Option '{name}' is unknown; "
        + suggestion(setting, known_to_clients, otherwise=sorted(CLIENT_SETTINGS[direction]), prefix=CLIENT_PREFIX)
    )


def _refuse_unless_sparks_own(name: str, value: str, direction: Direction, own_names: Iterable[str]) -> None:
    lowered = name.lower()
    if lowered in _lowered(_ASYNC_PROGRESS):
        if lowered == "asyncprogresstrackingenabled" and value.strip().lower() == "true":
            raise OptionError(
                "Option 'asyncProgressTrackingEnabled' is refused: after a crash, batches would have other offsets"
            )
        return
    if lowered in _lowered(_OF_SPARK_ITSELF):
        return
    if lowered.startswith(KAFKA_PREFIX):
        raise OptionError(f"Option '{name}' is Kafka's. Use '{CLIENT_PREFIX}{lowered.removeprefix(KAFKA_PREFIX)}'")
    if lowered == "path":
        option = "subscribe" if direction == "source" else "topic"
        raise OptionError(
            f"pylog has no paths: {value!r} was given as one (load, save or start with an argument). "
            f"Name the topic with .option({option!r}, …)"
        )
    raise OptionError(f"Option '{name}' is unknown; {suggestion(name, sorted(own_names))}")


def _lowered(names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}
