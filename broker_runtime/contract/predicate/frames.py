"""Whether any row of a frame can match a predicate, by the frame's header and statistics alone.

A predicate travels to brokers as steps in postfix order (`frame_test`): tests of a column, by its id, and then what
joins them. Each step is asked whether it can be true for some row, and whether it can be false for some. (A row for
which it is unknown never matches, nor if it is negated.) What is not known leaves both open, so a frame without
statistics, or with bounds that say nothing, is kept. Rule: never a frame too few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec

from broker_runtime.contract.errors import CorruptRecordError, InvalidRequestError
from broker_runtime.contract.frame import Directory, FrameHeader
from broker_runtime.contract.predicate.tree import And, Compare, Constant, IsNull, Known, Node, Not, Op, Or, Predicate
from broker_runtime.contract.requests import Int32, Message
from broker_runtime.contract.statistics import ColumnStatistics, Kind, Value, decode_value, encode_value, kind_of

MOST_STEPS: Final = 500
"""Of a predicate that a broker judges frames by. Of a longer one every frame is sent."""
MOST_VALUE_BYTES: Final = 256
PARTITION_ID, OFFSET_ID, TIMESTAMP_ID = -1, -2, -3
"""In place of a column's id: what every frame's header says."""
_METADATA_KINDS: Final = {
    PARTITION_ID: (Kind.INTEGER, 0),
    OFFSET_ID: (Kind.INTEGER, 0),
    TIMESTAMP_ID: (Kind.TIMESTAMP, -6),
}
METADATA_IDS: Final[Mapping[str, int]] = {
    "_metadata.partition": PARTITION_ID,
    "_metadata.offset": OFFSET_ID,
    "_metadata.timestamp": TIMESTAMP_ID,
}
_OF_A_COLUMN: Final = frozenset({"null", "known", "compare", "prefix"})
_MOST_ALTERNATIVES: Final = 100  # values of one column; of more, the smallest and the largest are sent


class Step(Message, frozen=True, kw_only=True):
    """One step. ``any``: nothing is known. ``compare``: with ``value`` (`statistics.encode_value`) of ``kind`` and
    ``scale``. ``known``: ``answer`` where the column is not NULL. ``and``, ``or``: of the last ``parts`` results."""

    what: Literal["any", "constant", "null", "known", "compare", "prefix", "and", "or", "not"]
    column: Int32 = 0
    op: Op = "="
    kind: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    scale: Annotated[int, msgspec.Meta(ge=-128, le=127)] = 0
    value: Annotated[bytes, msgspec.Meta(max_length=MOST_VALUE_BYTES)] = b""
    answer: bool | None = None
    parts: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)] = 1


Steps: TypeAlias = Annotated[tuple[Step, ...], msgspec.Meta(min_length=1, max_length=MOST_STEPS)]
_ANY: Final = Step(what="any")


def frame_test(predicate: Predicate, column_id: Callable[[str], int | None]) -> tuple[Step, ...]:
    """The predicate for brokers. ``column_id``: of a column by its name, or of `METADATA_IDS`; None: no frame says
    anything about it."""
    steps = tuple(_steps(predicate.root, column_id))
    return steps if len(steps) <= MOST_STEPS else (_ANY,)


def _steps(node: Node, column_id: Callable[[str], int | None]) -> Iterator[Step]:
    if isinstance(node, And | Or):
        parts = _fewer(node)
        for part in parts:
            yield from (_ANY,) if part is None else _steps(part, column_id)
        yield Step(what="or" if len(parts) == len(node.parts) and isinstance(node, Or) else "and", parts=len(parts))
    elif isinstance(node, Not):
        yield from _steps(node.part, column_id)
        yield Step(what="not")
    elif isinstance(node, Constant):
        yield Step(what="constant", answer=node.answer)
    elif (column := column_id(node.column.name)) is None:
        yield _ANY
    elif isinstance(node, IsNull):
        yield Step(what="null", column=column)
    elif isinstance(node, Known):
        yield Step(what="known", column=column, answer=node.answer)
    else:
        kind, scale = kind_of(node.column.type)
        value = b"" if kind == Kind.NONE else encode_value(kind, node.value)
        if kind == Kind.NONE or len(value) > MOST_VALUE_BYTES:
            yield _ANY
        elif isinstance(node, Compare):
            yield Step(what="compare", column=column, op=node.op, kind=kind, scale=scale, value=value)
        else:
            yield Step(what="prefix", column=column, kind=kind, scale=scale, value=value)


def _fewer(node: And | Or) -> Sequence[Node | None]:
    """The parts; of many values of one column what all of them lie between, and None: more is not known."""
    parts = node.parts
    if isinstance(node, And) or len(parts) <= _MOST_ALTERNATIVES:
        return parts
    equal = [part for part in parts if isinstance(part, Compare) and part.op == "="]
    if len(equal) < len(parts) or len({part.column.name for part in equal}) > 1:
        return parts
    column, values = equal[0].column, [part.value for part in equal]
    return Compare(column, ">=", min(values)), Compare(column, "<=", max(values)), None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a column in a frame. ``least``, ``most``: None: not known; they need not be rows' values.

    ``has_nulls`` and ``has_others``: whether some row may be NULL, and whether some may not. ``has_nan``: whether some
    may be NaN, which the bounds do not include.
    """

    least: Value | None = None
    most: Value | None = None
    has_nulls: bool = True
    has_others: bool = True
    has_nan: bool = True


UNKNOWN_BOUNDS: Final = Bounds()
_ALL_NULL: Final = Bounds(has_others=False)


def bounds_of(known: ColumnStatistics, record_count: int) -> Bounds:
    """The statistics of a column in a frame of ``record_count`` rows, as bounds. Raises `CorruptRecordError`."""
    nulls = known.null_count
    return Bounds(
        least=None if known.minimum is None else decode_value(known.kind, known.minimum),
        most=None if known.maximum is None else decode_value(known.kind, known.maximum),
        has_nulls=nulls is None or nulls > 0,
        has_others=nulls is None or nulls < record_count,
        has_nan=known.kind == Kind.FLOAT and known.nan_count != 0,
    )


def common_bounds(one: Bounds, other: Bounds) -> Bounds:
    """What holds in both of two frames."""
    if not (one.has_others and other.has_others):
        some = one if one.has_others else other
        least, most = some.least, some.most
    else:
        least = None if one.least is None or other.least is None else min(one.least, other.least)
        most = None if one.most is None or other.most is None else max(one.most, other.most)
    return Bounds(
        least,
        most,
        has_nulls=one.has_nulls or other.has_nulls,
        has_others=one.has_others or other.has_others,
        has_nan=one.has_nan or other.has_nan,
    )


class _Answers(NamedTuple):
    """What a step can be for some row."""

    true: bool
    false: bool


_UNKNOWN = _Answers(True, True)
_NEVER = _Answers(False, False)


Key: TypeAlias = tuple[int, int, int]
"""What a step asks bounds of: a column's id, the kind and the scale of what it is compared with."""


class FrameTest:
    """The steps, checked, with their values decoded. Thread-safe."""

    def __init__(self, steps: Sequence[Step]) -> None:
        """Raises `InvalidRequestError` for steps that no predicate gives."""
        self._steps = [(step, _decoded(step), _key(step)) for step in steps]
        depth = 0
        for step in steps:
            kind = _METADATA_KINDS.get(step.column)
            if step.column < 0 and kind is None:
                raise InvalidRequestError(f"a predicate names column {step.column}, which no frame has")
            if kind is not None and step.what in ("compare", "prefix") and kind != (step.kind, step.scale):
                raise InvalidRequestError(f"a predicate compares column {step.column} with a value of kind {step.kind}")
            taken = step.parts if step.what in ("and", "or") else 1 if step.what == "not" else 0
            if taken > depth:
                raise InvalidRequestError(f"a predicate's step {step.what!r} joins {taken} results of {depth}")
            depth += 1 - taken
        if depth != 1:
            raise InvalidRequestError(f"a predicate's steps leave {depth} results instead of 1")
        self.keys = frozenset(_key(step) for step in steps if step.what in _OF_A_COLUMN)
        """What it looks at."""

    def may_match(self, bounds: Mapping[Key, Bounds]) -> bool:
        """Whether a row can match. ``bounds``: what is known (`bounds_in_frame`)."""
        results: list[_Answers] = []
        for step, value, key in self._steps:
            what = step.what
            if what == "and" or what == "or":
                parts = results[-step.parts :]
                del results[-step.parts :]
                join, opposite = (all, any) if what == "and" else (any, all)
                answers = _Answers(join(part.true for part in parts), opposite(part.false for part in parts))
            elif what == "not":
                part = results.pop()
                answers = _Answers(part.false, part.true)
            elif what == "constant":
                answers = _Answers(step.answer is True, step.answer is False)
            elif what == "any":
                answers = _UNKNOWN
            else:
                answers = _of_column(step, value, bounds.get(key, UNKNOWN_BOUNDS))
            results.append(answers)
        return results[0].true


def bounds_in_frame(
    keys: Collection[Key], header: FrameHeader, directory: Directory, partition: int
) -> dict[Key, Bounds]:
    """What header and directory say of each key; nothing where statistics are of another kind or cannot be read."""
    try:
        known = directory.statistics({column for column, _, _ in keys})
    except CorruptRecordError:
        return dict.fromkeys(keys, UNKNOWN_BOUNDS)
    found: dict[Key, Bounds] = {}
    for key in keys:
        column, kind, scale = key
        if column == PARTITION_ID:
            found[key] = Bounds(partition, partition, has_nulls=False)
        elif column == OFFSET_ID:
            found[key] = Bounds(header.base_offset, header.last_offset, has_nulls=False)
        elif column == TIMESTAMP_ID:
            least = header.append_time_ms if header.timestamp_type else header.base_timestamp_ms
            found[key] = Bounds(least * 1000, header.latest_timestamp_ms * 1000, has_nulls=False)
        elif column not in directory.columns:
            found[key] = _ALL_NULL
        else:
            bounds = bounds_of(known[column], header.record_count)
            is_comparable = (known[column].kind, known[column].scale) == (kind, scale)
            found[key] = bounds if is_comparable else replace(bounds, least=None, most=None)
    return found


def _key(step: Step) -> Key:
    if step.what in ("null", "known"):
        return step.column, 0, 0
    return step.column, step.kind, step.scale


@lru_cache(maxsize=32)  # each may have a third of a megabyte
def prepared(steps: tuple[Step, ...]) -> FrameTest:
    """The test of these steps: a consumer's fetches all have the same. Raises `InvalidRequestError`."""
    return FrameTest(steps)


def _decoded(step: Step) -> Value:
    if step.what not in ("compare", "prefix"):
        return 0
    try:
        kind = Kind(step.kind)
        if step.what == "prefix" and kind != Kind.STRING:
            raise CorruptRecordError("only strings have a beginning")
        return decode_value(kind, step.value)
    except (ValueError, CorruptRecordError) as error:
        raise InvalidRequestError(f"a predicate's value {step.value[:40]!r} of kind {step.kind}: {error}") from None


def _of_column(step: Step, value: Value, known: Bounds) -> _Answers:
    if step.what == "null":
        return _Answers(known.has_nulls, known.has_others)
    if not known.has_others:
        return _NEVER
    if step.what == "known":
        return _Answers(step.answer is True, step.answer is False)
    return _begins(value, known) if step.what == "prefix" else _compares(step.op, value, known)


def _begins(prefix: Value, known: Bounds) -> _Answers:
    least, most = known.least, known.most
    assert isinstance(prefix, bytes)
    is_before = isinstance(most, bytes) and most < prefix
    is_behind = isinstance(least, bytes) and least > prefix and not least.startswith(prefix)
    return _Answers(not (is_before or is_behind), True)


def _compares(op: Op, value: Value, known: Bounds) -> _Answers:
    if known.least is None or known.most is None:
        return _UNKNOWN
    low, high = _order(known.least, value), _order(known.most, value)
    if op == "=":
        true, false = low <= 0 <= high, not low == high == 0
    elif op == "<":
        true, false = low < 0, high >= 0
    elif op == "<=":
        true, false = low <= 0, high > 0
    elif op == ">":
        true, false = high > 0, low <= 0
    else:
        true, false = high >= 0, low < 0
    if known.has_nan and isinstance(value, float):  # NaN is larger than all numbers
        return _Answers(true or op in (">", ">="), false or op not in (">", ">="))
    return _Answers(true, false)


def _order(one: Value, other: Value) -> int:
    """Below 0: ``one`` is smaller; 0: they are equal."""
    return (one > other) - (one < other)  # type: ignore[operator]
