"""Reading records, with a histogram of a column; writing one."""

from __future__ import annotations

import json
from typing import Any, Final

from broker_runtime.contract.errors import OptionError, RequestError
from broker_runtime.contract.model import TopicDescription
from pyspark_log.cli.records.produce_inputs import InputRecord, json_parse
from pyspark_log.console import formats
from pyspark_log.console.browsing import (
    DEFAULT_ROWS,
    MOST_ROWS,
    NOTHING,
    Browsed,
    Wanted,
    browse,
    column_names,
    histogram,
    rows_that_fit,
    split_names,
)
from pyspark_log.console.visit import Done, Page, Visit, number_of

_NEWEST: Final = "-"
_SEND_LIMIT_S: Final = 10.0


def records(visit: Visit) -> Page:
    """Records from a place on, as a table."""
    described = visit.connection.admin.describe_topic(visit.parts["topic"])
    query = visit.query
    asked = visit.number("rows", DEFAULT_ROWS, least=1, most=MOST_ROWS)
    columns = tuple(split_names(query.get("columns", "")))
    rows = rows_that_fit(asked, len(columns or column_names(described)))
    partition = query.get("partition", "").strip()
    start = query.get("from", "").strip()
    wanted = Wanted(
        start=start or f"-{_share(rows, described, partition)}",
        partition=number_of(partition, "partition", 0) if partition else None,
        where=query.get("where", "").strip(),
        columns=columns,
        rows=rows,
        newest_first=not start,
    )
    column = query.get("histogram", "")
    if column and column not in column_names(described):
        raise OptionError(f"histogram: there is no column {column[:80]!r}")
    problem = ""
    try:
        found = browse(visit.connection, described, wanted)
    except RequestError as error:  # what was typed; the form stays
        found, problem = NOTHING, error.message
    is_following = query.get("follow") == "1" and not start
    return Page(
        template="records.html",
        title=f"Records of {described.name}",
        section="/topics",
        every_s=3 if is_following and not problem else 0,
        status=400 if problem else 200,
        values={
            "topic": described, "found": found, "wanted": wanted, "start": start, "column": column,
            "columns": column_names(described), "columns_text": query.get("columns", ""), "follow": is_following,
            "bars": _bars(described, found, column), "most_rows": MOST_ROWS, "later": _later(found, wanted),
            "example": _example(described), "problem": problem, "asked": asked,
        },
    )  # fmt: skip


def _share(rows: int, topic: TopicDescription, partition: str) -> int:
    """How many of the newest records each partition shows."""
    filled = sum(each.end > each.log_start for each in topic.partitions)
    return max(1, rows if partition else rows // max(1, filled))


def _bars(topic: TopicDescription, found: Browsed, column: str) -> list[Any]:
    if column not in found.values:
        return []
    is_time = topic.schema is not None and str(topic.schema.field(column).type).startswith("timestamp")
    return list(histogram(found.values[column], is_time=is_time))


def _later(found: Browsed, wanted: Wanted) -> int | None:
    """Where the next page of one partition begins; None: there is none."""
    return None if wanted.partition is None else found.next_offsets.get(wanted.partition)


def _example(topic: TopicDescription) -> str:
    """A predicate on a column that the topic has."""
    fields = list(topic.schema) if topic.schema is not None else []
    for field in fields:
        if str(field.type).startswith(("int", "double", "float")):
            return f"{field.name} > 100"
    return next((f"{field.name} LIKE 'a%'" for field in fields if str(field.type) == "string"), "")


def produce_form(visit: Visit) -> Page:
    """The form that writes one."""
    described = visit.connection.admin.describe_topic(visit.parts["topic"])
    skeleton = "" if described.schema is None else json.dumps(dict.fromkeys(described.schema.names), indent=1)
    return Page(
        template="produce.html",
        title=f"Write a record to {described.name}",
        section="/topics",
        values={"topic": described, "skeleton": skeleton},
    )


def send(visit: Visit) -> Done:
    """Writes a record, and waits until it is acknowledged."""
    described = visit.connection.admin.describe_topic(visit.parts["topic"])
    form = visit.form
    record = _record(described, form.get("value", ""), form.get("key", ""))
    headers = [_header(line) for line in filter(None, map(str.strip, form.get("headers", "").splitlines()))]
    partition = form.get("partition", "").strip()
    limit_ms = round(_SEND_LIMIT_S * 1000)
    with visit.connection.producer(**{"max.block.ms": limit_ms, "delivery.timeout.ms": limit_ms}) as producer:
        future = producer.send(
            described.name,
            record.value,
            record.key,
            partition=number_of(partition, "partition", 0) if partition else None,
            headers=headers,
        )
        producer.flush(_SEND_LIMIT_S)
        written = future.result(_SEND_LIMIT_S)
    path = f"/topics/{formats.segment(described.name)}/records"
    return Done(
        path + formats.query(partition=written.partition, **{"from": written.offset}),
        f"Wrote a record: partition {written.partition}, offset {written.offset:,}.",
    )


def _record(topic: TopicDescription, value: str, key: str) -> InputRecord:
    if topic.schema is None:
        return InputRecord(value.encode(), key.encode() or None)
    try:
        return json_parse(topic)(value.encode())
    except ValueError as error:
        raise OptionError(f"the record {error}") from None


def _header(line: str) -> tuple[str, bytes]:
    name, colon, value = line.partition(":")
    if not colon:
        raise OptionError(f"headers: {line[:80]!r} must be NAME: VALUE")
    return name.strip(), value.strip().encode()
