"""From what a user gave to a frozen dataclass per scope: checked, complete, in one unit.

Rule: everything past the edge takes these dataclasses, never a mapping. Their fields are the table's names with ``_``
for ``.``; a test holds the two together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings.kinds import Address
from broker_runtime.contract.settings.table import BOOTSTRAP_VARIABLE, Scope, find_setting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker's settings. Sizes in bytes, durations in ms, -1: no limit."""

    broker_id: int
    listeners: Address
    advertised_listeners: Address | None
    log_dirs: tuple[Path, ...]
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    num_partitions: int
    default_replication_factor: int
    delete_topic_enable: bool
    offsets_retention_minutes: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int  # Invariant: group_min_session_timeout_ms ≤ group_max_session_timeout_ms
    group_max_size: int
    log_retention_check_interval_ms: int
    log_dir_min_free_bytes: int
    max_connections: int
    memory_max_bytes: int | None  # None: as `memory.limit_bytes` says
    fetch_max_bytes: int
    replica_lag_time_max_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_wait_max_ms: int  # Invariant: replica_fetch_wait_max_ms < replica_lag_time_max_ms
    replication_throttled_rate: int  # bytes per second
    auto_leader_rebalance_enable: bool
    controlled_shutdown_enable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """One topic's settings, its own and the defaults. Sizes in bytes, durations in ms, -1: no limit."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    min_insync_replicas: int | None  # None: as many as `min_in_sync` says
    unclean_leader_election_enable: bool
    max_message_bytes: int  # Invariant: max_message_bytes ≤ segment_bytes
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    index_interval_bytes: int
    flush_mode: Literal["ack", "interval", "os"]
    flush_ms: int

    def min_in_sync(self, replication_factor: int) -> int:
        """``min.insync.replicas`` of a topic with that many replicas: what was set, else 1 below three replicas, a
        majority from three on."""
        if self.min_insync_replicas is not None:
            return self.min_insync_replicas
        return 1 if replication_factor < 3 else replication_factor // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """What every client has. Durations in ms."""

    bootstrap_servers: tuple[Address, ...]
    client_id: str
    request_timeout_ms: int
    enable_http_proxy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(AdminSettings):
    """A producer's settings. Sizes in bytes, durations in ms."""

    acks: Literal["all", "1", "0"]
    enable_idempotence: bool  # Invariant: only with acks="all"
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    compression_type: Literal["none", "lz4", "zstd"]
    partitioner: Literal["round_robin", "sticky"] | Callable[..., int]
    key_serializer: Callable[[Any], bytes | None] | None
    value_serializer: Callable[[Any], bytes | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(AdminSettings):
    """A consumer's settings. Sizes in bytes, durations in ms."""

    group_id: str | None
    group_instance_id: str | None  # Invariant: only with a group_id
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: Literal["latest", "earliest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    columns: tuple[str, ...] | None
    key_deserializer: Callable[[bytes], Any] | None
    value_deserializer: Callable[[bytes], Any] | None


Settings = BrokerSettings | TopicSettings | ProducerSettings | ConsumerSettings | AdminSettings
CLASSES: dict[Scope, type[Settings]] = {
    "broker": BrokerSettings,
    "topic": TopicSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
    "admin": AdminSettings,
}


@overload
def resolve(
    scope: Literal["broker"], config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> BrokerSettings: ...
@overload
def resolve(
    scope: Literal["topic"], config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> TopicSettings: ...
@overload
def resolve(
    scope: Literal["producer"], config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> ProducerSettings: ...
@overload
def resolve(
    scope: Literal["consumer"], config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> ConsumerSettings: ...
@overload
def resolve(
    scope: Literal["admin"], config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> AdminSettings: ...
def resolve(
    scope: Scope, config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> Settings:
    """The scope's settings: ``config`` by dotted names, ``keywords`` with ``_`` for ``.``; None is "not given".

    Clients without ``bootstrap.servers`` take `$PYLOG_BOOTSTRAP_SERVERS`. Raises `InvalidConfigError` for an unknown
    name (with the nearest known one), a wrong value (with what is allowed), a name given twice, a required one
    missing, and values that do not fit together.
    """
    given = parse_given(scope, config, keywords)
    values: dict[str, Any] = {}
    for name, setting in settings_of(scope).items():
        if name in given:
            values[setting.keyword] = given[name]
        elif name == "bootstrap.servers" and os.environ.get(BOOTSTRAP_VARIABLE):
            try:
                values[setting.keyword] = setting.parse(os.environ[BOOTSTRAP_VARIABLE])
            except InvalidConfigError as error:
                raise InvalidConfigError(f"${BOOTSTRAP_VARIABLE}: {error.message}") from None
        elif setting.required:
            raise InvalidConfigError(f"{name} is missing: {setting.doc} Allowed: {setting.allowed}")
        else:
            values[setting.keyword] = None if setting.default is None else setting.parse(setting.default)
    if scope == "topic":
        _fit_topic(given, values)
    elif scope == "broker":
        _fit_broker(values)
    elif scope == "producer":
        _fit_producer(given, values)
    elif scope == "consumer":
        _fit_consumer(values)
    return CLASSES[scope](**values)


def parse_given(
    scope: Scope, config: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None
) -> dict[str, object]:
    """Only what was given, by dotted name, each value checked alone. Errors as `resolve`."""
    parsed: dict[str, object] = {}
    for name, value in (config or {}).items():
        if value is not None:
            parsed[name] = find_setting(scope, str(name)).parse(value)
    for keyword, value in (keywords or {}).items():
        name = keyword.replace("_", ".")
        setting = find_setting(scope, name)
        if value is None:
            continue
        if name in parsed:
            raise InvalidConfigError(f"{name} is given twice: {(config or {})[name]!r} and {value!r}")
        parsed[name] = setting.parse(value)
    return parsed


def _fit_topic(given: Mapping[str, object], values: dict[str, Any]) -> None:
    segment_bytes, max_message_bytes = values["segment_bytes"], values["max_message_bytes"]
    if max_message_bytes > segment_bytes:
        if "max.message.bytes" in given:
            raise InvalidConfigError(
                f"max.message.bytes={max_message_bytes} is more than segment.bytes={segment_bytes}: "
                "a frame must fit in a segment"
            )
        values["max_message_bytes"] = segment_bytes


def _fit_broker(values: Mapping[str, Any]) -> None:
    wait_ms, lag_ms = values["replica_fetch_wait_max_ms"], values["replica_lag_time_max_ms"]
    if wait_ms >= lag_ms:
        raise InvalidConfigError(
            f"replica.fetch.wait.max.ms={wait_ms} is not less than replica.lag.time.max.ms={lag_ms}: a follower that "
            "waits for data would count as behind"
        )
    least_ms, most_ms = values["group_min_session_timeout_ms"], values["group_max_session_timeout_ms"]
    if least_ms > most_ms:
        raise InvalidConfigError(
            f"group.min.session.timeout.ms={least_ms} is more than group.max.session.timeout.ms={most_ms}"
        )


def _fit_consumer(values: Mapping[str, Any]) -> None:
    if values["group_instance_id"] is not None and values["group_id"] is None:
        raise InvalidConfigError(
            f"group.instance.id={values['group_instance_id']!r} needs a group.id: it names a member of a group"
        )


def _fit_producer(given: Mapping[str, object], values: dict[str, Any]) -> None:
    if values["acks"] != "all":
        if given.get("enable.idempotence"):
            raise InvalidConfigError(
                f"enable.idempotence=true needs acks=all, not acks={values['acks']}: leave one of the two out"
            )
        values["enable_idempotence"] = False
