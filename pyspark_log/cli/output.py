"""How results are shown: `-o table|wide|json|jsonl|yaml|name`.

Rule: a result is a list of rows (mappings with text keys) and columns, which say what a table shows. The formats for
programs (json, jsonl, yaml) show every key, whatever the columns. Only results go through here, and only to standard
output.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class OutputFormat(StrEnum):
    """The formats. ``wide``: a table with every column; ``name``: names only."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: its key, its heading, and whether only `wide` shows it."""

    key: str
    heading: str
    wide_only: bool = False


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    form: OutputFormat | None,
    *,
    name: str,
    one: bool = False,
) -> None:
    """Prints rows. ``name``: the key that `-o name` shows. ``one``: json and yaml show the only row, not a list."""
    if form is OutputFormat.JSON:
        _print(json.dumps(plain(rows[0] if one else list(rows)), indent=2, ensure_ascii=False))
    elif form is OutputFormat.JSONL:
        for row in rows:
            _print(json_line(row))
    elif form is OutputFormat.YAML:
        import yaml

        data = plain(rows[0] if one else list(rows))
        _print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip("\n"))
    elif form is OutputFormat.NAME:
        for row in rows:
            _print(str(row[name]))
    else:
        shown = [column for column in columns if form is OutputFormat.WIDE or not column.wide_only]
        print_table([column.heading for column in shown], [[row.get(column.key) for column in shown] for row in rows])


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints columns separated by two spaces, numbers right-aligned, without a frame: for eyes and for `awk`.

    Not a `rich.table`: that would change piped output (it expands tabs, drops control characters, and cuts or wraps at
    a width), and needs seconds for the 10,000 rows that `consume -o table` may have.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [
        bool(cells) and all(_is_number(row[index]) or row[index] == "-" for row in cells)
        for index in range(len(headings))
    ]
    widths = [max([len(heading), *(len(row[index]) for row in cells)]) for index, heading in enumerate(headings)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ).rstrip()

    _print(_bold(line(headings)))
    for row in cells:
        _print(line(row))


def json_line(row: Mapping[str, Any]) -> str:
    """One row as one line of JSON."""
    return json_text(plain(row))


def json_text(value: Any) -> str:
    """A plain value (see `plain`) as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """``value`` made of types that JSON and YAML have. Bytes: text if they are UTF-8, else ``{"base64": …}``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID | datetime.timedelta | os.PathLike):
        return str(value)
    if isinstance(value, StrEnum):
        return value.value
    return value


def write_bytes(data: bytes) -> None:
    """Writes bytes to standard output."""
    sys.stdout.buffer.write(data)


def prepare_streams() -> None:
    """Makes standard output UTF-8 in any locale, so that data never depends on it. What UTF-8 cannot express (a lone
    surrogate) is escaped. A stream that was closed before the start fails only when it is used; standard error never
    does (see `_Messages`)."""
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number, which no socket must get
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor, open as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    for stream in (sys.stdin, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.flush()
        messages = io.BufferedWriter(_Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(messages, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _Messages(io.FileIO):
    """Standard error: what cannot be written (a full disk, a pipe without a reader) is dropped. Whether a command
    succeeds does not depend on whether its messages can be read."""

    def write(self, data: Any, /) -> int:
        with suppress(OSError):
            if written := super().write(data):
                return written
        return memoryview(data).nbytes


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2,000 records``: for messages."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    return " ".join(str(plain(value)).split("\n"))


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
