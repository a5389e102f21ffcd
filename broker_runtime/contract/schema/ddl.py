"""A schema as text: ``carrier string NOT NULL, delay int32, t timestamp, d decimal(10,2), tags array<string>``.

    schema  := column ("," column)*
    column  := name type ["NOT" "NULL"] ["COMMENT" 'text']
    name    := word | `anything but backquotes`
    type    := "array" "<" type ">" | "map" "<" type "," type ">" | "struct" "<" member ("," member)* ">"
             | word ["(" number ("," number)* ")"] | word "[" unit ["," "tz=" zone] "]"
    member  := name [":"] type ["NOT" "NULL"]

Type names are Spark's and Arrow's, in any case; `list` is `array`. ``timestamp`` is an instant as in Spark;
``timestamp_ntz`` and ``timestamp[us]`` are wall-clock times. The result must still pass `check_topic_schema`.
"""

from __future__ import annotations

import re
from typing import NoReturn

import pyarrow as pa

from broker_runtime.contract.errors import InvalidSchemaError
from broker_runtime.contract.schema.normal_form import MAX_DEPTH, make_field
from broker_runtime.contract.suggestion import suggestion

MAX_TEXT_CHARACTERS = 256 << 10

_TOKEN = re.compile(r"\s*(?:(`[^`]+`)|('[^']*')|([^\W\d][\w.\-/+]*|\d+)|(.))", re.DOTALL)

_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte", "int8"), pa.int8()),
    **dict.fromkeys(("smallint", "short", "int16"), pa.int16()),
    **dict.fromkeys(("int", "integer", "int32"), pa.int32()),
    **dict.fromkeys(("bigint", "long", "int64"), pa.int64()),
    **dict.fromkeys(("float", "real", "float32"), pa.float32()),
    **dict.fromkeys(("double", "float64"), pa.float64()),
    **dict.fromkeys(("string", "utf8", "varchar", "char", "large_string"), pa.string()),
    **dict.fromkeys(("binary", "large_binary"), pa.binary()),
    **dict.fromkeys(("date", "date32"), pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(("time", "time64"), pa.time64("ns")),
    "duration": pa.duration("us"),
    **dict.fromkeys(("void", "null"), pa.null()),
    **{f"uint{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
}
_DECIMALS = frozenset({"decimal", "dec", "numeric", "decimal128"})
_NESTED = frozenset({"array", "list", "map", "struct"})
_UNITS = frozenset({"s", "ms", "us", "ns", "day"})
_DAY_TIME = frozenset({"day", "hour", "minute", "second"})


def parse_schema(text: str) -> pa.Schema:
    """The Arrow schema that ``text`` describes. Raises `InvalidSchemaError` that says where the mistake is."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidSchemaError(f"the schema has {len(text)} characters; at most {MAX_TEXT_CHARACTERS} are allowed")
    parser = _Parser(text)
    fields = [parser.column()]
    while parser.take(","):
        fields.append(parser.column())
    parser.end()
    return pa.schema(fields)


class _Parser:
    """Reads the tokens of ``text`` once, in order. Each method consumes what it is named after and no more."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        for match in _TOKEN.finditer(text.rstrip()):
            self._tokens.append((match.group().strip(), match.start()))
        self._next = 0
        self._depth = 0

    def column(self) -> pa.Field:
        field = self._member()
        if self._word("comment"):
            comment = self._take()
            if not comment.startswith("'"):
                self._fail("a 'text' in quotes")
        return field

    def end(self) -> None:
        if self._next < len(self._tokens):
            self._fail("',' or the end")

    def take(self, token: str) -> bool:
        if self._peek() == token:
            self._next += 1
            return True
        return False

    def _member(self) -> pa.Field:
        name = self._take("a name")
        if name.startswith("`"):
            name = name[1:-1]
        elif not re.fullmatch(r"[\w.\-]+", name):
            self._next -= 1
            self._fail("a name")
        self.take(":")
        kind = self._type()
        nullable = True
        if self._word("not"):
            if not self._word("null"):
                self._fail("NULL after NOT")
            nullable = False
        return make_field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidSchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        word = self._take("a type")
        lower = word.lower()
        if lower in _NESTED:
            kind = self._nested(lower)
        elif lower in _DECIMALS:
            kind = self._decimal()
        elif lower == "interval":
            kind = self._interval()
        elif lower in _TYPES:
            kind = self._leaf(lower)
        else:
            self._next -= 1
            self._fail(f"a type; {suggestion(word, [*_TYPES, *_NESTED, 'decimal'])}")
        self._depth -= 1
        return kind

    def _nested(self, word: str) -> pa.DataType:
        self._expect("<")
        if word in ("array", "list"):
            kind = pa.list_(self._element("element"))
        elif word == "map":
            key = self._type()
            self._expect(",")
            kind = pa.map_(make_field("key", key, nullable=False), self._element("value"))
        else:
            members = [self._member()]
            while self.take(","):
                members.append(self._member())
            kind = pa.struct(members)
        self._expect(">")
        return kind

    def _element(self, name: str) -> pa.Field:
        # Arrow writes list<item: int64>, with a name and a colon before the type.
        if self._next + 1 < len(self._tokens) and self._tokens[self._next + 1][0] == ":":
            self._next += 2
        kind = self._type()
        nullable = True
        if self._word("not"):
            if not self._word("null"):
                self._fail("NULL after NOT")
            nullable = False
        return make_field(name, kind, nullable)

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers() or [10, 0]
        precision, scale = [*numbers, 0][:2]
        if len(numbers) > 2 or not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise InvalidSchemaError(
                f"decimal({', '.join(map(str, numbers))}): up to 38 digits, 0 to all of them after the point"
            )
        return pa.decimal128(precision, scale)

    def _interval(self) -> pa.DataType:
        words = [self._take().lower()]
        if self._word("to"):
            words.append(self._take().lower())
        if not _DAY_TIME.issuperset(words):
            raise InvalidSchemaError(f"interval {' to '.join(words)}: use interval day to second, or int for months")
        return pa.duration("us")

    def _leaf(self, word: str) -> pa.DataType:
        kind = _TYPES[word]
        if self._peek() == "(":
            if word not in ("varchar", "char", "time", "timestamp"):
                self._fail(f"no length after {word}")
            self._numbers()
        elif self.take("["):
            unit = self._take().lower()
            zone = None
            if unit not in _UNITS:
                self._next -= 1
                self._fail("a unit: s, ms, us or ns")
            if self.take(","):
                if not self._word("tz"):
                    self._fail("tz=…")
                self._expect("=")
                zone = self._take()
                while self._peek() not in ("]", ""):
                    zone += self._take()
            self._expect("]")
            if word == "timestamp":
                kind = pa.timestamp("us", "UTC" if zone else None)
        return kind

    def _numbers(self) -> list[int]:
        if not self.take("("):
            return []
        numbers = [self._number()]
        while self.take(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self._take("a number")
        if not token.isdecimal():
            self._next -= 1
            self._fail("a number")
        return int(token[:9])

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _take(self, expected: str = "more") -> str:
        token = self._peek()
        if not token:
            self._fail(expected)
        self._next += 1
        return token

    def _word(self, word: str) -> bool:
        if self._peek().lower() == word:
            self._next += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self.take(token):
            self._fail(repr(token))

    def _fail(self, expected: str) -> NoReturn:
        if self._next < len(self._tokens):
            token, position = self._tokens[self._next]
            where = f"is wrong at {token!r} (character {position + 1})"
        elif self._tokens:
            where = f"ends too early, after {self._tokens[-1][0]!r}"
        else:
            where = "is empty"
        raise InvalidSchemaError(f"the schema {self._text[:200]!r} {where}: expected {expected}")
