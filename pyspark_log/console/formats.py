"""Formats numbers, sizes and times, the same on every page.

Rule: pure; times are UTC; an unknown value is a dash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

UNKNOWN: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEPS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def number(value: int | None) -> str:
    """1,234,567; a dash for None and for -1."""
    return UNKNOWN if value is None or value < 0 else f"{value:,}"


def size(value: int | None) -> str:
    """1.5 MiB; a dash for None and for -1."""
    if value is None or value < 0:
        return UNKNOWN
    step = min(len(_UNITS) - 1, max(0, (value.bit_length() - 1) // 10)) if value else 0
    shown = value / 1024**step
    return (
        f"{value:,} B"
        if not step
        else f"{shown:,.1f} {_UNITS[step]}"
        if shown < 100
        else f"{shown:,.0f} {_UNITS[step]}"
    )


def rate(value: float | None) -> str:
    """12.5/s."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}/s" if value >= 100 else f"{value:,.1f}/s"


def duration(seconds: float | None) -> str:
    """1 d 2 h, 3 min 4 s, 12 s, 250 ms."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left = round(seconds)
    parts: list[str] = []
    for step, unit in _STEPS:
        if left >= step:
            parts.append(f"{left // step:,} {unit}")
            left %= step
        elif parts:
            break
        if len(parts) == 2:
            return " ".join(parts)
    if left and len(parts) < 2 and not any("d" in part for part in parts):
        parts.append(f"{left} s")
    return " ".join(parts) or "0 s"


def moment(timestamp_ms: int | None) -> str:
    """2026-01-31 12:00:00 UTC, to the second."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms:,} ms since 1970"


def moment_ms(timestamp_ms: int) -> str:
    """2026-01-31 12:00:00.123, to the millisecond; the page says that it is UTC."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms:,} ms"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """1 partition, 2 partitions."""
    return f"{number(count)} {noun if count == 1 else plural or noun + 's'}"


def listed(values: Iterable[object]) -> str:
    """1, 2, 3; a dash where there are none."""
    return ", ".join(map(str, values)) or UNKNOWN


def segment(text: str) -> str:
    """A name as one segment of a URL path."""
    return quote(text, safe="")


def query(**values: object) -> str:
    """A query string, without values that are None or empty."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def coded(text: str) -> Markup:
    """Prose in which `words` between backquotes are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped just here


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number, "size": size, "rate": rate, "duration": duration, "moment": moment, "moment_ms": moment_ms,
    "counted": counted, "listed": listed, "segment": segment, "coded": coded,
}  # fmt: skip
"""By their names in templates."""
