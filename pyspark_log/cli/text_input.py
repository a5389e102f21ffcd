"""Text that is read: its encoding, which must be UTF-8, and quotes of csv that are never closed.

Rule: text is looked at in the pieces in which it is read, never line by line. Pure but for the file that is read.
"""

from __future__ import annotations

import codecs
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

# As Arrow takes csv apart: a quote opens a field only as its first byte, two are one, and what comes behind the closing
# one belongs to the field. Possessive: never tried in another way, so the time is linear.
_WHOLE_FIELDS = re.compile(rb'(?:(?:"(?:[^"]++|"")*+"|(?!"))[^,\r\n]*+[,\r\n])*+')
_IN_QUOTES = re.compile(rb'(?:[^"]++|"")*+')
_REST_OF_FIELD = re.compile(rb"[^,\r\n]*+")


def without_mark(beginning: bytes) -> bytes:
    """The beginning of a text without UTF-8's byte order mark. Raises `OptionError` for another encoding's mark."""
    for mark, name in _OTHER_ENCODINGS:
        if beginning.startswith(mark):
            raise OptionError(
                f"the input is {name} (it begins with {mark.hex(' ').upper()}), and must be UTF-8: "
                f"iconv -f {name} -t UTF-8"
            )
    return beginning.removeprefix(codecs.BOM_UTF8)


class OpenQuotes:
    """Finds out whether a csv that is given piece by piece ends within quotes."""

    def __init__(self) -> None:
        self._is_in_field = False
        self._is_in_quotes = False
        self._ends_with_quote = False  # a quote within quotes, which closes them unless another comes next
        self._newlines = 0  # before the next piece
        self._returns = 0  # which end lines where there are no newlines
        self._opened_at = 0

    @property
    def line(self) -> int | None:
        """The line with the quote that is open at the end of what was given; None: there is none."""
        return self._opened_at if self._is_in_quotes and not self._ends_with_quote else None

    def add(self, piece: bytes) -> None:
        """The next bytes."""
        if self._is_in_quotes or b'"' in piece:
            self._look_at(piece)
        elif piece:
            self._is_in_field = piece[-1:] not in b",\r\n"
        self._newlines += piece.count(b"\n")
        self._returns += piece.count(b"\r")

    def _look_at(self, piece: bytes) -> None:
        at = 0
        if self._ends_with_quote and piece:
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
    """A file of csv for Arrow to read, which takes a quote that is never closed for a value up to the end of the file:
    here that is a `SchemaMismatchError`. ``name``: what the file is called."""

    closed = False

    def __init__(self, source: BinaryIO, name: str) -> None:
        self.quotes = OpenQuotes()
        self._source = source
        self._name = name
        self._has_begun = False

    def read(self, size: int = -1) -> bytes:
        """As of any file; nothing at the end."""
        piece = self._source.read(size)
        if not self._has_begun:
            self._has_begun = True
            piece = without_mark(piece)
        self.quotes.add(piece)
        if not piece and self.quotes.line is not None:
            raise SchemaMismatchError(
                f"{self._name}: line {self.quotes.line}: the quote that opens there is not closed"
            )
        return piece

    def close(self) -> None:
        """The file is its opener's."""


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    match = pattern.match(piece, at)
    assert match is not None  # all of them match nothing as well
    return match.end()
