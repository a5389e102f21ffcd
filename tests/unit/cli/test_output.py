"""Results in every format."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid

import pytest
import yaml

from pyspark_log.cli.output import Column, OutputFormat, counted, plain, print_rows
from pyspark_log.cli.records.consume import _Table

COLUMNS = [Column("name", "NAME"), Column("size", "SIZE"), Column("id", "ID", wide_only=True)]
ROWS = [{"name": "flights", "size": 3, "id": "x"}, {"name": "é", "size": None, "id": "y"}]


def shown(capsys: pytest.CaptureFixture[str], form: OutputFormat | None, **arguments: bool) -> str:
    print_rows(ROWS[:1] if arguments else ROWS, COLUMNS, form, name="name", **arguments)
    return capsys.readouterr().out


def test_table_aligns_and_hides_what_is_wide(capsys: pytest.CaptureFixture[str]) -> None:
    """-o table aligns numbers to the right, shows nothing as a dash, and has no colour on a pipe."""
    assert shown(capsys, None) == "NAME     SIZE\nflights     3\né           -\n"


def test_wide_shows_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    """-o wide shows every column."""
    assert shown(capsys, OutputFormat.WIDE).splitlines()[1] == "flights     3  x"


def test_formats_for_machines_show_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """-o json, jsonl, yaml and name show everything."""
    assert json.loads(shown(capsys, OutputFormat.JSON)) == ROWS
    assert [json.loads(line) for line in shown(capsys, OutputFormat.JSONL).splitlines()] == ROWS
    assert yaml.safe_load(shown(capsys, OutputFormat.YAML)) == ROWS
    assert shown(capsys, OutputFormat.NAME) == "flights\né\n"


def test_single_result_is_not_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    """`topic describe -o json` is one object."""
    assert json.loads(shown(capsys, OutputFormat.JSON, one=True)) == ROWS[0]
    assert yaml.safe_load(shown(capsys, OutputFormat.YAML, one=True)) == ROWS[0]


def test_plain_format_shows_values_that_json_cannot() -> None:
    """Every Python value that a row can hold has a text."""
    time = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    value = {"d": decimal.Decimal("1.50"), "t": time, "u": uuid.UUID(int=1), "b": [b"text", b"\xff"], 1: {2}}
    assert json.loads(json.dumps(plain(value))) == {
        "d": "1.50",
        "t": "2026-01-31T12:00:00+00:00",
        "u": "00000000-0000-0000-0000-000000000001",
        "b": ["text", {"base64": "/w=="}],
        "1": [2],
    }


def test_remarks_count_in_singular_and_plural() -> None:
    """1 record, 0 records, 2,000 records."""
    assert [counted(number, "record") for number in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]


@pytest.mark.parametrize(("topics", "has_column"), [(("a", "a"), False), (("a", "b"), True)])
def test_table_of_records_names_the_topic_where_there_are_several(
    topics: tuple[str, str], has_column: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of two topics must not look alike."""
    table = _Table(OutputFormat.TABLE, {})
    place = {"partition": 0, "offset": 0, "timestamp": 0, "key": None, "value": "v"}
    table._rows = [{"topic": topic, **place} for topic in topics]
    table.finish()
    assert ("TOPIC" in capsys.readouterr().out.splitlines()[0].split()) == has_column


def test_table_of_records_shows_nested_values_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """S7: a table shows the same values as -o jsonl, without Python's notation."""
    row = {"s": {"a": None, "b": ["x"]}, "m": [["k", 1]], "e": [], "bin": {"base64": "/w=="}, "yes": True, "t": "x y"}
    table = _Table(OutputFormat.WIDE, {"t": None})
    place = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 7, "headers": [["h", b"1"], ["h", None]]}
    table._rows = [{**place, "row": row}]
    table.finish()
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "HEADERS", "S", "M", "E", "BIN", "YES", "T"]
    assert line.split("  ")[-7:] == [
        '[["h","1"],["h",null]]', '{"a":null,"b":["x"]}', '[["k",1]]', "[]", '{"base64":"/w=="}', "true", "x y"
    ]  # fmt: skip


def test_table_of_untyped_records_shows_bytes_that_are_no_text_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A table shows the same value as -o jsonl."""
    table = _Table(OutputFormat.TABLE, {})
    place = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 7}
    table._rows = [{**place, "key": b"k", "value": b"\xff"}]
    table.finish()
    assert capsys.readouterr().out.splitlines()[1].split() == ["0", "0", "k", '{"base64":"/w=="}']


def test_table_of_records_shows_a_column_that_is_named_like_a_metadata_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A topic may have columns called offset and timestamp; they do not hide the record's own."""
    table = _Table(OutputFormat.TABLE, {"t": None})
    row = {"offset": 99, "topic": "own", "timestamp": 5}
    table._rows = [{"topic": "t", "partition": 0, "offset": 3, "timestamp": 7, "row": row}]
    table.finish()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["PARTITION", "OFFSET", "OFFSET", "TOPIC", "TIMESTAMP"], ["0", "3", "99", "own", "5"]]
