r"""``'%k\t%v\n'``: formats that turn records into text, and lines into records.

    %k key   %v value   %t topic   %p partition   %o offset   %T timestamp (ms)   %d the same as a date
    %h headers (name=value,…)   %{column} a column of a typed topic   %% a percent sign
    \n \t \r \0 \\ as in C

A missing key or value becomes empty text; bytes are written unchanged, those of the format included (as Python has
them in an argument: what is not UTF-8 as lone surrogates). The value of a typed record is its row as JSON.
For reading, %k, %v, %p and %T are allowed, each at most once, with text between any two. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.output import json_line, json_text

_TOKEN = re.compile(r"%(\{[^}]+\}|.)|\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_FIELDS = "kvtpoTdh"
_READABLE = "kvpT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The parts of a record that a format can show. ``row``: a typed record's columns as JSON (`json_values`);
    ``binary``: its binary columns as bytes."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]] = ()
    row: Mapping[str, Any] | None = None
    binary: Mapping[str, bytes | None] = field(default_factory=dict)


class RecordFormat:
    """A parsed format. Raises `OptionError` on an unknown ``%x`` or escape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parse(text)  # literal text, or a one-tuple with a field's name
        self.columns = [part[0][1:-1] for part in self._parts if isinstance(part, tuple) and part[0].startswith("{")]

    def show(self, record: Shown) -> bytes:
        """The record as UTF-8; bytes of keys and values that are not UTF-8 are kept."""
        return b"".join(
            part.encode(errors="surrogateescape") if isinstance(part, str) else _field(part[0], record)
            for part in self._parts
        )


class LineParser:
    """Parses lines by a format, whose last character, a newline, ends a record.

    Raises `OptionError` if the format cannot be read back.
    """

    def __init__(self, text: str) -> None:
        parts = _parse(text)
        if not parts or not isinstance(parts[-1], str) or not parts[-1].endswith("\n"):
            raise OptionError(f"-f {text!r}: must end with \\n, because each line is a record")
        parts[-1] = parts[-1][:-1]
        pattern, seen, after_field = "", set[str](), False
        for part in parts:
            if isinstance(part, str):
                pattern += re.escape(part)
                after_field = after_field and not part
                continue
            name = part[0]
            if name not in _READABLE:
                raise OptionError(f"-f {text!r}: %{name} cannot be used for reading; allowed are %k %v %p %T")
            if name in seen or after_field:
                raise OptionError(f"-f {text!r}: use each of %k %v %p %T at most once, with text between any two")
            seen.add(name)
            after_field = True
            pattern += rf"(?P<{name}>-?\d{{1,18}})" if name in "pT" else f"(?P<{name}>.*?)"
        if not seen & {"k", "v"}:
            raise OptionError(f"-f {text!r}: needs %k or %v")
        self._pattern = re.compile(pattern.encode(errors="surrogateescape") + rb"\Z", re.DOTALL)
        self._text = text

    def parse(self, line: bytes) -> Mapping[str, bytes]:
        """The fields of one line (without its newline), by letter. Raises `ValueError` if the line does not match."""
        match = self._pattern.match(line)
        if match is None:
            raise ValueError(f"does not match -f '{self._text}'")
        return {name: value for name, value in match.groupdict().items() if value is not None}


def _parse(text: str) -> list[str | tuple[str]]:
    parts: list[str | tuple[str]] = []
    literal, position = "", 0
    for match in _TOKEN.finditer(text):
        literal += text[position : match.start()]
        position = match.end()
        name, escape = match.groups()
        if escape is not None:
            if escape not in _ESCAPES:
                raise OptionError(f"-f {text!r}: unknown escape \\{escape}; allowed are \\n \\t \\r \\0 \\\\")
            literal += _ESCAPES[escape]
        elif name == "%":
            literal += "%"
        elif name in _FIELDS or name.endswith("}"):
            if literal:
                parts.append(literal)
                literal = ""
            parts.append((name,))
        else:
            raise OptionError(f"-f {text!r}: unknown field %{name}; allowed are %k %v %t %p %o %T %d %h %{{column}} %%")
    literal += text[position:]
    if literal:
        parts.append(literal)
    return parts


def _field(name: str, record: Shown) -> bytes:
    if name == "k":
        return _text(record.key)
    if name == "v":
        return json_line(record.row).encode() if record.row is not None else _text(record.value)
    if name == "d":
        return _date(record.timestamp_ms).encode()
    if name == "h":
        return b",".join(key.encode() + b"=" + _text(value) for key, value in record.headers)
    if name.startswith("{"):
        column = name[1:-1]
        return _text(record.binary[column] if column in record.binary else (record.row or {}).get(column))
    places = {"t": record.topic, "p": record.partition, "o": record.offset, "T": record.timestamp_ms}
    return str(places[name]).encode()


def _date(timestamp_ms: int) -> str:
    from pyspark_log.cli.records.json_values import timestamp_text

    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{timestamp_text(seconds * 1_000_000)}.{milliseconds:03d}+00:00"


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else json_text(value)
    return text.encode()
