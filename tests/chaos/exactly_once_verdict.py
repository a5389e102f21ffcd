"""What must hold of a topic that exactly-once queries wrote, by all who read it.

1. Every input row is there once for each query, and nothing else.
2. A reader of committed records that ran all the time got every row once, each partition in order.
3. It got nothing that a reader at the end does not find: such a row was aborted, or moved.
4. Two ways to read at the end find the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

_SHOWN: Final = 5


class Row(NamedTuple):
    """A row of the output: where it is, which query wrote it, and the number of its input row."""

    partition: int
    offset: int
    query: str
    number: int

    def __str__(self) -> str:
        return f"row {self.number} of {self.query} at {self.partition}@{self.offset}"


def judge(
    numbers: Collection[int], queries: Collection[str], *, shown: Sequence[Row], found: Sequence[Row]
) -> list[str]:
    """What is wrong, a line each. ``numbers``: of all input rows. ``shown``: what the reader that ran all the time got,
    in order; ``found``: what a reader at the end finds."""
    expected = {(query, number) for query in queries for number in numbers}
    return [
        *_counted(expected, found, "at the end"),
        *_counted(expected, shown, "by the reader that ran all the time"),
        *_in_order(shown),
        *_some(set(shown) - set(found), "was shown and is not committed: aborted, or moved"),
    ]


def differences(some: Iterable[Row], others: Iterable[Row], names: tuple[str, str]) -> list[str]:
    """What one of two readers found and the other did not."""
    first, second = set(some), set(others)
    return [
        *_some(first - second, f"is found by {names[0]} and not by {names[1]}"),
        *_some(second - first, f"is found by {names[1]} and not by {names[0]}"),
    ]


def _counted(expected: Collection[tuple[str, int]], rows: Sequence[Row], where: str) -> list[str]:
    places: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        places.setdefault((row.query, row.number), []).append(row)
    missing = sorted(set(expected) - places.keys())
    made_up = [each[0] for key, each in places.items() if key not in expected]
    twice = [each for each in places.values() if len(each) > 1]
    wrong = [f"missing {where}: row {number} of {query}" for query, number in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        of = ", ".join(f"{query} {count}" for query, count in sorted(Counter(query for query, _ in missing).items()))
        wrong.append(f"missing {where}: {len(missing)} rows ({of})")
    wrong += [f"duplicated {where}: {each[0]} and {each[1].partition}@{each[1].offset}" for each in twice[:_SHOWN]]
    if len(twice) > _SHOWN:
        wrong.append(f"duplicated {where}: {len(twice)} rows")
    return wrong + _some(made_up, f"is no input row, and was found {where}")


def _in_order(shown: Sequence[Row]) -> list[str]:
    last: dict[int, int] = {}
    back = []
    for row in shown:
        if row.offset <= last.get(row.partition, -1):
            back.append(f"went back: {row} was shown after offset {last[row.partition]}")
        last[row.partition] = max(row.offset, last.get(row.partition, -1))
    return back[:_SHOWN]


def _some(rows: Collection[Row], what: str) -> list[str]:
    lines = [f"{row} {what}" for row in sorted(rows)[:_SHOWN]]
    return lines + ([f"{len(rows)} rows: each {what}"] if len(rows) > _SHOWN else [])
