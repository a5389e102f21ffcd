"""Arrays made from memory are what pyarrow would make."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from broker_runtime.contract.arrays import empty_rows, number_array, repeated_text


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_numbers_keep_their_type_and_are_not_copied(kind: type, count: int) -> None:
    values = np.arange(-5, count - 5, dtype=kind)
    made = number_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values))
    assert count == 0 or made.buffers()[1].address == values.ctypes.data


def test_numbers_with_gaps_between_them_are_refused() -> None:
    """Arrow would read what lies between."""
    with pytest.raises(AssertionError):
        number_array(np.arange(10)[::2])


@pytest.mark.parametrize("text", ["", "flights", "Größe", "€" * 80])
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_text_is_in_each_row(text: str, rows: int) -> None:
    made = repeated_text(text, rows)
    made.validate(full=True)
    assert made.equals(pa.array([text] * rows, pa.string()))


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_rows_without_fields_are_counted(rows: int) -> None:
    made = empty_rows(rows)
    made.validate(full=True)
    assert made.equals(pa.array([{}] * rows, pa.struct([])))
