r"""`pylog produce`: lines of standard input, or a file of rows, into a topic.

Lines and JSON records go to `Producer.send` one by one (a typed topic takes them as JSON objects); csv and Parquet go
as Arrow batches, and no row of them becomes a Python object. The command ends well only when every record was
acknowledged. When it fails, it says which records of the input are in the log, and how to go on (`--skip`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from broker_runtime.contract.errors import (
    DuplicateSequenceError,
    OptionError,
    OutOfOrderSequenceError,
    PylogError,
    RequestError,
    UnknownProducerIdError,
)
from pyspark_log.cli import complete
from pyspark_log.cli.arguments import parse_topic_and_partition
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.record_format import LineParser
from pyspark_log.cli.skip import RecordNumbers, Skipper, parse_skip, skip_argument
from pyspark_log.local.foreground import TerminatedError, terminable

if TYPE_CHECKING:
    import pyarrow as pa

    from broker_runtime.contract.model import TopicDescription
    from pyspark_log import Producer
    from pyspark_log.cli.produce_inputs import Parse, Unit
    from pyspark_log.client.producer.delivery import Delivery, RecordFuture

_KINDS = ("parquet", "csv", "jsonl")
_KIND_OF_SUFFIX = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_MOST_UNANSWERED_RECORDS = 10_000
_MOST_UNANSWERED_BATCHES = 4
_INTERRUPTED_LIMIT_S = 5.0
_UNCERTAIN = (DuplicateSequenceError, OutOfOrderSequenceError, UnknownProducerIdError)


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
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="parquet, csv or jsonl, if the name does not say; csv and jsonl of stdin too."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Records of pylog consume --raw.")] = False,
    keep_partition: Annotated[
        bool, typer.Option("--keep-partition", help="With --raw and jsonl: each into the partition it was in.")
    ] = False,
    skip: Annotated[
        str | None,
        typer.Option("--skip", metavar="N", help="Leave out the first N records, or 1-9,12-15, or as @FILE says."),
    ] = None,
    null: Annotated[str, typer.Option("--null", help="What stands for null in csv.", show_default="nothing")] = "",
) -> None:
    """Write records: each line of standard input is one, or each row of a file.

    A topic without a schema takes a line as the value. A typed one takes JSON objects.
    """
    name, partition = parse_topic_and_partition(topic)
    kind = _kind(file, kind, is_raw=raw)
    if form is not None and (file is not None or kind is not None or raw):
        raise OptionError("-f is for lines of standard input; files and --kind take columns by name, --raw records")
    if keep_partition and not (raw or kind == "jsonl"):
        raise OptionError("--keep-partition is for --raw and jsonl, which have partitions")
    if keep_partition and partition is not None:
        raise OptionError(f"--keep-partition and {topic} exclude each other")
    parser = None if form is None else LineParser(form)
    skipped = RecordNumbers() if skip is None else parse_skip(skip)
    sending = _Sending(skipped, acks=str(invocation.settings("producer").get("acks", "all")))
    with invocation.admin(beside="producer") as admin:
        description = admin.describe_topic(name)
    with (
        terminable(),
        _opened(file) as source,
        _RowProgress(invocation, file) if file is not None else nullcontext(lambda _: None) as advance,
        invocation.producer() as producer,
    ):
        sender = _Sender(producer, description, partition, sending, advance, keeps_partition=keep_partition)
        try:
            _send(invocation, sender, source, file, kind, parser, is_raw=raw, null=null)
            sending.finish()
            producer.flush()
        except PylogError as error:
            raise type(error)(f"{error.message}. {sending.report(producer)}") from None
        except (KeyboardInterrupt, TerminatedError):
            invocation.say(f"{name}: {sending.report(producer, limit_s=_INTERRUPTED_LIMIT_S)}")
            raise
        except OSError:
            invocation.say(f"{name}: {sending.report(producer)}")
            raise
    count = sending.sent
    invocation.say(f"{name}: {count:,} record{'' if count == 1 else 's'}")


def _kind(file: Path | None, kind: str | None, *, is_raw: bool) -> str | None:
    """What is read; None: lines, or raw records."""
    if is_raw:
        if kind is not None:
            raise OptionError("--raw and --kind exclude each other")
    elif file is not None:
        kind = kind or _KIND_OF_SUFFIX.get(file.suffix.lower())
        if kind not in _KINDS:
            raise OptionError(f"--file {file}: its kind is none of {', '.join(_KINDS)}; --kind says which")
    elif kind not in {None, "csv", "jsonl"}:
        raise OptionError(f"--kind {kind}: of standard input, csv and jsonl are read; others need --file")
    if file is not None and not file.exists():
        raise OptionError(f"--file {file}: no such file")
    if file is not None and file.is_dir():
        raise OptionError(f"--file {file}: a directory")
    return kind


def _opened(file: Path | None) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if file is None else file.open("rb")


def _send(
    invocation: Invocation,
    sender: _Sender,
    source: BinaryIO,
    file: Path | None,
    kind: str | None,
    form: LineParser | None,
    *,
    is_raw: bool,
    null: str,
) -> None:
    from pyspark_log.cli import produce_inputs as inputs

    topic = sender.topic
    limit_bytes = inputs.record_limit_bytes(topic)
    json_limit_bytes = inputs.JSON_GROWTH * limit_bytes
    if topic.schema is not None:
        limit_bytes = json_limit_bytes
    if is_raw:
        sender.send_records(inputs.raw_units(source, limit_bytes), inputs.raw_parse(topic))
    elif kind == "jsonl":
        units = inputs.line_units(source, json_limit_bytes, skips_blank=True)
        sender.send_records(units, inputs.json_parse(topic))
    elif kind == "csv":
        sender.send_batches(inputs.csv_batches(source, str(file or "standard input"), topic, null))
    elif kind == "parquet":
        assert file is not None
        sender.send_batches(inputs.parquet_batches(file))
    else:
        if sys.stdin.isatty():
            invocation.say("Each line is a record; Ctrl-D ends.")
        units = inputs.line_units(source, limit_bytes, may_be_bytes=topic.schema is None)
        sender.send_records(units, inputs.line_parse(topic, form), has_partitions=True)


class _Sender:
    """Sends what was read, record by record or batch by batch, and notes it."""

    def __init__(
        self,
        producer: Producer,
        topic: TopicDescription,
        partition: int | None,
        sending: _Sending,
        advance: Callable[[int], object],
        *,
        keeps_partition: bool,
    ) -> None:
        self.topic = topic
        self._producer = producer
        self._partition = partition
        self._sending = sending
        self._advance = advance
        self._keeps_partition = keeps_partition

    def send_records(self, units: Iterator[Unit], parse: Parse, *, has_partitions: bool = False) -> None:
        """``has_partitions``: those of the records count. Raises the first error, with its record's place."""
        skipper = Skipper(self._sending.skipped)
        uses_partition = has_partitions or self._keeps_partition
        for number, unit in enumerate(units, 1):
            if skipper.skips(number):
                continue
            try:
                record = parse(unit.content)
                own = record.partition if uses_partition else None
                future = self._producer.send(
                    self.topic.name,
                    record.value,
                    record.key,
                    partition=self._partition if own is None else own,
                    timestamp=record.timestamp,
                    headers=record.headers,
                )
            except PylogError as error:
                raise type(error)(f"{unit.place}: {error.message}") from None
            except ValueError as error:
                raise OptionError(f"{unit.place}: {error}") from None
            self._sending.add(number, unit.place, future)
            if number % 1000 == 0:
                self._advance(number)

    def send_batches(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Raises the first error; the batch it is about is not sent, or in part."""
        import numpy as np

        skipper = Skipper(self._sending.skipped)
        first = 1
        for batch in batches:
            numbers = [n for n in range(first, first + batch.num_rows) if not skipper.skips(n)]
            wanted = batch if len(numbers) == batch.num_rows else batch.take(np.array(numbers, np.int64) - first)
            first += batch.num_rows
            deliveries: list[Delivery] = []
            self._sending.add_batch(numbers, deliveries)
            self._producer._send_batch(self.topic.name, wanted, self._partition, deliveries)
            self._advance(first)


class _Sending:
    """What became of the records that were sent, by their numbers in the input."""

    def __init__(self, skipped: RecordNumbers, *, acks: str) -> None:
        self.skipped = skipped
        self.sent = 0
        self._acks = acks
        self._acknowledged = RecordNumbers()
        self._records: deque[tuple[int, str, RecordFuture]] = deque()
        self._batches: deque[tuple[list[int], list[Delivery]]] = deque()
        self._uncertain = 0

    def add(self, number: int, place: str, future: RecordFuture) -> None:
        """One record more. Blocks while many are not acknowledged; raises the first delivery error."""
        self.sent += 1
        records = self._records
        records.append((number, place, future))
        while records and (records[0][2].done() or len(records) > _MOST_UNANSWERED_RECORDS):
            self._settle_record()

    def add_batch(self, numbers: list[int], deliveries: list[Delivery]) -> None:
        """A batch that is being sent; ``deliveries`` may still grow. Otherwise as `add`."""
        self.sent += len(numbers)
        self._batches.append((numbers, deliveries))
        while len(self._batches) > _MOST_UNANSWERED_BATCHES:
            self._settle_batch()

    def finish(self) -> None:
        """Waits for all. Raises the first delivery error."""
        while self._records:
            self._settle_record()
        while self._batches:
            self._settle_batch()

    def report(self, producer: Producer, *, limit_s: float | None = None) -> str:
        """Which records are in the log, and how to go on, after an error: waits until it is known."""
        with suppress(PylogError):
            producer.flush(limit_s)
        while True:
            with suppress(PylogError):
                self._settle_all()
                break
        known = RecordNumbers()
        for numbers in (self.skipped, self._acknowledged):
            for first, last in numbers.ranges:
                known.add_range(first, last)
        return _said(known, self._acknowledged, self._uncertain, acks=self._acks)

    def _settle_all(self) -> None:
        while self._records:
            number, _, future = self._records.popleft()
            self._note([number], future.exception(0) if future.done() else TimeoutError())
        while self._batches:
            numbers, deliveries = self._batches.popleft()
            for delivery in deliveries:
                first, rows = delivery.rows
                self._note(
                    [numbers[first + int(row)] for row in rows], delivery.error if delivery.is_done else TimeoutError()
                )

    def _settle_record(self) -> None:
        number, place, future = self._records[0]
        error = future.exception()
        if error is not None:
            raise type(error)(f"{place}: {error.message}")
        self._records.popleft()
        self._acknowledged.add(number)

    def _settle_batch(self) -> None:
        from pyspark_log.client.producer.delivery import wait_for

        numbers, deliveries = self._batches[0]
        wait_for(deliveries, None)
        error = next((delivery.error for delivery in deliveries if delivery.error is not None), None)
        if error is not None:
            raise error
        self._batches.popleft()
        self._note(numbers, None)

    def _note(self, numbers: list[int], error: BaseException | None) -> None:
        if error is None:
            for number in numbers:
                self._acknowledged.add(number)
        elif not isinstance(error, RequestError) or isinstance(error, _UNCERTAIN):
            self._uncertain += len(numbers)


def _said(known: RecordNumbers, acknowledged: RecordNumbers, uncertain: int, *, acks: str) -> str:
    if acks == "0":
        return "With acks=0 it is not known which records are in the log"
    in_order = known.first_missing - 1
    doubt = f"; {uncertain:,} more were sent, and may be there or not" if uncertain else ""
    if not len(acknowledged):
        text = "No record was written" if not uncertain else "No record was acknowledged"
        return f"{text}{doubt}" + (f". To go on: --skip {skip_argument(known)}" if len(known) else "")
    after = len(known) - in_order
    if not in_order:
        return f"{after:,} records of the input, not the first ones, are in the log{doubt}. {_go_on(known)}"
    first = "The first record" if in_order == 1 else f"The first {in_order:,} records"
    others = f" and {after:,} of those behind" if after else ""
    return (
        f"{first} of the input{others} {'is' if in_order == 1 and not after else 'are'} in the log{doubt}. "
        f"{_go_on(known)}"
    )


def _go_on(known: RecordNumbers) -> str:
    return f"To go on with the rest: --skip {skip_argument(known)}"


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
