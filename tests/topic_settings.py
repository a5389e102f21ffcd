"""Topic settings for tests: the defaults, and what a test changes, within no limits but those between settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from broker_runtime.contract.settings import TopicSettings, resolve

FLUSH_MODES = ("ack", "interval", "os")
_DEFAULTS = resolve("topic", {})


def topic_settings(**changes: Any) -> TopicSettings:
    """The defaults with ``changes``; ``max.message.bytes`` is never above ``segment.bytes``, as `resolve` has it."""
    settings = dataclasses.replace(_DEFAULTS, **changes)
    return dataclasses.replace(settings, max_message_bytes=min(settings.max_message_bytes, settings.segment_bytes))
