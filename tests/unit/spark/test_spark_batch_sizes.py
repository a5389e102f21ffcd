"""The sizes of the batches that a task passes to Spark: small frames are joined, large ones sliced, rows stay in
order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pyspark_log.spark.range_reading import _of_good_size


def _batches(sizes: list[int], width: int) -> list[pa.RecordBatch]:
    """Batches with these numbers of rows, of one counting column with values of ``width`` bytes."""
    numbers = np.arange(sum(sizes))
    column = pa.array(numbers) if width == 8 else pa.array([f"{number:0{width}}" for number in numbers])
    ends = np.cumsum(sizes, dtype=int).tolist()
    return [pa.record_batch({"n": column.slice(end - size, size)}) for size, end in zip(sizes, ends, strict=True)]


def _made(batches: list[pa.RecordBatch]) -> list[int]:
    """The sizes of the resulting batches, after a check that every row is there, in order."""
    made = list(_of_good_size(batches))
    rows = [value for batch in batches for value in batch.column("n").to_pylist()]
    assert [value for batch in made for value in batch.column("n").to_pylist()] == rows
    return [batch.num_rows for batch in made]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1] * 10, [10]),
        ([2_000] * 6, [10_000, 2_000]),
        ([3_000, 10_000], [3_000, 10_000]),
        ([3, 20_000, 4], [3, 20_000, 4]),
        ([150_000], [65_536, 65_536, 18_928]),
    ],
)
def test_batches_become_neither_tiny_nor_huge(sizes: list[int], expected: list[int]) -> None:
    """Each batch costs Spark the same, whatever its size; every row comes once, in order."""
    assert _made(_batches(sizes, width=100)) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5_000] * 16, [35_000, 35_000, 10_000]),
        ([3, 5_000, 4], [5_007]),
        ([5_000, 40_000, 5_000], [5_000, 40_000, 5_000]),
    ],
)
def test_batches_of_many_rows_are_joined_when_their_columns_are_few(sizes: list[int], expected: list[int]) -> None:
    """With one column of eight bytes out of twenty, copying a frame's part costs less than a batch of its own."""
    assert _made(_batches(sizes, width=8)) == expected


@pytest.mark.parametrize("kind", [pa.bool_(), pa.null()])
def test_batches_of_almost_no_bytes_stay_below_the_row_limit(kind: pa.DataType) -> None:
    """Spark's memory per batch is bounded by rows, too."""
    batches = [pa.record_batch({"n": pa.nulls(size, kind)}) for size in [32_767] * 4 + [500_000]]
    made = [batch.num_rows for batch in _of_good_size(batches)]
    assert max(made) <= 65_536
    assert sum(made) == 4 * 32_767 + 500_000


def test_small_batches_of_large_values_are_joined_by_their_bytes() -> None:
    """8,192 values of 1 MB would be 8 GB in one worker, more than a binary column can hold."""
    value = pa.record_batch({"value": pa.array([b"x" * (1 << 20)], pa.binary())})
    tiny = pa.record_batch({"value": pa.array([b"x"], pa.binary())})
    made = list(_of_good_size([tiny, *[value] * 20, tiny]))
    assert max(batch.nbytes for batch in made) < 10 << 20
    assert sum(batch.num_rows for batch in made) == 22
