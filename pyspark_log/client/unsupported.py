"""Settings of Kafka's clients, and planned ones of pylog, that this version does not support, refused by name.

Rule: a setting without effect is never accepted silently, unless its value describes what this version does anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_runtime.contract.errors import NotSupportedError

_TLS = "only PLAINTEXT without authentication is supported yet"

_LATER = {
    "security.protocol": _TLS,
    "ssl.cafile": _TLS,
    "ssl.certfile": _TLS,
    "ssl.keyfile": _TLS,
    "sasl.username": _TLS,
    "sasl.password": _TLS,
    "token": _TLS,
}
_AS_IT_IS = {
    "security.protocol": ("plaintext",),
}
"""Their values that describe this version, so that a job written for a later one can keep its settings."""


def without_later_settings(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both mappings without these settings; a value that describes what this version does anyway is accepted.

    Raises `NotSupportedError` for the first one with another value.
    """
    kept: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for given, keep in zip((config or {}, keywords), kept, strict=True):
        for name, value in given.items():
            dotted = name.replace("_", ".")
            if dotted not in _LATER:
                keep[name] = value
            elif value is not None and str(value).lower() not in _AS_IT_IS.get(dotted, ()):
                raise NotSupportedError(f"{dotted}={value!r}: {_LATER[dotted]}")
    return kept
