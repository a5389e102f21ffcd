"""What one of Spark's Python processes has imported, kept out of its garbage collections.

Spark's Python daemon (`pyspark.daemon`) makes each of its processes collect garbage after each task: it looks at every
object there is, 50 ms of processor with Arrow, pandas and pylog loaded, and the next task waits for it. What is there
after such a collection is no garbage, and need not be looked at again.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_is_kept: Final[dict[int, bool]] = {}
"""By process id, which a fork changes: whether there is nothing left to do. No entry: no task has been there."""


def keep_imports() -> None:
    """Called at the beginning of each task and each decision: at the second of a process, everything that the first
    imported is loaded, and Spark has just collected. Does nothing in processes that Spark's daemon did not fork."""
    process = os.getpid()
    is_kept = _is_kept.get(process)
    if is_kept is None:
        _is_kept[process] = not _is_of_daemon()
    elif not is_kept:
        gc.freeze()
        _is_kept[process] = True


def _is_of_daemon() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
