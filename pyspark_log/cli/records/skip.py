"""The records of an input that are in the log, and those that `pylog produce --skip` skips: numbers from 1.

    1200                     the first 1,200
    1-1200,1203-1203         ranges, both ends included
    @FILE                    a file with either

Rule: only acknowledged records count as being in the log. Pure, except for the files.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from broker_runtime.contract.errors import OptionError

_MOST_SHOWN = 40
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})\Z")


class RecordNumbers:
    """A set of numbers, kept as ranges. ``ranges``: disjoint, ascending, both ends included."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._loose: list[int] = []

    def add(self, number: int) -> None:
        """Adds a number; fastest in ascending order."""
        if self._ranges and not self._loose and number == self._ranges[-1][1] + 1:
            self._ranges[-1] = (self._ranges[-1][0], number)
        else:
            self._loose.append(number)

    def add_range(self, first: int, last: int) -> None:
        """Adds ``first`` to ``last``."""
        if first <= last:
            self._ranges = _merged([*self.ranges, (first, last)])

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges."""
        if self._loose:
            self._ranges = _merged([*self._ranges, *((number, number) for number in self._loose)])
            self._loose = []
        return self._ranges

    @property
    def first_missing(self) -> int:
        """The lowest positive number that is not in the set."""
        ranges = self.ranges
        return ranges[0][1] + 1 if ranges and ranges[0][0] <= 1 else 1

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)


class Skipper:
    """Answers, for ascending numbers, whether each is to be skipped."""

    def __init__(self, numbers: RecordNumbers) -> None:
        self._left = list(reversed(numbers.ranges))

    def skips(self, number: int) -> bool:
        """Whether ``number`` is to be skipped."""
        while self._left and self._left[-1][1] < number:
            self._left.pop()
        return bool(self._left) and self._left[-1][0] <= number


def parse_skip(text: str) -> RecordNumbers:
    """Parses the value of ``--skip``. Raises `OptionError`."""
    if text.startswith("@"):
        try:
            text = "".join(Path(text[1:]).read_text().split())
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--skip {text}: {getattr(error, 'strerror', None) or error}") from None
    numbers = RecordNumbers()
    if re.fullmatch(r"[0-9]{1,18}", text):
        numbers.add_range(1, int(text))
        return numbers
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise OptionError(
                f"--skip {text[:80]!r}: must be a number of records (1200), ranges (1-1200,1203-1203), or @FILE"
            )
        numbers.add_range(int(found[1]), int(found[2]))
    return numbers


def skip_argument(numbers: RecordNumbers) -> str:
    """The value of ``--skip`` for these numbers: text, or where that would be long, a file that is written here."""
    ranges = numbers.ranges
    if len(ranges) <= 1 and numbers.first_missing == len(numbers) + 1:
        return str(len(numbers))
    text = ",".join(f"{first}-{last}" for first, last in ranges)
    if len(ranges) <= _MOST_SHOWN:
        return text
    with tempfile.NamedTemporaryFile("w", prefix="pylog-skip-", suffix=".txt", delete=False) as file:
        file.write(text.replace(",", ",\n") + "\n")
    return f"@{file.name}"


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
