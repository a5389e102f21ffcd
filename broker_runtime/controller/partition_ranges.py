"""Partition numbers as a log line shows them: ``0-4,7``. One line for a thousand partitions, not a thousand lines."""

from __future__ import annotations

from collections.abc import Iterable


def partition_ranges(numbers: Iterable[int]) -> str:
    """Ascending ranges, both ends included; empty text for no numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
