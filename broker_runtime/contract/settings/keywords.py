"""The clients' settings as typed keyword arguments: ``def __init__(self, …, **settings: Unpack[ProducerKeywords])``.

The names are the table's with ``_`` for ``.``; a test holds the two together. Sizes and durations may be numbers
(bytes, ms) or text (``16MiB``, ``7d``). ``bootstrap_servers`` is a parameter of its own in every client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict


class AdminKeywords(TypedDict, total=False):
    """`Admin`'s settings."""

    client_id: str | None
    request_timeout_ms: int | str
    enable_http_proxy: bool


class ProducerKeywords(AdminKeywords, total=False):
    """`Producer`'s settings."""

    acks: Literal["all", "1", "0", "-1", 1, 0, -1]
    enable_idempotence: bool
    linger_ms: int | str
    batch_size: int | str
    buffer_memory: int | str
    max_block_ms: int | str
    delivery_timeout_ms: int | str
    compression_type: Literal["none", "lz4", "zstd"]
    partitioner: Literal["round_robin", "sticky"] | Callable[..., int]
    key_serializer: Callable[[Any], bytes | None] | None
    value_serializer: Callable[[Any], bytes | None] | None


class ConsumerKeywords(AdminKeywords, total=False):
    """`Consumer`'s settings."""

    group_id: str | None
    group_instance_id: str | None
    session_timeout_ms: int | str
    max_poll_interval_ms: int | str
    auto_offset_reset: Literal["latest", "earliest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int | str
    max_poll_records: int
    fetch_max_bytes: int | str
    fetch_max_wait_ms: int | str
    columns: Sequence[str] | str | None
    key_deserializer: Callable[[bytes], Any] | None
    value_deserializer: Callable[[bytes], Any] | None
