"""Arrow arrays of numbers and texts that are at hand already, made from their memory.

``pa.array``, ``pa.scalar`` and ``pa.repeat`` import pandas at their first call, where it is installed: 0.2 s of
processor and 40 MB in each process, of which a consumer or a task of Spark's may need nothing else.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def number_array(values: np.ndarray) -> pa.Array:
    """``values`` (one dimension, contiguous, of integers) as an array of their type without nulls, not copied."""
    assert values.ndim == 1
    assert values.flags.c_contiguous
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def repeated_text(text: str, rows: int) -> pa.Array:
    """A string array with ``text`` in each of ``rows`` rows: less than 2 GiB in all."""
    data = text.encode()
    assert len(data) * rows < 1 << 31, (text, rows)
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data * rows)])


def empty_rows(rows: int) -> pa.Array:
    """A struct array of ``rows`` rows without fields."""
    return pa.Array.from_buffers(pa.struct([]), rows, [None], children=[])
