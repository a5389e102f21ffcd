"""The input of `pylog produce` as records or Arrow batches: lines, JSON records, raw records, CSV and Parquet.

Rule: the input is not trusted. A wrong record is a `ValueError`, or an error of `broker_runtime.contract.errors`, to
which the caller adds the record's number. The output of `pylog consume` is read back unchanged.
"""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from broker_runtime.contract.errors import OptionError, PylogError, RecordTooLargeError, SchemaMismatchError
from broker_runtime.contract.suggestion import suggestion
from pyspark_log.cli.progress import is_file
from pyspark_log.cli.records.json_values import load_json, parse_bytes, parse_timestamp_ms, row_parser
from pyspark_log.cli.records.raw_records import read_raw, unpack_record
from pyspark_log.cli.records.text_input import CsvSource, without_mark
from pyspark_log.client.producer.column_values import value_check

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicDescription
    from pyspark_log.cli.records.record_format import LineParser

ROWS_PER_BATCH = 1 << 16
JSON_GROWTH = 8
"""How many times longer a record may be as JSON, with everything escaped."""
_PLACE = ("topic", "partition", "offset", "timestamp")
_MOST_BLOCK_BYTES = (1 << 31) - 1
_CSV_ERROR = re.compile(
    r"(?:In CSV column #(?P<column>\d+)|CSV parse error): Row #(?P<row>\d+): (?:CSV conversion error to )?(?P<rest>.*)"
)


class InputRecord(NamedTuple):
    """One record, as `Producer.send` takes it. ``timestamp`` None: now."""

    value: Any
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Unit(NamedTuple):
    """One record's bytes, and its place in the input, for messages."""

    place: str
    content: bytes


Parse = Callable[[bytes], InputRecord]


def record_limit_bytes(topic: TopicDescription) -> int:
    """The largest size of a record of the topic."""
    from broker_runtime.contract.settings import parse_size, resolve

    return parse_size(topic.config.get("max.message.bytes", resolve("topic").max_message_bytes))


def line_units(
    source: BinaryIO, limit_bytes: int, *, skips_blank: bool = False, may_be_bytes: bool = False
) -> Iterator[Unit]:
    """The lines of ``source``. ``may_be_bytes``: they may be any bytes, so that only a file can have a byte order mark,
    and one of UTF-16 counts only if zero bytes follow.

    Raises `RecordTooLargeError` for a line longer than the limit, and `OptionError` for text whose byte order mark is
    not that of UTF-8.
    """
    for number in itertools.count(1):
        line = source.readline(limit_bytes + 1)
        if not line:
            return
        if number == 1 and not (may_be_bytes and _is_bytes(line, source)):
            line = without_mark(line)
        content = line.removesuffix(b"\n")
        if len(content) > limit_bytes:
            raise RecordTooLargeError(
                f"line {number}: is longer than the topic's max.message.bytes allows ({limit_bytes} bytes)"
            )
        if content.strip() or not skips_blank:
            yield Unit(f"line {number}", content)


def _is_bytes(line: bytes, source: BinaryIO) -> bool:
    """Whether the first line is bytes rather than text: it does not come from a file, or it begins like UTF-16 but has
    no zero byte, neither in it nor right after its newline."""
    if not is_file(source, without_descriptor=True):
        return True
    if b"\0" in line or line.startswith(codecs.BOM_UTF8):
        return False
    is_marked = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return is_marked and not (isinstance(source, io.BufferedReader) and source.peek(1)[:1] == b"\0")


def raw_units(source: BinaryIO, limit_bytes: int) -> Iterator[Unit]:
    """Splits the output of `consume --raw`. Raises `OptionError`."""
    number = 0
    try:
        for number, body in enumerate(read_raw(source, limit_bytes=limit_bytes), 1):
            yield Unit(f"record {number}", body)
    except ValueError as error:
        raise OptionError(f"after record {number}: {error}") from None


def line_parse(topic: TopicDescription, form: LineParser | None) -> Parse:
    """Parses lines by a format; without one the whole line is the value."""
    make_value = _value_maker(topic)

    def parse(line: bytes) -> InputRecord:
        fields = {"v": line} if form is None else form.parse(line)
        return InputRecord(
            make_value(fields.get("v")),
            fields.get("k"),
            int(fields["p"]) if "p" in fields else None,
            int(fields["T"]) if "T" in fields else None,
        )

    return parse


def raw_parse(topic: TopicDescription) -> Parse:
    """Parses records of `consume --raw`."""
    make_value = _value_maker(topic)

    def parse(body: bytes) -> InputRecord:
        raw = unpack_record(body)
        return InputRecord(make_value(raw.value), raw.key, raw.partition, raw.timestamp_ms, raw.headers)

    return parse


def json_parse(topic: TopicDescription) -> Parse:
    """Parses records of `consume -o jsonl`, or for a typed topic also plain rows."""
    schema = topic.schema
    if schema is None:
        return lambda line: _untyped_record(_json_object(line))
    columns = frozenset(schema.names)
    parse_row = row_parser(schema)

    def parse(line: bytes) -> InputRecord:
        given = _json_object(line)
        is_record = "row" in given and given.keys() <= {*_PLACE, "headers", "row"}
        if is_record and "row" in columns:
            is_record = given.keys() >= {*_PLACE, "row"}
        if not is_record:
            return InputRecord(parse_row(given))
        if not isinstance(given["row"], dict):
            raise ValueError("row must be an object of the topic's columns")
        return _with_place(InputRecord(parse_row(given["row"])), given)

    return parse


def _value_maker(topic: TopicDescription) -> Callable[[bytes | None], Any]:
    if topic.schema is None:
        return lambda value: value
    parse_row = row_parser(topic.schema)

    def make(value: bytes | None) -> Any:
        if value is None:
            raise ValueError("a typed topic needs a value: a JSON object of its columns")
        return parse_row(_json_object(value))

    return make


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        made = load_json(line)
    except ValueError as error:
        raise ValueError(f"must be a JSON object, but is not JSON ({error})") from None
    if not isinstance(made, dict):
        raise ValueError(f"must be a JSON object, not {_kind_in_json(made)}")
    return made


def _kind_in_json(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a list" if isinstance(value, list) else "text" if isinstance(value, str) else "a number"


def _untyped_record(given: dict[str, Any]) -> InputRecord:
    known = (*_PLACE, "key", "value", "headers")
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise ValueError(f"a record of a topic without a schema has no field {unknown!r}; {suggestion(unknown, known)}")
    if "value" not in given:
        raise ValueError("the field 'value' is missing: a topic without a schema needs it (null is allowed)")
    record = InputRecord(parse_bytes(given["value"], "value"), parse_bytes(given.get("key"), "key"))
    return _with_place(record, given)


def _with_place(record: InputRecord, given: dict[str, Any]) -> InputRecord:
    partition = given.get("partition")
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise ValueError(f"partition must be a number, not {partition!r:.80}")
    timestamp = given.get("timestamp")
    headers: list[tuple[str, bytes | None]] = []
    given_headers = given.get("headers") or []
    for header in given_headers if isinstance(given_headers, list) else [given_headers]:
        if not isinstance(header, list) or len(header) != 2 or not isinstance(header[0], str):
            raise ValueError(f'headers must be pairs of name and value, for example [["a", "1"]], not {header!r:.80}')
        headers.append((header[0], parse_bytes(header[1], f"header {header[0]!r}")))
    return record._replace(
        partition=partition,
        timestamp=None if timestamp is None else parse_timestamp_ms(timestamp),
        headers=headers,
    )


# --- files of columns ---------------------------------------------------------------------------------------------


def parquet_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file; an empty file has none. Raises `SchemaMismatchError` for another kind of file."""
    import pyarrow.parquet as pq

    if file.is_file() and not file.stat().st_size:
        return
    with _arrow_errors(str(file)), pq.ParquetFile(file) as rows:
        yield from rows.iter_batches(batch_size=ROWS_PER_BATCH)


def csv_batches(source: BinaryIO, name: str, topic: TopicDescription, null: str) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV file with column names in its first line. Only ``null`` without quotes means null. An empty
    line is a row if there is one column, else it is skipped. Values of types that CSV cannot express (nested types,
    durations) are JSON. Raises `SchemaMismatchError`."""
    import pyarrow.csv as csv

    # CSV has no types: each column is read as the type that the topic's column has.
    schema = topic.schema if topic.schema is not None else pa.schema({"key": pa.binary(), "value": pa.binary()})
    as_text = {field.name: field for field in schema if _csv_cannot(field.type)}
    options = csv.ConvertOptions(
        column_types={field.name: pa.string() if field.name in as_text else field.type for field in schema},
        null_values=[null],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    block_bytes = min(max(1 << 20, JSON_GROWTH * record_limit_bytes(topic)), _MOST_BLOCK_BYTES)
    text = CsvSource(source, name)
    with _arrow_errors(name), _csv_errors(text, name), _row_length_errors(text, name, block_bytes):
        parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(text.column_names) != 1)
        try:
            # One thread: only then does Arrow say which row is wrong.
            read = csv.ReadOptions(block_size=block_bytes, use_threads=False)
            reader = csv.open_csv(text, read, parse_options=parse, convert_options=options)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            raise
        first = 1
        with reader:
            for batch in reader:
                yield _with_text_columns(batch, as_text, schema, name, first)
                first += batch.num_rows


@contextmanager
def _csv_errors(text: CsvSource, name: str) -> Iterator[None]:
    """Names record and column where Arrow counts rows with the header and columns from 0."""
    try:
        yield
    except pa.ArrowInvalid as error:
        found = _CSV_ERROR.search(" ".join(str(error).split()))
        if found is None:
            raise
        where = f"{name}: record {int(found['row']) - 1}"
        if found["column"] is None:
            raise SchemaMismatchError(f"{where}: {found['rest'][:300]}") from None
        column = dict(enumerate(text.column_names)).get(int(found["column"]), f"number {int(found['column']) + 1}")
        raise SchemaMismatchError(f"{where}: column {column!r}: {found['rest'][:300]}") from None


@contextmanager
def _row_length_errors(text: CsvSource, name: str, limit_bytes: int) -> Iterator[None]:
    """Turns Arrow's error about blocks into one about the row, or about the quote that makes it endless."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if "straddling object" not in str(error):
            raise
        if text.quotes.line is None:
            raise SchemaMismatchError(f"{name}: a row is longer than {limit_bytes} bytes") from None
        raise SchemaMismatchError(
            f"{name}: line {text.quotes.line}: the quote that opens here is not closed within {limit_bytes} bytes"
        ) from None


def _csv_cannot(kind: pa.DataType) -> bool:
    return bool(pt.is_nested(kind) or pt.is_duration(kind) or pt.is_floating(kind))


def _with_text_columns(
    batch: pa.RecordBatch, as_text: dict[str, pa.Field], schema: pa.Schema, file: str, first: int
) -> pa.RecordBatch:
    """``first``: the number of the batch's first record."""
    parse = row_parser(schema)
    for index, name in enumerate(batch.schema.names):
        field = as_text.get(name)
        if field is None:
            continue
        if pt.is_floating(field.type):
            batch = batch.set_column(index, field, _floats(batch.column(index), field))
            continue
        check = value_check(field, name)
        values = []
        for number, text in enumerate(batch.column(index).to_pylist(), first):
            try:
                value = None if text is None else load_json(text.encode()) if pt.is_nested(field.type) else text
                values.append(check(parse({name: value})[name]))
            except ValueError as error:
                why = error.message if isinstance(error, PylogError) else error
                raise SchemaMismatchError(f"{file}: record {number}: column {name!r}: {text!r:.80}: {why}") from None
        batch = batch.set_column(index, field, pa.array(values, field.type))
    return batch


def _floats(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Parses numbers. Raises `SchemaMismatchError`, also for a number so large that Arrow makes it infinity."""
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(texts)
    try:
        numbers = pc.cast(texts, field.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(f"column {field.name!r}: {error}") from None
    if pc.any(pc.is_inf(numbers)).as_py():
        is_wrong = pc.and_(pc.is_inf(numbers), pc.match_substring_regex(texts, "[0-9]"))
        if wrong := texts.filter(is_wrong).slice(0, 1).to_pylist():
            raise SchemaMismatchError(f"column {field.name!r}: {wrong[0]!r:.80} is out of range for {field.type}")
    return numbers


@contextmanager
def _arrow_errors(name: str) -> Iterator[None]:
    """Turns Arrow's errors into one line that names the file."""
    try:
        yield
    except (PylogError, MemoryError):
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise SchemaMismatchError(f"{name}: {' '.join(str(error).split())[:500].rstrip('.')}") from None
