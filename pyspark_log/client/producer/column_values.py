"""Python values checked against a column's type, and converted to what Arrow stores without loss.

Rule: a value is stored exactly as it was given, or refused by its path (``s.zz``, ``tags.element``, ``m.value.a``).
Left to itself, Arrow would cut a float in a list of integers, drop unknown fields of a struct, a time's zone and a
datetime's time of day, and take a naive datetime for UTC. Only floats are rounded to their own width, as always.

| a column of                | takes                                                                                |
|----------------------------|--------------------------------------------------------------------------------------|
| boolean                    | bool                                                                                 |
| integers                   | integers (also NumPy's) in range; no bool, no float                                  |
| float, double              | floats; integers that it can represent exactly                                       |
| string; binary             | str that is UTF-8; bytes, bytearray, memoryview                                      |
| decimal(p,s)               | Decimal and integers without more digits than it has                                 |
| date                       | date (no datetime), datetime64 of whole days; int: days since 1970                   |
| timestamp                  | aware datetime; int: µs since 1970                                                   |
| timestamp_ntz              | naive datetime, datetime64 of whole µs; int: µs                                      |
| time                       | time without a zone; int: ns since midnight, less than a day                         |
| duration                   | timedelta, timedelta64 of whole µs; int: µs                                          |
| array                      | any iterable but text, bytes and mappings                                            |
| map                        | a mapping, or an iterable of pairs                                                   |
| struct                     | a mapping of its fields, a named tuple or Row, a tuple with a value for each         |
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.schema.validity import DAY_NS, TIMES_ALLOWED
from broker_runtime.contract.suggestion import suggestion

Check = Callable[[Any], Any]
"""Takes a value, returns what is passed to Arrow. Raises `SchemaMismatchError`, which names the path."""

_FLOAT32_LIMIT = float(2**128 - 2**103)  # a double of this size or more becomes infinite
_NO_VALUE = object()
_UTC = datetime.UTC
_EPOCH_DATE = datetime.date(1970, 1, 1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_EPOCH_NAIVE = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_INT64 = (-(1 << 63), 1 << 63)
_INT32 = (-(1 << 31), 1 << 31)


def value_check(field: pa.Field, path: str) -> Check:
    """The check of ``field``'s values, None included. ``path`` names it in errors."""
    check = _check_of(field.type, path)
    is_required = not field.nullable

    def check_or_null(value: Any) -> Any:
        if value is None:
            if is_required:
                raise SchemaMismatchError(f"column {path!r} allows no nulls and is missing or None")
            return None
        return check(value)

    return check_or_null


def column_check(field: pa.Field, path: str) -> tuple[type | None, object, Check]:
    """`value_check` for a caller that saves calls: a value of exactly the returned type is taken as it is, and so is
    the returned null; all others are passed to the check."""
    kind = field.type
    kept = float if pt.is_float64(kind) else bytes if pt.is_binary(kind) else bool if pt.is_boolean(kind) else None
    if field.nullable:
        return kept, None, _check_of(kind, path)
    return kept, _NO_VALUE, value_check(field, path)


def _check_of(kind: Any, path: str) -> Check:
    for is_kind, make in _MAKERS:
        if is_kind(kind):
            return make(kind, path)
    raise SchemaMismatchError(f"column {path!r} is {kind}, which no topic has")


def _refuse(path: str, kind: object, value: object, why: str = "") -> NoReturn:
    raise SchemaMismatchError(f"column {path!r} is {kind}, not {type(value).__name__} {value!r:.80}{why}")


def _boolean(kind: Any, path: str) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            _refuse(path, kind, value)
        return bool(value)

    return check


def _integer(kind: Any, path: str) -> Check:
    bits = kind.bit_width
    low, high = -(1 << bits - 1), 1 << bits - 1

    def check(value: Any) -> int:
        number = value if type(value) is int else _index(value)
        if number is None:
            _refuse(path, kind, value)
        if not low <= number < high:
            _refuse(path, kind, value, ": out of range")
        return int(number)

    return check


def _index(value: Any) -> int | None:
    """``value`` as an integer; None if it is not one. A bool is not."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _float(kind: Any, path: str) -> Check:
    is_single = pt.is_float32(kind)
    exact = 1 << (24 if is_single else 53)

    def check(value: Any) -> float:
        if isinstance(value, (float, np.floating)):
            number = float(value)
            if is_single and abs(number) >= _FLOAT32_LIMIT and abs(number) != float("inf"):
                _refuse(path, kind, value, ": out of range")
            return number
        whole = _index(value)
        if whole is None:
            _refuse(path, kind, value)
        if abs(whole) > exact and (abs(whole) >= 1 << 127 or not _is_exact(whole, is_single=is_single)):
            _refuse(path, kind, value, ": it cannot be represented exactly; give a float")
        return float(whole)

    return check


def _is_exact(whole: int, *, is_single: bool) -> bool:
    number = float(np.float32(whole)) if is_single else float(whole)
    return int(number) == whole


def _string(kind: Any, path: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            _refuse(path, kind, value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                _refuse(path, kind, value, f": {error.reason}")
        return value

    return check


def _binary(kind: Any, path: str) -> Check:
    def check(value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if not isinstance(value, (bytes, bytearray, memoryview)):
            _refuse(path, kind, value)
        return bytes(value)

    return check


def _decimal(kind: Any, path: str) -> Check:
    precision, scale = kind.precision, kind.scale

    def check(value: Any) -> Decimal:
        whole = None if isinstance(value, Decimal) else _index(value)
        if whole is None and not isinstance(value, Decimal):
            _refuse(path, kind, value)
        number = value if whole is None else Decimal(whole)
        if not number.is_finite():
            _refuse(path, kind, value)
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)  # it is a letter if the number is not finite
        text = "".join(map(str, digits)).lstrip("0")
        zeros = len(text) - len(text.rstrip("0"))
        after_point = -exponent - zeros
        for has, room, where in (
            (after_point, scale, "after"),
            (len(text) + exponent, precision - scale, "before"),
        ):
            if text and has > room:
                had = f"{has:,} digit{'' if has == 1 else 's'} {where} the point"
                raise SchemaMismatchError(
                    f"column {path!r} takes decimal({precision},{scale}); {number!s:.80} has {had}"
                )
        if not text:
            return Decimal(0)
        if len(text) <= precision:
            return number
        # Arrow moves the point of all digits, and beyond 38 of them it gets another number. (No arithmetic: it rounds.)
        return Decimal((sign, digits[:-zeros], exponent + zeros))

    return check


def _whole(value: np.datetime64 | np.timedelta64, unit: str, name: str) -> int | None:
    """The number of ``unit`` since 1970; None if it is not whole, out of range, or not a time."""
    if np.isnat(value) or (np.datetime_data(value)[0] in ("Y", "M", "generic") and name == "timedelta64"):
        return None
    try:
        converted = value.astype(f"{name}[{unit}]")
        # Compared in its own unit: in the finer one both may have wrapped around, which numpy before 2.5 does.
        is_whole = converted.astype(value.dtype) == value
    except OverflowError:
        return None
    return int(converted.astype(np.int64)) if is_whole else None


def _counted(
    value: Any, kind: object, path: str, limits: tuple[int, int], taken: str, why: str = ": out of range"
) -> int:
    """A number of units, as Arrow itself takes it."""
    number = _index(value)
    if number is None:
        _refuse(path, kind, value, f"; it takes {taken}")
    if not limits[0] <= number < limits[1]:
        _refuse(path, kind, value, why)
    return number


def _date(kind: Any, path: str) -> Check:
    taken = "a date"

    def check(value: Any) -> int:
        if isinstance(value, datetime.datetime):
            _refuse(path, kind, value, ", which has a time of day; take its date()")
        if isinstance(value, datetime.date):
            return (value - _EPOCH_DATE).days
        if isinstance(value, np.datetime64):
            days = _whole(value, "D", "datetime64")
            if days is None:
                _refuse(path, kind, value, f"; it takes {taken}")
            value = days
        return _counted(value, kind, path, _INT32, taken)

    return check


def _timestamp(kind: Any, path: str) -> Check:
    is_instant = kind.tz is not None
    taken = "an aware datetime" if is_instant else "a datetime without a zone"

    def check(value: Any) -> int:
        if isinstance(value, datetime.datetime):
            if value != value or getattr(value, "nanosecond", None):  # pandas' NaT, and its nanoseconds
                _refuse(path, kind, value, ", which is no whole number of µs")
            is_aware = value.tzinfo is _UTC or value.utcoffset() is not None
            if is_instant and not is_aware:
                raise SchemaMismatchError(
                    f"column {path!r} needs a time zone; {value.isoformat()} has none. Give an aware datetime, for "
                    "example datetime.now(timezone.utc)"
                )
            if is_aware and not is_instant:
                raise SchemaMismatchError(f"column {path!r} takes no time zone; {value.isoformat()} has one")
            return (value - (_EPOCH if is_instant else _EPOCH_NAIVE)) // _MICROSECOND
        if isinstance(value, np.datetime64):
            microseconds = None if is_instant else _whole(value, "us", "datetime64")
            if microseconds is None:
                _refuse(path, kind, value, f"; it takes {taken}")
            value = microseconds
        return _counted(value, kind, path, _INT64, taken)

    return check


def _time(kind: Any, path: str) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, datetime.time):
            if value.tzinfo is not None:
                _refuse(path, kind, value, "; take its time zone away")
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return (seconds * 1_000_000 + value.microsecond) * 1000
        return _counted(value, kind, path, (0, DAY_NS), "a time", f": it takes {TIMES_ALLOWED}, 0 to {DAY_NS - 1} ns")

    return check


def _duration(kind: Any, path: str) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, datetime.timedelta):
            if getattr(value, "nanoseconds", 0):  # pandas'
                _refuse(path, kind, value, ", which is no whole number of µs")
            value = value // _MICROSECOND
        elif isinstance(value, np.timedelta64):
            microseconds = _whole(value, "us", "timedelta64")
            if microseconds is None:
                _refuse(path, kind, value, ", which is no whole number of µs")
            value = microseconds
        return _counted(value, kind, path, _INT64, "a timedelta")

    return check


def _null(kind: Any, path: str) -> Check:
    return lambda value: _refuse(path, kind, value)


def _is_collection(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, memoryview))


def _list(kind: Any, path: str) -> Check:
    element = value_check(kind.value_field, f"{path}.element")

    def check(value: Any) -> list[Any]:
        if not _is_collection(value) or isinstance(value, Mapping):
            _refuse(path, kind, value)
        return [element(each) for each in value]

    return check


def _map(kind: Any, path: str) -> Check:
    key = value_check(kind.key_field, f"{path}.key")
    item = value_check(kind.item_field, f"{path}.value")

    def check(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            return [(key(k), item(v)) for k, v in value.items()]
        if not _is_collection(value):
            _refuse(path, kind, value)
        pairs = list(value)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                _refuse(path, kind, value, "; it takes a mapping, or pairs of key and value")
        return [(key(k), item(v)) for k, v in pairs]

    return check


def _struct(kind: Any, path: str) -> Check:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in fields]
    known = frozenset(names)
    checks = [(field.name, value_check(field, f"{path}.{field.name}")) for field in fields]

    def check(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            as_mapping = getattr(value, "asDict", None) or getattr(value, "_asdict", None)  # Spark's Row; named tuples
            if as_mapping is not None:
                value = as_mapping()
            elif len(value) == len(names):
                value = dict(zip(names, value, strict=True))
        if not isinstance(value, Mapping):
            _refuse(path, kind, value, f"; it takes a mapping of {', '.join(names)}")
        if not known.issuperset(value):
            unknown = str(next(name for name in value if name not in known))
            raise SchemaMismatchError(f"there is no field {f'{path}.{unknown}'!r}; {suggestion(unknown, names)}")
        return {name: check_field(value.get(name)) for name, check_field in checks}

    return check


_MAKERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, str], Check]], ...] = (
    (pt.is_boolean, _boolean),
    (pt.is_integer, _integer),
    (pt.is_floating, _float),
    (pt.is_string, _string),
    (pt.is_binary, _binary),
    (pt.is_decimal, _decimal),
    (pt.is_date32, _date),
    (pt.is_timestamp, _timestamp),
    (pt.is_time64, _time),
    (pt.is_duration, _duration),
    (pt.is_null, _null),
    (pt.is_map, _map),
    (pt.is_list, _list),
    (pt.is_struct, _struct),
)
