r"""`pylog consume`: records on standard output, as text, JSON or a table.

Without a group no offsets are stored. With one (-g, or the setting ``group.id``), the call is a member of the group,
which shares the partitions of the topics among its members. Partitions that are named (flights:0) are read without
joining the group, which is allowed while it has no members. Reading starts at the group's committed offset. What was
printed is committed after the output was flushed: every few seconds, when a partition is revoked, and at the end.
Records that were not printed are never acknowledged.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import FencedError, OptionError
from broker_runtime.contract.waiting import Deadline
from pyspark_log.cli import complete
from pyspark_log.cli.arguments import EARLIEST, AtOffset, FromEnd, parse_place
from pyspark_log.cli.exit_status import give_up_stdout
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, json_line, json_text, plain, print_rows, write_bytes
from pyspark_log.cli.progress import Progress, is_file
from pyspark_log.cli.records.ranges import (
    KeyColumns,
    check_columns,
    key_columns,
    partitions_of,
    resolve_place,
    topics_of,
)
from pyspark_log.cli.records.raw_records import MAGIC, RawRecord, pack_record
from pyspark_log.cli.records.record_format import RecordFormat, Shown
from pyspark_log.local.foreground import ending_between, terminable

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log import ConsumedBatch, Consumer

_MAX_TABLE_ROWS = 10_000
_POLL_S = 0.2
_COMMIT_INTERVAL_S = 5.0
_COLUMN = "row."
_AT_THE_END = {OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON, OutputFormat.YAML}
_WITH_TOPIC = r"%t\t%v\n"


def add_to(app: typer.Typer, *, panel: str) -> None:
    """Adds the command, listed under the heading ``panel``."""
    add_command(app, "consume", panel=panel)(consume)


def consume(
    invocation: Invocation,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC[:PARTITION]…",
            help="Topics or partitions to read.",
            autocompletion=complete.topics_or_partitions,
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLACE", help="earliest, latest, offset 42, -10 (from the end), 1h (ago), a time."
        ),
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Same as --from earliest.")] = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="Where to stop, as --from; end: the current end.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--max-messages", min=1, metavar="N", help="Stop after N records.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            help="Read as a member of the group, and commit its offsets.",
            autocompletion=complete.groups,
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "-f", "--format", help=r"For example '%p %o %k %v\n'. Also %t topic, %T ms, %d date, %h headers, %{column}."
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAMES", help="Read only these columns of a typed topic: a,b.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="PREDICATE", help='Only records that match, as in SQL: "delay > 15".'),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Complete records in binary, for pylog produce --raw."),
    ] = False,
) -> None:
    """Read records until Ctrl-C, --to or -n."""
    if from_beginning and start is not None:
        raise OptionError("use only one of --from-beginning and --from")
    group = invocation.group(group)
    is_endless = to is None and limit is None
    invocation = replace(invocation, output=_output(invocation, form, is_raw=raw, is_endless=is_endless))
    shown_as = None if form is None else RecordFormat(form)
    now_ms = time.time_ns() // 1_000_000
    start = "earliest" if from_beginning else start
    start_place = None if start is None else parse_place(start, now_ms=now_ms, option="--from")
    to_place = None if to is None else parse_place(to, now_ms=now_ms, option="--to")
    if isinstance(to_place, AtOffset) and to == "earliest":
        raise OptionError("--to earliest would print nothing")

    with invocation.admin(beside="consumer") as admin:
        partitions = partitions_of(admin, topics)
        starts = None if start_place is None else resolve_place(admin, start_place, partitions)
        ends = None if to_place is None else resolve_place(admin, to_place, partitions)
        described = topics_of(admin, partitions)
        keys = key_columns(described)
        if shown_as is not None:
            check_columns(shown_as.columns, described, columns)
        is_plain = invocation.output is None and shown_as is None
        hides_topic = is_plain and not raw and len(described) > 1
        if hides_topic and sys.stdout.isatty():
            shown_as, hides_topic = RecordFormat(_WITH_TOPIC), False
        show = _Raw(keys) if raw else _shower(invocation.output, shown_as, keys, hides_topic=hides_topic)
        if isinstance(to_place, FromEnd) and starts is not None and ends is not None:
            ends = {at: max(ends[at], starts[at]) for at in partitions}
    # A group's first positions are committed at once. They must be where this call begins, in case it is killed.
    reset = "earliest" if start_place == AtOffset(EARLIEST) else "latest"
    settings: dict[str, Any] = {"auto.offset.reset": reset}
    if columns is not None:
        settings["columns"] = columns
    if where is not None:
        settings["where"] = where
    with terminable(), invocation.consumer(group=group, **settings) as consumer:
        shown = _Shown(consumer, has_group=group is not None, is_held_back=show.is_held_back)
        if group is not None and not any(":" in topic for topic in topics):
            consumer.subscribe(
                list(dict.fromkeys(topics)), on_assign=shown.begin, on_revoke=shown.give_up, on_lost=shown.forget
            )
        else:
            consumer.assign(partitions)
        for at, offset in (starts or {}).items():
            if at in consumer.assignment():
                consumer.seek(at, offset)
        shown.begin(consumer.assignment())
        batches = _bounded(invocation, consumer, ends, limit)
        _print(invocation, batches, show, shown, ends=ends, progress=_progress(invocation, starts, ends, limit))


def _print(
    invocation: Invocation,
    batches: Iterable[ConsumedBatch | None],
    show: _Lines | _Raw | _Table,
    shown: _Shown,
    *,
    ends: Mapping[TopicPartition, int] | None,
    progress: Progress,
) -> None:
    """Prints all batches, and commits what was printed. A signal ends it between two batches, or inside a write.

    Raises `KeyboardInterrupt` after a signal, when what was printed by then is committed.
    """
    writing = _Writing()
    with ending_between() as end_if_asked, progress:
        try:
            for batch in batches:
                if batch is None:
                    shown.add_positions(ends)
                elif show.is_held_back:
                    show.batch(batch)
                    shown.add(batch, ends)
                else:
                    with writing:
                        end_if_asked()
                        show.batch(batch)
                    shown.add(batch, ends)
                    progress.advance(len(batch))
                shown.maybe_commit()
                end_if_asked()
            _finish(show, writing)
            show.remark(invocation)
        except KeyboardInterrupt:
            _finish(show, writing)
            shown.commit()
            raise
        shown.commit()


def _finish(show: _Lines | _Raw | _Table, writing: _Writing) -> None:
    with writing:
        show.finish()
        sys.stdout.flush()


def _output(invocation: Invocation, form: str | None, *, is_raw: bool, is_endless: bool) -> OutputFormat | None:
    """The output format, None: --raw or -f, or lines.

    Raises `OptionError` where -o is given with --raw or -f, or with a format that prints all records at the end for an
    endless read. A format of the environment or the file gives way there.
    """
    if is_raw and (form is not None or invocation.output_is_option):
        raise OptionError("use only one of --raw, -f and -o: each of them sets the output format")
    if form is not None and invocation.output_is_option:
        raise OptionError("use only one of -f and -o: both set the output format")
    cannot_begin = is_endless and invocation.output in _AT_THE_END
    if cannot_begin and invocation.output_is_option:
        raise OptionError(f"-o {invocation.output} prints all records at the end: add --to end or -n")
    return None if is_raw or form is not None or cannot_begin else invocation.output


def _progress(
    invocation: Invocation,
    starts: Mapping[TopicPartition, int] | None,
    ends: Mapping[TopicPartition, int] | None,
    limit: int | None,
) -> Progress:
    """Shown only while the records go to a file: elsewhere they are seen themselves, or another command writes."""
    total = limit
    if starts is not None and ends is not None:
        between = sum(max(0, ends[at] - start) for at, start in starts.items())
        total = between if limit is None else min(between, limit)
    return Progress(invocation, "Reading", total=total, unit="records", is_wanted=is_file(sys.stdout))


class _Writing:
    """For the time of a write, gives SIGINT and SIGTERM the handlers that they had when this was made.

    A write blocks for as long as nobody reads, so a signal must not wait for its end. What is not written by then is
    dropped, because the flush at the end of the process would block as well.
    """

    def __init__(self) -> None:
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._handlers = {number: handler for number, handler in found.items() if handler is not None}
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, handler) for number, handler in self._handlers.items()}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt):
            give_up_stdout()


class _Shown:
    """What was printed and is not committed yet. ``is_held_back``: batches are printed only at the end."""

    def __init__(self, consumer: Consumer, *, has_group: bool, is_held_back: bool) -> None:
        self._consumer = consumer
        self._has_group = has_group
        self._is_held_back = is_held_back
        self._to: dict[TopicPartition, int] = {}
        self._from: dict[TopicPartition, int] = {}  # where reading began, or what was committed since
        self._commit_due = Deadline(_COMMIT_INTERVAL_S)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """These are read from now on, from their positions."""
        self._from.update({at: self._consumer.position(at) for at in partitions})

    def add(self, batch: ConsumedBatch, ends: Mapping[TopicPartition, int] | None) -> None:
        """The batch is printed, and with it what was passed over, up to ``ends`` (exclusive)."""
        at = batch.topic_partition
        self._to[at] = batch.next_offset if ends is None else min(batch.next_offset, ends.get(at, 0))

    def add_positions(self, ends: Mapping[TopicPartition, int] | None) -> None:
        """Everything that was polled is printed, up to ``ends`` (exclusive). Positions have passed what is no record
        for readers, such as records of aborted transactions, which would count as lag otherwise."""
        for at in self._consumer.assignment() if self._has_group else ():
            position = self._consumer.position(at)
            position = position if ends is None else min(position, ends.get(at, 0))
            if position > self._to.get(at, self._from.get(at, position)):
                self._to[at] = position

    def maybe_commit(self) -> None:
        """Commits every few seconds; also while no records arrive, so that the group has no lag then."""
        if self._to and not self._is_held_back and self._commit_due.expired:
            self.commit()

    def commit(self) -> None:
        if self._has_group and self._to:
            self._consumer.commit(dict(self._to))
        self._from.update(self._to)
        self._to.clear()
        self._commit_due = Deadline(_COMMIT_INTERVAL_S)

    def give_up(self, partitions: list[TopicPartition]) -> None:
        """The partitions are revoked. Their next owner continues after what was printed."""
        if not self._is_held_back:
            try:
                self.commit()
            except FencedError as error:  # the group has moved on: the records will be delivered again
                sys.stderr.write(f"{error}\n")
        self.forget(partitions)

    def forget(self, partitions: list[TopicPartition]) -> None:
        """The partitions belong to another member already."""
        for at in partitions:
            self._to.pop(at, None)
            self._from.pop(at, None)


def _bounded(
    invocation: Invocation,
    consumer: Consumer,
    ends: Mapping[TopicPartition, int] | None,
    limit: int | None,
) -> Iterator[ConsumedBatch | None]:
    """Batches up to ``ends`` (exclusive) or ``limit`` records, whichever comes first; endless without either.

    Also ends when no record has come for the time of the option --timeout, and says so if there was a bound. Yields
    None when there is no more of what was polled up to ``ends``: when no records arrived for a moment, and at the end,
    unless ``limit`` left some.
    """
    idle_limit_s = invocation.timeout_s if invocation.timeout_is_option else None
    left = sys.maxsize if limit is None else limit
    idle = Deadline(idle_limit_s)
    while left > 0:
        if ends is not None:
            held = consumer.assignment()
            reached = [at for at in held if consumer.position(at) >= ends.get(at, 0)]
            if len(reached) == len(held):
                yield None
                return
            consumer.pause(*reached)
        batches = consumer.poll_batches(timeout=_POLL_S)
        if not batches:
            yield None
            if idle.expired:
                bounds = " or ".join(name for name, bound in (("-n", limit), ("--to", ends)) if bound is not None)
                if bounds:
                    invocation.say(f"No record came for {idle_limit_s:g} s (--timeout), before {bounds} was reached.")
                return
        for number, batch in enumerate(batches, 1):
            idle = Deadline(idle_limit_s)
            rows = len(batch)
            if ends is not None:
                rows = batch.rows_before(ends.get(batch.topic_partition, 0))
            taken = min(rows, left)
            left -= taken
            if taken:
                yield batch if taken == len(batch) else batch.slice(0, taken)
            if left <= 0:
                if taken == rows and number == len(batches):
                    yield None
                return


class _Lines:
    """Prints records one by one, in the given format or as a line of JSON."""

    is_held_back = False

    def __init__(
        self, form: RecordFormat | None, keys: KeyColumns, *, as_json: bool = False, hides_topic: bool = False
    ) -> None:
        """``hides_topic``: the lines are of several topics, and do not show which."""
        self._hides_topic = hides_topic
        self._form = form or RecordFormat(r"%v\n")
        self._keys = keys
        self._as_json = as_json
        self._is_default = form is None and not as_json
        self._unclear = 0
        self._with_more = 0

    def batch(self, batch: ConsumedBatch) -> None:
        for record in _records(batch, self._keys):
            if self._as_json:
                write_bytes(json_line(_json_row(record)).encode() + b"\n")
                continue
            if self._is_default:
                self._note(record)
            write_bytes(self._form.show(record))
        sys.stdout.flush()

    def finish(self) -> None:
        """All is printed already."""

    def remark(self, invocation: Invocation) -> None:
        """Says what the lines do not show."""
        if sys.stdout.isatty():
            return
        if self._unclear:
            invocation.say(
                f"Lines and records do not match: {counted(self._unclear, 'value')} with line breaks or null. "
                "Use --raw or -o jsonl."
            )
        if self._with_more:
            invocation.say(
                f"The lines do not show the keys or headers of {counted(self._with_more, 'record')}. "
                "Use --raw or -o jsonl."
            )
        if self._hides_topic:
            invocation.say(f"The lines do not show their topic. Use -f '{_WITH_TOPIC}' or -o jsonl.")

    def _note(self, record: Shown) -> None:
        is_typed = record.row is not None  # its key is a column, and its JSON is never null nor more than a line
        self._unclear += not is_typed and (record.value is None or b"\n" in record.value)
        self._with_more += bool(record.headers) or (not is_typed and record.key is not None)


class _Raw:
    """Writes records in the format of `raw_records`."""

    is_held_back = False

    def __init__(self, keys: KeyColumns) -> None:
        self._keys = keys
        self._has_begun = False

    def batch(self, batch: ConsumedBatch) -> None:
        self._begin()
        for record in _records(batch, self._keys):
            row = record.row
            raw = RawRecord(
                record.partition,
                record.timestamp_ms,
                record.key if row is None else None,
                record.value if row is None else json_line(row).encode(),
                record.headers,
            )
            write_bytes(pack_record(raw))
        sys.stdout.flush()

    def finish(self) -> None:
        """A stream without records has its beginning, too."""
        self._begin()

    def remark(self, invocation: Invocation) -> None:
        """There is nothing to add."""

    def _begin(self) -> None:
        if not self._has_begun:
            write_bytes(MAGIC)
            self._has_begun = True


class _Table:
    """Collects records and prints them together at the end."""

    is_held_back = True

    def __init__(self, form: OutputFormat, keys: KeyColumns) -> None:
        self._form = form
        self._keys = keys
        self._rows: list[dict[str, Any]] = []

    def batch(self, batch: ConsumedBatch) -> None:
        self._rows.extend(_json_row(record) for record in _records(batch, self._keys))
        if len(self._rows) > _MAX_TABLE_ROWS:
            raise OptionError(f"-o {self._form} prints at most {_MAX_TABLE_ROWS:,} records; use -o jsonl or -n")

    def finish(self) -> None:
        rows = self._rows
        # With one topic, its name on every line says nothing; with several, rows would be ambiguous without it.
        only_in_wide = {"timestamp", "headers"} | ({"topic"} if len({row["topic"] for row in rows}) < 2 else set())
        if self._form in {OutputFormat.TABLE, OutputFormat.WIDE}:
            rows = [_cells(row) for row in rows]
        headings = list(dict.fromkeys(key for row in rows for key in row))
        shown = [Column(key, key.removeprefix(_COLUMN).upper(), wide_only=key in only_in_wide) for key in headings]
        print_rows(rows, shown, self._form, name="offset")

    def remark(self, invocation: Invocation) -> None:
        """There is nothing to add."""


def _cells(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's cells. A column may have the name of a record's own field (offset); both are shown."""
    place = {key: _cell(value) for key, value in record.items() if key != "row"}
    return place | {_COLUMN + name: _cell(value) for name, value in record.get("row", {}).items()}


def _cell(value: Any) -> Any:
    """Text and numbers as they are, everything else as JSON."""
    value = plain(value)
    return json_text(value) if isinstance(value, bool | dict | list) else value


def _shower(
    output: OutputFormat | None, form: RecordFormat | None, keys: KeyColumns, *, hides_topic: bool
) -> _Lines | _Table:
    if output in _AT_THE_END:
        assert output is not None
        return _Table(output, keys)
    if output is OutputFormat.NAME:
        return _Lines(RecordFormat(r"%t:%p:%o\n"), keys)
    return _Lines(form, keys, as_json=output is OutputFormat.JSONL, hides_topic=hides_topic)


def _records(batch: ConsumedBatch, keys: KeyColumns) -> Iterator[Shown]:
    # The only place that makes Python objects per record: people read them.
    from pyspark_log.cli.records.json_values import rows_json
    from pyspark_log.client.records import headers_of

    count = len(batch)
    times = batch.timestamps_ms.to_pylist()
    headers = headers_of(batch.headers, count)
    is_typed, key = batch.topic in keys, keys.get(batch.topic)
    columns = batch.batch
    # Bytes and text are shown as Python has them; only JSON can express every value of the other types.
    plain = {f.name: columns.column(f.name).to_pylist() for f in columns.schema if str(f.type) == "binary"}
    if is_typed and key in columns.schema.names:
        plain[key] = columns.column(key).to_pylist()
    rows: Iterable[Any] = rows_json(columns) if is_typed else itertools.repeat(None, count)
    offsets = batch.row_offsets
    for index, row in enumerate(rows):
        yield Shown(
            topic=batch.topic,
            partition=batch.partition,
            offset=offsets[index],
            timestamp_ms=times[index],
            key=plain[name][index] if (name := (key if is_typed else "key") or "") in plain else None,
            value=None if is_typed or "value" not in plain else plain["value"][index],
            headers=headers[index],
            row=row,
            binary={name: values[index] for name, values in plain.items()} if is_typed else {},
        )


def _json_row(record: Shown) -> dict[str, Any]:
    place = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    if record.headers:
        place["headers"] = [list(header) for header in record.headers]
    if record.row is not None:
        return {**place, "row": record.row}
    return {**place, "key": record.key, "value": record.value}
