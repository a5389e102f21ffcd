r"""`pylog produce`: lines of standard input, or a file of rows, into a topic.

Lines go to `Producer.send` one by one (a typed topic takes them as JSON objects); files go as Arrow batches to
`Producer.send_batch`, and no row of them becomes a Python object. The command ends well only when every record was
acknowledged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import OptionError, PylogError, SchemaMismatchError
from pyspark_log.cli import complete
from pyspark_log.cli.arguments import parse_topic_and_partition
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.record_format import LineParser

if TYPE_CHECKING:
    import pyarrow as pa

    from broker_runtime.contract.model import TopicDescription
    from pyspark_log import Producer, RecordMetadata

_MAX_LINE_BYTES = 16 << 20
_ROWS_PER_BATCH = 1 << 16
_KINDS = ("parquet", "csv", "jsonl")
_KIND_OF_SUFFIX = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    add_command(app, "produce")(produce)


def produce(
    invocation: Invocation,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="Where to.", autocompletion=complete.topics)
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "-f", "--format", help=r"How lines are read: '%k\t%v\n'. Fields: %k key, %v value, %p partition, %T ms."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Rows of a .parquet, .csv or .jsonl file, by column name."),
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="parquet, csv or jsonl, if the name does not say.")] = None,
) -> None:
    """Write records: each line of standard input is one, or each row of a file.

    A topic without a schema takes a line as the value. A typed one takes JSON objects.
    """
    name, partition = parse_topic_and_partition(topic)
    if file is not None and form is not None:
        raise OptionError("-f is for lines of standard input; --file takes columns by name")
    parser = None if form is None else LineParser(form)
    with invocation.admin(beside="producer") as admin:
        description = admin.describe_topic(name)
    with invocation.producer() as producer:
        if file is not None:
            count = _send_file(invocation, producer, description, file, kind, partition)
        else:
            if sys.stdin.isatty():
                invocation.say("Each line is a record; Ctrl-D ends.")
            count = _Lines(producer, description, parser, partition).send_all()
        producer.flush()
    invocation.say(f"{name}: {count:,} record{'' if count == 1 else 's'}")


class _Lines:
    """Sends lines. What is wrong with a line is said with its number, also where only the broker found out."""

    def __init__(
        self, producer: Producer, topic: TopicDescription, parser: LineParser | None, partition: int | None
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._parser = parser
        self._partition = partition
        self._refused: tuple[int, PylogError] | None = None

    def send_all(self) -> int:
        """Sends standard input to its end. Returns how many lines; raises the first error."""
        number = 0
        for number, line in _lines():
            if self._refused is not None:
                break
            self._send(number, line)
        try:
            self._producer.flush()
        except PylogError as error:
            if self._refused is None:
                raise
            raise _at_line(self._refused[0], error) from None
        return number

    def _send(self, number: int, line: bytes) -> None:
        def check(metadata: RecordMetadata | None, error: BaseException | None) -> None:
            if isinstance(error, PylogError) and self._refused is None:
                self._refused = (number, error)

        try:
            fields = {"v": line} if self._parser is None else self._parser.parse(line)
            value: Any = fields.get("v")
            if self._topic.schema is not None:
                value = _row(value)
            timestamp = int(fields["T"]) if "T" in fields else None
            self._producer.send(
                self._topic.name,
                value,
                fields.get("k"),
                partition=int(fields["p"]) if "p" in fields else self._partition,
                timestamp=timestamp,
                # A time is the one thing in a line that only the broker can refuse.
                on_delivery=None if timestamp is None else check,
            )
        except PylogError as error:
            raise _at_line(number, error) from None
        except ValueError as error:
            raise OptionError(f"line {number}: {error}") from None


def _at_line(number: int, error: PylogError) -> PylogError:
    return type(error)(f"line {number}: {error.message}")


def _lines() -> Iterator[tuple[int, bytes]]:
    source = sys.stdin.buffer
    number = 0
    while line := source.readline(_MAX_LINE_BYTES):
        number += 1
        if len(line) >= _MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise OptionError(f"line {number}: longer than {_MAX_LINE_BYTES >> 20} MiB")
        yield number, line.removesuffix(b"\n")


def _row(line: bytes | None) -> dict[str, Any]:
    import json

    if line is None:
        raise ValueError("a typed topic needs a value: a JSON object of its columns")
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); a typed topic takes a JSON object per line") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {type(row).__name__}; a typed topic takes an object per line")
    return row


def _send_file(
    invocation: Invocation,
    producer: Producer,
    topic: TopicDescription,
    file: Path,
    kind: str | None,
    partition: int | None,
) -> int:
    kind = kind or _KIND_OF_SUFFIX.get(file.suffix.lower())
    if kind not in _KINDS:
        raise OptionError(f"--file {file}: its kind is none of {', '.join(_KINDS)}; --kind says which")
    if not file.is_file():
        raise OptionError(f"--file {file}: no such file")
    sent = 0
    with _RowProgress(invocation, file) as advance:
        for batch in _batches(file, kind, topic):
            producer.send_batch(topic.name, batch, partition=partition)
            sent += batch.num_rows
            advance(sent)
    return sent


def _batches(file: Path, kind: str, topic: TopicDescription) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    # Text has no types of its own: where the topic names a column, its type is how the text is read.
    expected = topic.schema if topic.schema is not None else pa.schema({"key": pa.binary(), "value": pa.binary()})
    try:
        if kind == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(file) as rows:
                yield from rows.iter_batches(batch_size=_ROWS_PER_BATCH)
        elif kind == "csv":
            import pyarrow.csv as csv

            options = csv.ConvertOptions(
                column_types={field.name: field.type for field in expected}, strings_can_be_null=True
            )
            with csv.open_csv(file, convert_options=options) as reader:
                yield from reader
        else:
            import pyarrow.json as json_reader

            parse = json_reader.ParseOptions(explicit_schema=expected, unexpected_field_behavior="error")
            with json_reader.open_json(file, parse_options=parse) as reader:
                yield from reader
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(f"{file}: {error}") from None


class _RowProgress:
    """A bar on standard error, on a terminal only; a call tells how many rows were sent."""

    def __init__(self, invocation: Invocation, file: Path) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.completed:,.0f} rows"),
            TimeElapsedColumn(),
            console=console,
            disable=invocation.quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(file.name, total=None)

    def __enter__(self) -> _RowProgress:
        self._bar.start()
        return self

    def __call__(self, rows: int) -> None:
        self._bar.update(self._task, completed=rows)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
