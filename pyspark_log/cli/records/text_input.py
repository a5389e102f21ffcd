"""Checks of text input: its encoding, which must be UTF-8, and quotes in CSV that are never closed.

Rule: text is checked in the pieces in which it is read, never line by line. Pure, except for reading the file.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from typing import BinaryIO

from broker_runtime.contract.errors import OptionError, SchemaMismatchError

# UTF-32 first: its mark begins with that of UTF-16.
_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

# CSV as Arrow parses it: a quote opens a field only as its first byte, two quotes are one, and what follows the closing
# quote belongs to the field. Each pattern matches a text in one way only (a closing quote is not followed by another),
# so it takes linear time. Possessive quantifiers would say the same, but Python before 3.11.5 matches them wrongly.
_WHOLE_FIELDS = re.compile(rb'(?:(?:"[^"]*(?:""[^"]*)*"(?!")|(?!"))[^,\r\n]*[,\r\n])*')
_IN_QUOTES = re.compile(rb'[^"]*(?:""[^"]*)*')
_REST_OF_FIELD = re.compile(rb"[^,\r\n]*")
_PART_BYTES = 1 << 16


def without_mark(beginning: bytes) -> bytes:
    """Removes UTF-8's byte order mark. Raises `OptionError` for the mark of another encoding."""
    for mark, name in _OTHER_ENCODINGS:
        if beginning.startswith(mark):
            raise OptionError(
                f"the input must be UTF-8, but it is {name} (it begins with {mark.hex(' ').upper()}). Convert it: "
                f"iconv -f {name} -t UTF-8"
            )
    return beginning.removeprefix(codecs.BOM_UTF8)


class OpenQuotes:
    """Finds out whether a CSV text, given piece by piece, ends inside quotes."""

    def __init__(self) -> None:
        self._is_in_field = False
        self._is_in_quotes = False
        self._ends_with_quote = False  # a quote within quotes, which closes them unless another comes next
        self._newlines = 0  # before the next piece
        self._returns = 0  # they end lines where there are no newlines
        self._opened_at = 0

    @property
    def line(self) -> int | None:
        """The line whose quote is still open at the end of the text so far; None if there is none."""
        return self._opened_at if self._is_in_quotes and not self._ends_with_quote else None

    def add(self, piece: bytes) -> None:
        """Adds the next bytes. A match takes memory for every field and quote in what it looks at: a part at a time."""
        for at in range(0, len(piece), _PART_BYTES):
            self._add(piece[at : at + _PART_BYTES])

    def _add(self, piece: bytes) -> None:
        if self._is_in_quotes or b'"' in piece:
            self._look_at(piece)
        else:
            self._is_in_field = piece[-1:] not in b",\r\n"
        self._newlines += piece.count(b"\n")
        self._returns += piece.count(b"\r")

    def _look_at(self, piece: bytes) -> None:
        at = 0
        if self._ends_with_quote:
            self._ends_with_quote = False
            if piece.startswith(b'"'):
                at = 1
            else:
                self._is_in_quotes, self._is_in_field = False, True
        while at < len(piece):
            if self._is_in_quotes:
                at = _end(_IN_QUOTES, piece, at)
                if at == len(piece):
                    return
                self._ends_with_quote = at == len(piece) - 1
                if self._ends_with_quote:
                    return
                at += 1
                self._is_in_quotes, self._is_in_field = False, True
            elif self._is_in_field:
                at = _end(_REST_OF_FIELD, piece, at) + 1
                self._is_in_field = at > len(piece)
            else:
                at = _end(_WHOLE_FIELDS, piece, at)
                if piece[at : at + 1] == b'"':
                    newlines = self._newlines + piece.count(b"\n", 0, at)
                    self._opened_at = 1 + (newlines or self._returns + piece.count(b"\r", 0, at))
                    self._is_in_quotes = True
                    at += 1
                else:
                    self._is_in_field = at < len(piece)


class CsvSource:
    """A CSV file for Arrow to read. For Arrow, a quote that is never closed makes the rest of the file one value; here
    it is a `SchemaMismatchError`. ``name``: the file's name, for messages."""

    closed = False

    def __init__(self, source: BinaryIO, name: str) -> None:
        self.quotes = OpenQuotes()
        self._source = source
        self._name = name
        self._beginning: bytes | None = None
        self._read_ahead = b""

    @property
    def column_names(self) -> list[str]:
        """The names in the first line that is not empty. Reads the beginning of the file if nothing was read yet."""
        if self._beginning is None:
            self._read_ahead = self.read(_PART_BYTES)
        text = (self._beginning or b"").decode(errors="replace")
        return next(csv.reader(io.StringIO(text, newline="")), [])

    def read(self, size: int = -1) -> bytes:
        """Like that of a file, without empty lines at the beginning; empty at the end."""
        if self._read_ahead:
            piece, self._read_ahead = self._read_ahead, b""
            return piece
        piece = self._source.read(size)
        is_first = self._beginning is None
        if is_first:
            piece = without_mark(piece)
        self.quotes.add(piece)
        while is_first and piece and not piece.strip(b"\r\n"):
            piece = self._source.read(size)
            self.quotes.add(piece)
        if is_first:
            piece = piece.lstrip(b"\r\n")
            self._beginning = piece[:_PART_BYTES]
        if not piece and self.quotes.line is not None:
            raise SchemaMismatchError(f"{self._name}: line {self.quotes.line}: the quote that opens here is not closed")
        return piece

    def close(self) -> None:
        """Does nothing: whoever opened the file closes it."""


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    match = pattern.match(piece, at)
    assert match is not None  # each of them also matches the empty string
    return match.end()
