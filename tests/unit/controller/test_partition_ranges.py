"""Partition numbers in log lines."""

import pytest

from broker_runtime.controller.partition_ranges import partition_ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 1, 4, 5, 6], "0-1,4-7"), (range(1000), "0-999"), ([2, 2], "2")],
)
def test_partition_numbers_are_shown_as_ranges(numbers, text):
    assert partition_ranges(numbers) == text
