r"""`pylog produce`: lines of standard input, or a file of rows, into a topic.

Lines and JSON records go to `Producer.send` one by one (a typed topic takes JSON objects). CSV and Parquet are sent as
Arrow batches; their rows never become Python objects. The command succeeds only if every record was acknowledged. If it
fails, it says which records of the input are in the log, and how to continue (`--skip`).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

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
from pyspark_log.cli.exit_status import say_error
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import counted
from pyspark_log.cli.progress import Progress, is_file
from pyspark_log.cli.records.record_format import LineParser
from pyspark_log.cli.records.skip import RecordNumbers, Skipper, parse_skip, skip_argument
from pyspark_log.local.foreground import Ending, TerminatedError, ending_between

if TYPE_CHECKING:
    import pyarrow as pa

    from broker_runtime.contract.model import TopicDescription
    from pyspark_log import Producer
    from pyspark_log.cli.records.produce_inputs import Parse, Unit
    from pyspark_log.client.producer.delivery import Delivery, RecordFuture

_T = TypeVar("_T")

_KINDS = ("parquet", "csv", "jsonl")
_KIND_OF_SUFFIX = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_MOST_UNANSWERED_RECORDS = 10_000
_MOST_UNANSWERED_BATCHES = 4
_INTERRUPTED_LIMIT_S = 5.0
_UNCERTAIN = (DuplicateSequenceError, OutOfOrderSequenceError, UnknownProducerIdError)


def add_to(app: typer.Typer, *, panel: str) -> None:
    """Adds the command, listed under the heading ``panel``."""
    add_command(app, "produce", panel=panel)(produce)


def produce(
    invocation: Invocation,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="Topic or partition to write to.",
            autocompletion=complete.topics_or_partitions,
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option("-f", "--format", help=r"Format of lines, '%k\t%v\n': %k key, %v value, %p partition, %T ms."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Send the rows of a .parquet, .csv or .jsonl file."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="csv or jsonl for standard input, or a file's kind."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Read the output of pylog consume --raw.")] = False,
    keep_partition: Annotated[
        bool, typer.Option("--keep-partition", help="With --raw or jsonl: keep each record's partition.")
    ] = False,
    skip: Annotated[
        str | None,
        typer.Option("--skip", metavar="N", help="Skip the first N records, or 1-9,12-15, or @FILE."),
    ] = None,
    null: Annotated[
        str, typer.Option("--null", help="Text that means null in CSV. Default: nothing.", show_default=False)
    ] = "",
) -> None:
    """Write records from standard input or a file.

    Each line is a record: the value, or for a typed topic a JSON object.
    """
    name, partition = parse_topic_and_partition(topic)
    kind = _kind(file, kind, is_raw=raw)
    if form is not None and (file is not None or kind is not None or raw):
        raise OptionError("-f is for lines of standard input; it cannot be used with --file, --kind or --raw")
    if keep_partition and not (raw or kind == "jsonl"):
        raise OptionError("--keep-partition needs --raw or jsonl input, which contain partitions")
    if keep_partition and partition is not None:
        raise OptionError(f"--keep-partition cannot be used with a partition ({topic}): name only the topic")
    parser = None if form is None else LineParser(form)
    skipped = RecordNumbers() if skip is None else parse_skip(skip)
    acks = str(invocation.settings("producer").get("acks", "all"))
    with invocation.admin(beside="producer") as admin:
        description = admin.describe_topic(name)
    with (
        ending_between() as ending,
        _opened(file) as source,
        _progress(invocation, source, file, kind) as progress,
        invocation.producer() as producer,
    ):
        sending = _Sending(skipped, ending, acks=acks)
        sender = _Sender(
            producer,
            description,
            partition,
            sending,
            _advance(progress, source, kind),
            ending,
            keeps_partition=keep_partition,
        )
        try:
            _send(invocation, sender, source, file, kind, parser, is_raw=raw, null=null)
            sending.finish()
            producer.flush()
        except PylogError as error:
            raise type(error)(f"{_sentence(error.message)} {sending.report(producer)}") from None
        except (KeyboardInterrupt, TerminatedError):
            say_error(sending.report(producer, limit_s=_INTERRUPTED_LIMIT_S))  # also with -q
            raise
        except OSError:
            say_error(sending.report(producer))
            raise
    invocation.say(f"Wrote {counted(sending.sent, 'record')} to topic {name}.")
    if skipped.ranges and skipped.ranges[-1][1] > sending.seen:
        invocation.say(f"The input has only {counted(sending.seen, 'record')}, fewer than --skip {skip} names.")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _kind(file: Path | None, kind: str | None, *, is_raw: bool) -> str | None:
    """The kind of input; None: lines, or raw records."""
    if is_raw:
        if kind is not None:
            raise OptionError("use only one of --raw and --kind")
    elif file is not None:
        kind = kind or _KIND_OF_SUFFIX.get(file.suffix.lower())
        if kind not in _KINDS:
            raise OptionError(f"--file {file}: unknown kind of file; use --kind with one of {', '.join(_KINDS)}")
    elif kind not in {None, "csv", "jsonl"}:
        raise OptionError(f"--kind {kind}: standard input can be csv or jsonl; other kinds need --file")
    if file is not None and not file.exists():
        raise OptionError(f"--file {file}: there is no such file")
    if file is not None and file.is_dir():
        raise OptionError(f"--file {file}: is a directory")
    return kind


def _progress(invocation: Invocation, source: BinaryIO, file: Path | None, kind: str | None) -> Progress:
    """How much of a file was read. There is none for a terminal or a pipe."""
    text = f"Reading {'standard input' if file is None else file.name}"
    if kind == "parquet":
        return Progress(invocation, text, unit="records")
    total = os.fstat(source.fileno()).st_size if is_file(source) else None
    return Progress(invocation, text, total=total, unit="bytes", is_wanted=total is not None)


def _advance(progress: Progress, source: BinaryIO, kind: str | None) -> Callable[[int], None]:
    """To be called with the number of records that were sent."""

    def advance(records: int) -> None:
        if progress.is_shown:
            progress.reach(records if kind == "parquet" else source.tell())

    return advance


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
    from pyspark_log.cli.records import produce_inputs as inputs

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
            invocation.say("Type one record per line. Ctrl-D ends the input.")
        units = inputs.line_units(source, limit_bytes, may_be_bytes=topic.schema is None)
        sender.send_records(units, inputs.line_parse(topic, form), has_partitions=True)


class _Sender:
    """Sends the input, record by record or batch by batch, and keeps track of it in a `_Sending`."""

    def __init__(
        self,
        producer: Producer,
        topic: TopicDescription,
        partition: int | None,
        sending: _Sending,
        advance: Callable[[int], None],
        ending: Ending,
        *,
        keeps_partition: bool,
    ) -> None:
        self.topic = topic
        self._producer = producer
        self._partition = partition
        self._sending = sending
        self._advance = advance
        self._ending = ending
        self._keeps_partition = keeps_partition

    def send_records(self, units: Iterator[Unit], parse: Parse, *, has_partitions: bool = False) -> None:
        """``has_partitions``: use the records' own partitions. Raises the first error, with its place in the input."""
        skipper = Skipper(self._sending.skipped)
        uses_partition = has_partitions or self._keeps_partition
        for number, unit in enumerate(self._read(units), 1):
            self._sending.seen = number
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
        """Raises the first error; its batch was not sent, or only in part."""
        import numpy as np

        skipper = Skipper(self._sending.skipped)
        first = 1
        for batch in self._read(batches):
            numbers = [n for n in range(first, first + batch.num_rows) if not skipper.skips(n)]
            wanted = batch if len(numbers) == batch.num_rows else batch.take(np.array(numbers, np.int64) - first)
            first += batch.num_rows
            self._sending.seen = first - 1
            deliveries: list[Delivery] = []
            self._sending.add_batch(numbers, deliveries)
            self._producer._send_batch(self.topic.name, wanted, self._partition, deliveries)
            self._advance(first)

    def _read(self, source: Iterator[_T]) -> Iterator[_T]:
        """The same. What is read is not sent yet: a signal may interrupt that."""
        ending = self._ending
        while True:
            ending.at_once = True
            found = next(source, None)
            ending.at_once = False
            if found is None:
                return
            yield found


class _Sending:
    """The state of the records that were sent, by their numbers in the input."""

    def __init__(self, skipped: RecordNumbers, ending: Ending, *, acks: str) -> None:
        self._ending = ending  # called where all that was sent is accounted for
        self.skipped = skipped
        self.sent = 0
        self.seen = 0  # records of the input, sent or skipped
        self._acks = acks
        self._acknowledged = RecordNumbers()
        self._records: deque[tuple[int, str, RecordFuture]] = deque()
        self._batches: deque[tuple[list[int], list[Delivery]]] = deque()
        self._uncertain = 0

    def add(self, number: int, place: str, future: RecordFuture) -> None:
        """Adds a record. Blocks while too many are unacknowledged; raises the first delivery error."""
        self.sent += 1
        records = self._records
        records.append((number, place, future))
        self._ending()
        while records and (records[0][2].done() or len(records) > _MOST_UNANSWERED_RECORDS):
            self._settle_record()
            self._ending()

    def add_batch(self, numbers: list[int], deliveries: list[Delivery]) -> None:
        """Adds a batch that is being sent; ``deliveries`` may still grow. Otherwise like `add`."""
        self.sent += len(numbers)
        self._batches.append((numbers, deliveries))
        self._ending()
        while len(self._batches) > _MOST_UNANSWERED_BATCHES:
            self._settle_batch()
            self._ending()

    def finish(self) -> None:
        """Waits until all records are acknowledged. Raises the first delivery error."""
        while self._records:
            self._settle_record()
            self._ending()
        while self._batches:
            self._settle_batch()
            self._ending()

    def report(self, producer: Producer, *, limit_s: float | None = None) -> str:
        """After an error: which records are in the log, and how to continue. Blocks until that is known."""
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
        return "With acks=0 it is unknown which records are in the log"
    in_order = known.first_missing - 1
    doubt = f"; {uncertain:,} more were sent and may or may not be in the log" if uncertain else ""
    if not len(acknowledged):
        text = "No record was written" if not uncertain else "No record was acknowledged"
        return f"{text}{doubt}" + (f". {_continue(known)}" if len(known) else "")
    after = len(known) - in_order
    if not in_order:
        return (
            f"{counted(after, 'record')} of the input, but not the first, {'is' if after == 1 else 'are'} in the log"
            f"{doubt}. {_continue(known)}"
        )
    first = "The first record" if in_order == 1 else f"The first {in_order:,} records"
    others = f" and {after:,} of the later ones" if after else ""
    return (
        f"{first} of the input{others} {'is' if in_order == 1 and not after else 'are'} in the log{doubt}. "
        f"{_continue(known)}"
    )


def _continue(known: RecordNumbers) -> str:
    return f"To send the rest: --skip {skip_argument(known)}"
