"""Encodings, and CSV quotes that are never closed."""

from __future__ import annotations

import codecs
import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.records.produce_inputs import line_units
from pyspark_log.cli.records.text_input import OpenQuotes, without_mark


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16-BE", "UTF-32", "UTF-32-BE"])
def test_text_in_another_encoding_is_refused_by_its_byte_order_mark(encoding: str) -> None:
    """Its lines would be stored as garbage."""
    with pytest.raises(OptionError, match=f"must be UTF-8, but it is {encoding[:6]} "):
        without_mark("\ufeffa line\n".removeprefix("" if "BE" in encoding else "\ufeff").encode(encoding))


def test_byte_order_mark_of_utf8_is_skipped() -> None:
    """Windows programs write it."""
    assert without_mark(codecs.BOM_UTF8 + "é\n".encode()) == "é\n".encode()
    assert without_mark(b"\xef\xbb\n") == b"\xef\xbb\n"


@pytest.mark.parametrize("text", ["a\n", "語\nb", "\n語\n"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_lines_of_wide_text_are_distinguished_from_lines_of_bytes(text: str, encoding: str) -> None:
    """Values of a topic without a schema may be any bytes; those that begin like UTF-16 stay as they are."""
    wide = (text if encoding != "utf-16-be" else "\ufeff" + text).encode(encoding)
    with pytest.raises(OptionError, match="must be UTF-8"):
        list(line_units(io.BufferedReader(io.BytesIO(wide)), 1000, may_be_bytes=True))  # type: ignore[arg-type]
    for value in (b"\xff\xfe", b"\xfe\xff\xff", b"\xff\xfe\na"):
        source = io.BufferedReader(io.BytesIO(value))  # type: ignore[arg-type]
        assert [unit.content for unit in line_units(source, 1000, may_be_bytes=True)] == value.split(b"\n")
        with pytest.raises(OptionError):
            list(line_units(io.BytesIO(value), 1000))


@pytest.mark.parametrize(
    "value", [b"\xef\xbb\xbfa", b"\xff\xfeA\0", b"\xfe\xff\0A", b"\xff\xfe\0\0A\0\0\0", b"\xef\xbb\xbf"]
)
def test_lines_of_bytes_in_a_pipe_have_no_byte_order_mark(value: bytes, tmp_path: Path) -> None:
    """In a pipe the first value is like any other; at the beginning of a file there may be a mark."""
    out, into = os.pipe()
    with os.fdopen(into, "wb") as given:
        given.write(value + b"\nb\n")
    with os.fdopen(out, "rb") as source:
        assert [unit.content for unit in line_units(source, 1000, may_be_bytes=True)] == [value, b"b"]
    file = tmp_path / "lines"
    file.write_bytes(value + b"\nb\n")
    with file.open("rb") as source:
        if value.startswith(codecs.BOM_UTF8):
            lines = [unit.content for unit in line_units(source, 1000, may_be_bytes=True)]
            assert lines == [value.removeprefix(codecs.BOM_UTF8), b"b"]
        else:
            with pytest.raises(OptionError, match="must be UTF-8"):
                list(line_units(source, 1000, may_be_bytes=True))


def test_lines_of_json_in_a_pipe_are_text() -> None:
    """Rows of a typed topic are JSON, which is always UTF-8."""
    out, into = os.pipe()
    with os.fdopen(into, "wb") as given:
        given.write(codecs.BOM_UTF8 + b"{}\n")
    with os.fdopen(out, "rb") as source:
        assert [unit.content for unit in line_units(source, 1000)] == [b"{}"]


def open_quote(content: bytes, piece_bytes: int = 1 << 20) -> int | None:
    quotes = OpenQuotes()
    for at in range(0, len(content), piece_bytes):
        quotes.add(content[at : at + piece_bytes])
    return quotes.line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'a,b\n1,"x\ny,z\n', 2),
        (b'a,b\r\n"1\r\n2","x"\r\n"', 4),
        (b'a\r"1"\r"2', 3),
        (b'a\n"x""', 2),
        (b'a\n"x"""', None),
        (b'a\n"x""\n"', None),
        (b'a\nx"y\n', None),
        (b'a\nx"y,"z\n', 2),
        (b'a\n"x"y"z\n', None),
        (b'"', 1),
        (b'""', None),
        (b"", None),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 1 << 20])
def test_line_of_an_unclosed_quote_is_found(content: bytes, line: int | None, piece_bytes: int) -> None:
    """This holds however the file is cut into pieces."""
    assert open_quote(content, piece_bytes) == line


@settings(deadline=None)
@given(st.text('a",\n', max_size=30).map(str.encode), st.integers(1, 7))
@example(b'"""', 2)
@example(b'aaaaa"\n\n"', 5)
def test_quotes_are_open_exactly_where_arrow_reads_on(content: bytes, piece_bytes: int) -> None:
    """Everything after an open quote is one value for Arrow, until that quote is closed."""
    content = b"h\n" + content
    options = pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False, delimiter="\x01")
    # One column: Arrow's commas do not matter here, so they are taken out of the question as well.
    content = content.replace(b",", b";")
    more = b"\nmarked"
    found = pa.csv.read_csv(io.BytesIO(content + more), parse_options=options).column(0).to_pylist()
    assert (open_quote(content, piece_bytes) is not None) == (found[-1] != "marked")
