"""Columns as JSON, and JSON as values for `Producer.send`: one mapping per Arrow type, the same in both directions.

| a column of               | in JSON                                                                                  |
|---------------------------|------------------------------------------------------------------------------------------|
| boolean, integers, string | true and false, a number, text                                                           |
| float, double             | a number; ``"NaN"``, ``"Infinity"``, ``"-Infinity"``                                     |
| decimal                   | text, ``"12.50"``; a number is accepted, too                                             |
| binary                    | text if the bytes are UTF-8, else ``{"base64": "/w=="}``                                 |
| date                      | ``"2026-01-31"``; years beyond four digits with a sign, ``"+12026-01-31"``               |
| timestamp                 | ``"2026-01-31T12:00:00.000001Z"``; any offset is accepted                                |
| timestamp_ntz             | the same without an offset                                                               |
| time                      | ``"12:00:00.000000001"``, up to ``"23:59:59.999999999"``                                 |
| duration                  | ISO 8601 in seconds, ``"PT90.5S"``, ``"-PT0.000001S"``; days, hours, minutes accepted    |
| array                     | a list                                                                                   |
| map                       | a list of pairs, ``[["k", 1]]``; an object is accepted, too, if keys are text            |
| struct                    | an object                                                                                |
| void, and any null        | null                                                                                     |

Rule: no value is lost or changed in either direction. Times are integers throughout, because Python's own types have
fewer years. Only text is parsed here; the type of a value is checked when it is sent. The schema tells text from bytes,
so a string that looks like base64 stays a string.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.schema.validity import TIMES_ALLOWED, time_text

Parse = Callable[[Any], Any]

_DATE = r"(?P<year>[+-]\d{4,}|\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?"
_OFFSET = r"(?P<zone>[Zz]|(?P<sign>[+-])(?P<zone_hour>\d\d)(?::?(?P<zone_minute>\d\d))?)?"
_DATE_TEXT = re.compile(_DATE, re.ASCII)
_TIMESTAMP_TEXT = re.compile(rf"{_DATE}[Tt ]{_CLOCK}{_OFFSET}", re.ASCII)
_TIME_TEXT = re.compile(_CLOCK, re.ASCII)
_DURATION_TEXT = re.compile(
    r"(?P<minus>-)?P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<second>\d+)(?:\.(?P<fraction>\d+))?S)?)?",
    re.ASCII,
)
_DECIMAL_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DAY_S = 86_400
_MOST_DIGITS = 4_000  # Python itself refuses more than 4,300


# --- JSON from columns --------------------------------------------------------------------------------------------


def to_json(array: pa.Array) -> list[Any]:
    """The column's values as objects for `json.dumps`."""
    kind = array.type
    if pt.is_floating(kind):
        return [_float_json(value) for value in array.to_pylist()]
    if pt.is_binary(kind):
        return [bytes_json(value) for value in array.to_pylist()]
    if pt.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    if pt.is_date32(kind):
        return _each(_date_text, array.view(pa.int32()))
    if pt.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        return _each(lambda value: timestamp_text(value) + zone, array.view(pa.int64()))
    if pt.is_time64(kind):
        return _each(time_text, array.view(pa.int64()))
    if pt.is_duration(kind):
        return _each(_duration_text, array.view(pa.int64()))
    if pt.is_map(kind):
        return _nested(
            array, lambda entries: [list(pair) for pair in zip(*map(to_json, entries.flatten()), strict=True)]
        )
    if pt.is_list(kind):
        return _nested(array, to_json)
    if pt.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = zip(*map(to_json, array.flatten()), strict=True)
        return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in rows])
    values: list[Any] = array.to_pylist()
    return values


def rows_json(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as JSON objects, by column name."""
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(to_json, batch.columns), strict=True)]


def bytes_json(value: bytes | None) -> str | dict[str, str] | None:
    """Text if it is UTF-8, else ``{"base64": …}``."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _each(text: Callable[[int], str], array: pa.Array) -> list[str | None]:
    return [None if value is None else text(value) for value in array.to_pylist()]


def _float_json(value: float | None) -> float | str | None:
    if value is None or value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _nested(array: pa.Array, convert: Callable[[pa.Array], list[Any]]) -> list[Any]:
    if not len(array):
        return []
    offsets = array.offsets.to_pylist()
    values = convert(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    rows = [values[start - offsets[0] : end - offsets[0]] for start, end in itertools.pairwise(offsets)]
    return _with_nulls(array, rows)


def _with_nulls(array: pa.Array, rows: list[Any]) -> list[Any]:
    if not array.null_count:
        return rows
    return [row if is_valid else None for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _date_text(days: int) -> str:
    # For any year: Howard Hinnant's civil_from_days, with eras of 400 years that begin on 1 March.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04d}-{month:02d}-{day:02d}" if 0 <= year <= 9999 else f"{year:+05d}-{month:02d}-{day:02d}"


def _fraction(value: int, digits: int) -> str:
    return f".{value:0{digits}d}".rstrip("0") if value else ""


def _clock_text(seconds: int, fraction: str) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def timestamp_text(microseconds: int) -> str:
    """A timestamp of any year, without a zone."""
    seconds, rest = divmod(microseconds, 1_000_000)
    days, second_of_day = divmod(seconds, _DAY_S)
    return f"{_date_text(days)}T{_clock_text(second_of_day, _fraction(rest, 6))}"


def _duration_text(microseconds: int) -> str:
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    return f"{'-' if microseconds < 0 else ''}PT{seconds}{_fraction(rest, 6)}S"


# --- values from JSON ---------------------------------------------------------------------------------------------


def load_json(text: bytes) -> Any:
    """Parses ``text`` (UTF-8). Numbers with a point become `Decimal`. Raises `ValueError`, also if an object has a name
    twice, because one of the two values would be lost."""
    try:
        return json.loads(text.decode(), parse_float=_number, parse_int=_whole_number, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"the number {text[:40]} is out of range") from None


def _whole_number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text.lstrip('-')):,} digits, more than any column takes")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r} occurs twice")
    return made


def row_parser(schema: pa.Schema) -> Parse:
    """Returns a function that turns a JSON object of a topic's columns into a row for `Producer.send`. A value of the
    wrong shape is left unchanged, and `send` refuses it by name. The function raises `ValueError`, naming the column,
    for text that is not a value of the column's type."""
    parsers = {field.name: _parser(field.type, field.name) for field in schema}
    return lambda row: {name: _parsed(parsers.get(name), value) for name, value in row.items()}


def parse_bytes(value: Any, what: str) -> bytes | None:
    """Turns text, ``{"base64": …}`` or null into bytes. Raises `ValueError`."""
    parsed = None if value is None else _bytes(value, what)
    if parsed is not None and not isinstance(parsed, bytes):
        raise ValueError(f'{what} must be text or {{"base64": "…"}}, not {json.dumps(value, default=str)[:80]}')
    return parsed


def parse_timestamp_ms(value: Any) -> int:
    """Parses a record's timestamp: ms, or text as in a timestamp column. Raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(
            f"timestamp must be milliseconds since 1970 or ISO 8601 text, not {json.dumps(value, default=str)[:80]}"
        )
    microseconds = _timestamp(value, "timestamp", is_instant=True)
    if microseconds % 1000:
        raise ValueError(f"timestamp {value!r} is more precise than a millisecond")
    return microseconds // 1000


def _parsed(parse: Parse | None, value: Any) -> Any:
    return value if parse is None or value is None else parse(value)


def _parser(kind: Any, path: str) -> Parse:
    """A parser of values that are not null."""
    if pt.is_floating(kind):
        return lambda value: _float(value, path)
    if pt.is_binary(kind):
        return lambda value: _bytes(value, path)
    if pt.is_decimal(kind):
        return lambda value: _decimal(value, path)
    if pt.is_date32(kind):
        return lambda value: _date(_text(value, kind, path), path)
    if pt.is_timestamp(kind):
        return lambda value: _timestamp(_text(value, kind, path), path, is_instant=kind.tz is not None)
    if pt.is_time64(kind):
        return lambda value: _time(_text(value, kind, path), path)
    if pt.is_duration(kind):
        return lambda value: _duration(_text(value, kind, path), path)
    if pt.is_map(kind):
        return _map_parser(_parser(kind.key_type, f"{path}.key"), _parser(kind.item_type, f"{path}.value"))
    if pt.is_list(kind):
        element = _parser(kind.value_type, f"{path}.element")
        return lambda value: [_parsed(element, each) for each in value] if isinstance(value, list) else value
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        parsers = {field.name: _parser(field.type, f"{path}.{field.name}") for field in fields}

        def struct(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            return {name: _parsed(parsers.get(name), each) for name, each in value.items()}

        return struct
    return lambda value: value


def _map_parser(key: Parse, item: Parse) -> Parse:
    def parse(value: Any) -> Any:
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list) or any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
            return value
        return [(_parsed(key, k), _parsed(item, v)) for k, v in pairs]

    return parse


def _text(value: Any, kind: object, path: str) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"column {path!r} is {kind} and needs text in ISO 8601, not {json.dumps(value, default=str)[:80]}"
        )
    return value


def _float(value: Any, path: str) -> Any:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, Decimal):
        number = float(value)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"column {path!r}: {value} is out of range")
        return number
    return value


def _bytes(value: Any, path: str) -> Any:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{path!r}: {value!r:.80} is not Unicode text") from None
    if isinstance(value, Mapping) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:
            raise ValueError(f"{path!r}: {value['base64']!r:.80} is not base64: {error}") from None
    return value


def _decimal(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    if not _DECIMAL_TEXT.fullmatch(value):  # Python also accepts spaces, underscores and other digits
        raise ValueError(f"column {path!r}: {value!r:.80} is not a number")
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError(f"column {path!r}: {value!r:.80} is not a number") from None


def _match(pattern: re.Pattern[str], text: str, path: str, example: str) -> dict[str, str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"column {path!r}: {text!r:.80} must have the form {example!r}")
    return {name: value or "" for name, value in found.groupdict().items()}


def _date(text: str, path: str, parts: Mapping[str, str] | None = None) -> int:
    parts = parts or _match(_DATE_TEXT, text, path, "2026-01-31")
    year, month, day = int(parts["year"]), int(parts["month"]), int(parts["day"])
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
    if not 1 <= month <= 12 or day < 1 or not _date_text(days).endswith(f"-{month:02d}-{day:02d}"):
        raise ValueError(f"column {path!r}: {text!r:.80} is not a date")
    return days


def _clock(parts: Mapping[str, str], text: str, path: str, digits: int) -> int:
    """The time of day, in units with ``digits`` digits after the second."""
    minute, second = int(parts["minute"]), int(parts["second"] or 0)
    if minute > 59 or second > 59:
        raise ValueError(f"column {path!r}: {text!r:.80} is not a time")
    seconds = (int(parts["hour"]) * 60 + minute) * 60 + second
    return int(seconds * 10**digits + _units(parts["fraction"], text, path, digits))


def _units(fraction: str, text: str, path: str, digits: int) -> int:
    if fraction[digits:].strip("0"):
        raise ValueError(f"column {path!r}: {text!r:.80} has more than {digits} digits after the second")
    return int(fraction[:digits].ljust(digits, "0"))


def _timestamp(text: str, path: str, *, is_instant: bool) -> int:
    parts = _match(_TIMESTAMP_TEXT, text, path, "2026-01-31T12:00:00" + ("Z" if is_instant else ""))
    if is_instant and not parts["zone"]:
        raise ValueError(f"column {path!r} needs a time zone; {text:.80} has none: add Z, or an offset like +02:00")
    if parts["zone"] and not is_instant:
        raise ValueError(f"column {path!r} takes no time zone; {text:.80} has one")
    if int(parts["hour"]) > 23:
        raise ValueError(f"column {path!r}: {text!r:.80} is not a time")
    if int(parts["zone_hour"] or 0) > 23 or int(parts["zone_minute"] or 0) > 59:
        raise ValueError(f"column {path!r}: {text!r:.80} has an impossible offset")
    offset_minutes = 60 * int(parts["zone_hour"] or 0) + int(parts["zone_minute"] or 0)
    offset_s = (-60 if parts["sign"] == "-" else 60) * offset_minutes
    return (_date(text, path, parts) * _DAY_S - offset_s) * 1_000_000 + _clock(parts, text, path, 6)


def _time(text: str, path: str) -> int:
    parts = _match(_TIME_TEXT, text, path, "12:00:00.000000001")
    if int(parts["hour"]) > 23:
        raise ValueError(f"column {path!r}: {text!r:.80} is not a time: {TIMES_ALLOWED}")
    return _clock(parts, text, path, 9)


def _duration(text: str, path: str) -> int:
    parts = _match(_DURATION_TEXT, text, path, "PT90.5S")
    days, hours, minutes, seconds = (int(parts[name] or 0) for name in ("days", "hours", "minutes", "second"))
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return (whole * 1_000_000 + _units(parts["fraction"], text, path, 6)) * (-1 if parts["minus"] else 1)
