"""`load`: topics as a DataFrame in one line, with a predicate as a Column of Spark.

Rule: faster, never wrong. What of the Column can be said in the words of the option ``where`` goes to the brokers; and
Spark applies the whole of it in any case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from broker_runtime.contract.errors import InvalidPredicateError, OptionError
from pyspark_log.client.reading.rows import METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COMPARISONS = {"=": "=", "==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>", "!=": "<>", "<>": "<>"}
_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load(
    spark: Any,
    *topics: str,
    where: Column | str | None = None,
    columns: Sequence[str] | None = None,
    streaming: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records of ``topics`` as a DataFrame, which is a stream with ``streaming``.

    ``where``: the option of that name, as text; or a Column of Spark (``F.col("delay") > 15``), of which the brokers
    are told what they understand, and which Spark applies as well. ``columns``: only these, in this order. ``options``:
    all others, as for ``spark.read.format("pylog")``; with them topics may be chosen as well.

    Raises as ``load()`` does, and `OptionError` for ``where``, ``columns`` or topics that are given twice.
    """
    given = dict(options or {})
    for name, value in {"where": where, "columns": columns, "subscribe": topics or None}.items():
        if value is not None and any(each.lower() == name for each in given):
            raise OptionError(f"{name} is given twice: as an argument and in options")
    if topics:
        given["subscribe"] = ",".join(topics)

    def frame_of(**more: str | None) -> DataFrame:
        reader = (spark.readStream if streaming else spark.read).format("pylog")
        for name, value in {**given, **{name: value for name, value in more.items() if value is not None}}.items():
            reader = reader.option(name, value)
        frame: DataFrame = reader.load()
        return frame

    chosen = None if columns is None else ",".join(columns)
    if where is None or isinstance(where, str):
        return frame_of(where=where, columns=chosen)
    rendered = _Rendered.of(where)
    if str(spark.conf.get("spark.sql.ansi.enabled")).lower() != "true":
        rendered.text = None  # then Spark compares whole numbers with floats in another way
    names = rendered.names
    is_hidden = any(parts[0].lower() == METADATA for parts in names) or not rendered.knows_names
    asked: dict[str, str | None] = {"includeMetadata": "true"} if is_hidden else {}
    if columns is not None and rendered.knows_names:
        own = [name for parts in names if (name := parts[0]).lower() != METADATA]
        if not any("," in name for name in (*columns, *own)):
            asked["columns"] = ",".join(dict.fromkeys([*columns, *own]))
    tries: list[dict[str, str | None]] = [{**asked, "where": rendered.text}, asked, {**asked, "columns": None}]
    for number, more in enumerate(tries):
        try:
            frame = frame_of(**more)
            break
        except PySparkException as error:
            # It compares what Spark converts and pylog does not; or a column's name has capitals in other places.
            if number == 2 or not any(code in str(error) for code in (InvalidPredicateError.code, OptionError.code)):
                raise
    frame = frame.where(where)
    if columns is not None:
        return frame.select(*("`" + name.replace("`", "``") + "`" for name in columns))
    had_metadata = any(name.lower() == "includemetadata" and value.lower() == "true" for name, value in given.items())
    return frame.drop(METADATA) if is_hidden and not had_metadata else frame


class _Rendered:
    """A Column as the text of a predicate; ``text`` None: it cannot be said. ``names``: of its columns, in parts."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.names: list[tuple[str, ...]] = []
        self.knows_names = True

    @classmethod
    def of(cls, column: Any) -> _Rendered:
        made = cls()
        node = column._jc.node() if hasattr(column, "_jc") else column._expr
        made.text = made._text(_Classic(node) if hasattr(column, "_jc") else _Connect(node))
        return made

    def _text(self, node: _Classic | _Connect) -> str | None:
        kind = node.kind
        if kind == "sql":
            self.knows_names = False
            return f"({node.sql})"
        if kind == "name":
            self.names.append(node.parts)
            return ".".join("`" + part.replace("`", "``") + "`" for part in node.parts)
        if kind == "value":
            return node.value
        if kind != "function":
            self.knows_names = False
            return None
        # All parts are looked at, so that all names are known.
        parts = [self._text(part) for part in node.arguments]
        if node.function.lower() == "startswith":
            beginning = node.arguments[1].text
            return None if beginning is None or parts[0] is None else f"({parts[0]} LIKE {_beginning(beginning)})"
        return None if any(part is None for part in parts) else _call(node.function, [part or "" for part in parts])


def _call(function: str, parts: list[str]) -> str | None:
    name = function.lower()
    if name in ("and", "or") and len(parts) == 2:
        return f"({parts[0]} {name.upper()} {parts[1]})"
    if name in ("not", "!") and len(parts) == 1:
        return f"(NOT {parts[0]})"
    if name in _COMPARISONS and len(parts) == 2:
        return f"({parts[0]} {_COMPARISONS[name]} {parts[1]})"
    if name == "in" and len(parts) > 1:
        return f"({parts[0]} IN ({', '.join(parts[1:])}))"
    if name in ("isnull", "isnotnull") and len(parts) == 1:
        return f"({parts[0]} IS {'NOT ' if name == 'isnotnull' else ''}NULL)"
    if name == "like" and len(parts) == 2:
        return f"({parts[0]} LIKE {parts[1]})"
    return None


class _Classic:
    """A node of a Column in the driver's JVM."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.kind = {
            "UnresolvedFunction": "function", "UnresolvedAttribute": "name", "Literal": "value", "SqlExpression": "sql"
        }.get(node.getClass().getSimpleName(), "other")  # fmt: skip

    @property
    def function(self) -> str:
        return str(self._node.functionName())

    @property
    def arguments(self) -> list[_Classic]:
        found = self._node.arguments()
        return [_Classic(found.apply(index)) for index in range(found.size())]

    @property
    def parts(self) -> tuple[str, ...]:
        found = self._node.nameParts()
        return tuple(str(found.apply(index)) for index in range(found.size()))

    @property
    def sql(self) -> str:
        return str(self._node.expression())

    @property
    def value(self) -> str | None:
        value = self._node.value()
        if value is None or isinstance(value, (bool, int, float, str, Decimal, bytes, bytearray)):
            return _literal(value)
        kind = str(value.getClass().getName())
        word = {
            "java.sql.Timestamp": "TIMESTAMP", "java.time.Instant": "TIMESTAMP", "java.sql.Date": "DATE",
            "java.time.LocalDate": "DATE", "java.time.LocalDateTime": "TIMESTAMP_NTZ",
        }.get(kind)  # fmt: skip
        text = str(value.toInstant().toString() if kind == "java.sql.Timestamp" else value.toString())
        if word is None or not text[:4].isdecimal() or text < "1583":  # before, Java's calendar is another than Spark's
            return None
        return f"{word} '{text.replace('T', ' ')}'"

    @property
    def text(self) -> str | None:
        value = self._node.value() if self.kind == "value" else None
        return value if isinstance(value, str) else None


class _Connect:
    """A node of a Column of Spark Connect."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.kind = {
            "UnresolvedFunction": "function", "ColumnReference": "name", "LiteralExpression": "value",
            "SQLExpression": "sql",
        }.get(type(node).__name__, "other")  # fmt: skip

    @property
    def function(self) -> str:
        return str(self._node._name)

    @property
    def arguments(self) -> list[_Connect]:
        return [_Connect(argument) for argument in self._node._args]

    @property
    def parts(self) -> tuple[str, ...]:
        found = _NAME_PART.findall(str(self._node._unparsed_identifier))
        return tuple(quoted.replace("``", "`") or plain for quoted, plain in found)

    @property
    def sql(self) -> str:
        return str(self._node._expr)

    @property
    def value(self) -> str | None:
        value, kind = self._node._value, self._node._dataType.typeName()
        if value is None or not isinstance(value, int) or kind not in ("date", "timestamp", "timestamp_ntz"):
            return _literal(value)
        moment = _EPOCH + (timedelta(days=value) if kind == "date" else timedelta(microseconds=value))
        if kind == "date":
            return _literal(moment.date())
        return _literal(moment if kind == "timestamp" else moment.replace(tzinfo=None))

    @property
    def text(self) -> str | None:
        value = self._node._value if self.kind == "value" else None
        return value if isinstance(value, str) else None


def _literal(value: Any) -> str | None:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return f"{value:f}BD" if value.is_finite() else None
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat(' ')}'" if value.tzinfo else f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, (bytes, bytearray)):
        return f"X'{bytes(value).hex()}'"
    return None


def _beginning(text: str) -> str | None:
    """The pattern of what begins with ``text``."""
    return _literal("".join("\\" + each if each in "\\%_" else each for each in text) + "%")
