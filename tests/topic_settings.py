"""Topic settings for tests: the defaults with a test's changes, limited only by relations between settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from broker_runtime.contract.settings import TopicSettings, resolve

FLUSH_MODES = ("ack", "interval", "os")
_DEFAULTS = resolve("topic", {})


def topic_settings(**changes: Any) -> TopicSettings:
    """The defaults with ``changes``; ``max.message.bytes`` is never above ``segment.bytes``, as in `resolve`."""
    settings = dataclasses.replace(_DEFAULTS, **changes)
    return dataclasses.replace(settings, max_message_bytes=min(settings.max_message_bytes, settings.segment_bytes))
