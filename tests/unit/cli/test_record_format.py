r"""Formats such as '%k\t%v\n': showing records, reading lines."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.records.record_format import LineParser, RecordFormat, Shown


def shown(**changes: object) -> Shown:
    values: dict[str, object] = {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_700_000_000_123,
        "key": b"k",
        "value": b"v",
    }
    return Shown(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (r"%p %o %k %v\n", "3 42 k v\n"),
        (r"%t\t%T\0", "t\t1700000000123\0"),
        ("%d", "2023-11-14T22:13:20.123+00:00"),
        (r"100%% \\n", "100% \\n"),
        ("", ""),
        ("plain", "plain"),
    ],
)
def test_format_shows_each_field(form: str, text: str) -> None:
    """-f '%p %o %k %v\\n' shows partition, offset, key and value."""
    assert RecordFormat(form).show(shown()).decode() == text


def test_format_shows_nothing_for_null_and_bytes_as_they_are() -> None:
    """Null keys and values are empty; bytes that are no text are not mangled."""
    assert RecordFormat("%k|%v").show(shown(key=None, value=b"\xff\x00")) == b"|\xff\x00"
    record = shown(value=None, row={"b": {"base64": "/w=="}, "s": {"base64": ""}}, binary={"b": b"\xff"})
    assert RecordFormat("%{b}|%{s}").show(record) == b'\xff|{"base64":""}'


def test_format_may_have_bytes_that_are_no_text() -> None:
    """They separate fields as text does. Python gives such an argument lone surrogates."""
    form = os.fsdecode(rb"%k" + b"\xff" + rb"%v\n")
    assert RecordFormat(form).show(shown()) == b"k\xffv\n"
    assert LineParser(form).parse(b"k\xffv") == {"k": b"k", "v": b"v"}


def test_format_shows_times_of_any_year() -> None:
    """A timestamp beyond year 9999 is still a date."""
    assert RecordFormat("%d").show(shown(timestamp_ms=253402300800001)) == b"+10000-01-01T00:00:00.001+00:00"


def test_format_shows_headers_in_order_with_repeats() -> None:
    """Repeated header names survive."""
    assert RecordFormat("%h").show(shown(headers=(("a", b"1"), ("a", None)))) == b"a=1,a="


def test_format_shows_typed_rows_as_json_and_by_column() -> None:
    """S7: a typed record has columns."""
    record = shown(key="UA", value=None, row={"carrier": "UA", "delay": None})
    assert RecordFormat("%k %v").show(record) == b'UA {"carrier":"UA","delay":null}'
    assert RecordFormat("%{carrier}/%{delay}/%{nothing}").show(record) == b"UA//"


@pytest.mark.parametrize("form", ["%z", r"\q", "%{unclosed"])
def test_invalid_format_is_refused(form: str) -> None:
    """The error names unknown fields and escapes."""
    with pytest.raises(OptionError):
        RecordFormat(form)


def test_lines_are_split_at_the_first_separator() -> None:
    """`produce` -f '%k\\t%v\\n' splits lines into key and value."""
    parser = LineParser(r"%k\t%v\n")
    assert parser.parse(b"key\tvalue\twith tab") == {"k": b"key", "v": b"value\twith tab"}
    assert parser.parse(b"\t") == {"k": b"", "v": b""}
    assert LineParser(r"%p %T %v\n").parse(b"2 1700 x") == {"p": b"2", "T": b"1700", "v": b"x"}
    with pytest.raises(ValueError, match="does not match"):
        parser.parse(b"no tab")


@pytest.mark.parametrize("form", ["%v", r"%k%v\n", r"%v %v\n", r"%o %v\n", r"%p\n", r"\n", r"%{a}\n"])
def test_lines_are_refused_by_formats_that_cannot_be_read_back(form: str) -> None:
    """A format that could split a line in two ways is refused before anything is read."""
    with pytest.raises(OptionError):
        LineParser(form)


@given(
    st.binary().filter(lambda key: b"\t" not in key and b"\n" not in key), st.binary().filter(lambda v: b"\n" not in v)
)
def test_lines_round_trip_through_tab_and_newline(key: bytes, value: bytes) -> None:
    """Any text without a separator survives the round trip, bytes that are no text included."""
    assert LineParser(r"%k\t%v\n").parse(key + b"\t" + value) == {"k": key, "v": value}
