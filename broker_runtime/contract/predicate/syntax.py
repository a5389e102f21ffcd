r"""The words of a predicate: names, literals, operators, as Spark SQL writes them.

names      carrier   `a name`   _metadata.offset
numbers    1   2L   1.5   1.5BD   1e3   2.5D   0.1F
text       'it\'s'   "or so"        with Spark's escapes
bytes      X'00FF'
others     TRUE FALSE NULL
times      DATE '2026-01-31'   TIMESTAMP '2026-01-31 12:00:00Z'   TIMESTAMP_NTZ '2026-01-31 12:00:00'
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from broker_runtime.contract.errors import InvalidPredicateError

_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "LIKE", "TRUE", "FALSE"})
_MOST_CHARACTERS: Final = 16 << 10
_MOST_DIGITS: Final = 38

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<bytes>x(?:'[^']*'|"[^"]*"))
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?(?P<suffix>BD|[LSYDF])?(?![\w.]))
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<quoted>(?:`(?:[^`]|``)+`)(?:\.(?:`(?:[^`]|``)+`|[A-Za-z_]\w*))*)
    | (?P<name>[A-Za-z_]\w*(?:\.(?:`(?:[^`]|``)+`|[A-Za-z_]\w*))*)
    | (?P<op><=>|<=|>=|<>|!=|==|=|<|>|\(|\)|,|-|\+)
    )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
_HEX = re.compile("[0-9A-Fa-f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    rf"""(?P<date>{_DATE.pattern})
    (?P<time>[\ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,9}})?)?
    (?P<zone>\s*(?:
      (?P<offset>Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))
    | (?P<name>UTC|GMT|(?!posix/|right/)[A-Za-z]+/[A-Za-z0-9_/+-]+)
    ))?""",
    re.VERBOSE,
)
_SPACES: Final = " \t\r\n"
_LARGEST_FLOAT: Final = Decimal(struct.unpack("<f", b"\xff\xff\x7f\x7f")[0])
_LARGEST_DOUBLE: Final = Decimal(sys.float_info.max)
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Name:
    """A column, as parts between dots."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Date:
    """Days since 1970-01-01."""

    days: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Microseconds since 1970 in UTC, or by the wall clock."""

    micros: int
    has_zone: bool


@dataclass(frozen=True, slots=True)
class Literal:
    """``value`` None: NULL. A double is a float, other numbers are int or Decimal."""

    text: str
    value: bool | int | float | Decimal | str | bytes | Date | Timestamp | None


@dataclass(frozen=True, slots=True)
class Word:
    """A keyword (in capitals) or an operator."""

    text: str


Token = Name | Literal | Word


def tokens(text: str) -> list[Token]:
    """The words of ``text``. Raises `InvalidPredicateError`, with the place of what is no word."""
    if len(text) > _MOST_CHARACTERS:
        raise InvalidPredicateError(f"where has {len(text):,} characters, at most {_MOST_CHARACTERS:,} are allowed")
    found: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position:].lstrip()
            raise InvalidPredicateError(
                f"where: {rest[:20]!r} at character {len(text) - len(rest) + 1} is not understood"
            )
        position = match.end()
        token = _token(match)
        if isinstance(token, Literal) and isinstance(token.value, str) and found:
            typed = _typed(found[-1], token)
            if typed is not None:
                found[-1] = typed
                continue
            if isinstance(found[-1], Literal) and isinstance(found[-1].value, str):
                raise InvalidPredicateError(f"where: two strings in a row at {token.text}; a quote in one is \\'")
        found.append(token)
    return found


def parse_date(text: str) -> Date:
    """``2026-01-31``. Raises `ValueError`."""
    text = text.strip(_SPACES)
    if _DATE.fullmatch(text) is None:
        raise ValueError("a date is written 2026-01-31")
    return Date((dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days)


def parse_timestamp(text: str) -> Timestamp:
    """``2026-01-31 12:00:00.5``, with ``Z``, ``+01:00`` or ``Europe/Berlin`` behind it, or without.

    Raises `ValueError`, or `KeyError` for an unknown zone.
    """
    text = text.strip(_SPACES)
    match = _MOMENT.fullmatch(text)
    if match is None or (match["zone"] and not match["time"]):
        raise ValueError("a time is written 2026-01-31 12:00:00")
    moment = dt.datetime.fromisoformat(match["date"] + (match["time"] or "") + (match["offset"] or ""))
    if match["name"]:
        moment = moment.replace(tzinfo=ZoneInfo(match["name"]))
    has_zone = moment.tzinfo is not None
    wall = moment.astimezone(dt.UTC).replace(tzinfo=None) if has_zone else moment
    return Timestamp((wall - _EPOCH) // dt.timedelta(microseconds=1), has_zone)


def _token(match: re.Match[str]) -> Token:
    text = match[0].strip()
    if match["number"]:
        return Literal(text, _number(text, (match["suffix"] or "").upper()))
    if match["string"]:
        return Literal(text, _unescaped(text[1:-1]))
    if match["bytes"]:
        digits = text[2:-1]
        if _HEX.fullmatch(digits) is None:
            raise InvalidPredicateError(f"where: {text} is not hexadecimal")
        return Literal(text, bytes.fromhex("0" * (len(digits) % 2) + digits))
    if match["op"]:
        return Word({"==": "=", "!=": "<>"}.get(text, text))
    upper = text.upper()
    if match["name"] and upper in _KEYWORDS:
        constants = {"TRUE": True, "FALSE": False, "NULL": None}
        return Literal(upper, constants[upper]) if upper in constants else Word(upper)
    parts = tuple(quoted.replace("``", "`") or plain for quoted, plain in _NAME_PART.findall(text))
    return Name(parts)


def _number(text: str, suffix: str) -> int | float | Decimal:
    digits = text[: len(text) - len(suffix)]
    has_exponent = "e" in digits.lower()
    if suffix in ("D", "F") or (has_exponent and not suffix):
        return _double(text, digits, is_float=suffix == "F")
    if has_exponent or (suffix in ("L", "S", "Y") and not digits.isdigit()):
        raise InvalidPredicateError(f"where: {text} is no {'decimal' if suffix == 'BD' else 'whole number'}")
    if max(len(digits.replace(".", "").lstrip("0")), len(digits.partition(".")[2])) > _MOST_DIGITS:
        raise InvalidPredicateError(f"where: {text[:50]} has more than {_MOST_DIGITS} digits")
    return int(digits) if digits.isdigit() and suffix != "BD" else Decimal(digits)


def _double(text: str, digits: str, *, is_float: bool) -> float:
    value, most = float(digits), _LARGEST_FLOAT if is_float else _LARGEST_DOUBLE
    if math.isinf(value) or Decimal(digits) > most:
        raise InvalidPredicateError(f"where: {text} is larger than any {'float' if is_float else 'double'}")
    return float(struct.unpack("<f", struct.pack("<f", value))[0]) if is_float else value


def _unescaped(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        what = match[1]
        if len(what) == 1:
            return _ESCAPES.get(what, what)
        code = int(what[1:], 16) if what[0] in "uU" else int(what, 8)
        if code > sys.maxunicode:
            raise InvalidPredicateError(f"where: \\{what} is no character")
        return chr(code)

    return _ESCAPE.sub(replace, text)


def _typed(before: Token, literal: Literal) -> Literal | None:
    """``DATE '…'`` and the like as one literal; None: what stands before is no type."""
    kind = before.parts[0].upper() if isinstance(before, Name) and len(before.parts) == 1 else ""
    if kind not in {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}:
        return None
    text = f"{kind} {literal.text}"
    assert isinstance(literal.value, str)
    try:
        value = parse_date(literal.value) if kind == "DATE" else parse_timestamp(literal.value)
    except (ValueError, KeyError, OverflowError) as error:
        raise InvalidPredicateError(f"where: {text}: {error}") from None
    if isinstance(value, Timestamp) and value.has_zone == (kind == "TIMESTAMP_NTZ"):
        what = "has no time zone" if kind == "TIMESTAMP_NTZ" else "needs a time zone ('2026-01-31 12:00:00Z')"
        raise InvalidPredicateError(f"where: {text}: {kind} {what}")
    return Literal(text, value)
