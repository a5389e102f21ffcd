"""The verdict over the output of exactly-once queries finds each violation."""

from __future__ import annotations

import pytest

from tests.chaos.exactly_once_verdict import Row, differences, judge

FOUND = [Row(0, 1, "a", 0), Row(0, 2, "b", 0), Row(0, 5, "a", 1), Row(1, 1, "b", 1)]


def verdict(shown: list[Row], found: list[Row]) -> list[str]:
    return judge([0, 1], ["a", "b"], shown=shown, found=found)


def test_rows_that_are_there_once_are_accepted() -> None:
    """S6: offsets may have gaps, and partitions may be read in any order."""
    assert verdict([FOUND[3], *FOUND[:3]], FOUND) == []


@pytest.mark.parametrize(
    ("shown", "found", "said"),
    [
        (FOUND, [*FOUND, Row(0, 9, "a", 1)], "duplicated at the end: row 1 of a at 0@5 and 0@9"),
        (FOUND[1:], FOUND[1:], "missing at the end: row 0 of a"),
        (FOUND[1:], FOUND, "missing by the reader that ran all the time: row 0 of a"),
        ([*FOUND, Row(1, 9, "b", 1)], FOUND, "duplicated by the reader that ran all the time: row 1 of b"),
        ([Row(0, 0, "a", 0), *FOUND], FOUND, "row 0 of a at 0@0 was shown and is not committed"),
        ([*FOUND, FOUND[0]], FOUND, "went back: row 0 of a at 0@1 was shown after offset 5"),
        (FOUND, [*FOUND, Row(1, 2, "c", 0)], "row 0 of c at 1@2 is no input row"),
    ],
)
def test_violation_is_reported(shown: list[Row], found: list[Row], said: str) -> None:
    """S6: a duplicate, a loss, an aborted row that was shown, and a reader that goes back."""
    assert [line for line in verdict(shown, found) if said in line]


def test_many_violations_are_counted() -> None:
    """Few are shown, all are counted."""
    wrong = judge(range(100), ["a"], shown=[], found=[])
    assert "missing at the end: 100 rows (a 100)" in wrong
    assert len(wrong) < 20


def test_two_readers_that_differ_are_reported() -> None:
    """What only one of them finds is named."""
    assert differences(FOUND, FOUND, ("read", "Spark")) == []
    [line] = differences(FOUND, FOUND[1:], ("read", "Spark"))
    assert line == "row 0 of a at 0@1 is found by read and not by Spark"
