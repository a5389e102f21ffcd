"""A limit of how many threads gRPC may start: at present none more, or as many as it likes.

gRPC starts a thread for each call that comes while all others are busy, and nothing in Flight limits that. But a thread
that the system refuses is a call that gRPC refuses by itself (``RESOURCE_EXHAUSTED``), without the interpreter's lock.
gRPC's threads have the stacks that the C library gives by default; where that is larger than any address space, none
can be started. Python's own threads are given the usual size explicitly, and are not affected.

Rule: Arrow ends the process where it needs a thread of its own and gets none. So its pool is started before anything is
refused, and clients, which have a thread each, are made within `allowing_threads`.

Only with glibc (``pthread_setattr_default_np``); elsewhere nothing is limited. For the whole process.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from broker_runtime.contract.arrays import number_array

_ATTRIBUTES_BYTES: Final = 128  # pthread_attr_t, which has 56 or 64
_IMPOSSIBLE_BYTES: Final = 1 << 56  # more than processors can address
_MOST_ROUNDS: Final = 30  # nearly always one; all, where Arrow's threads run already


class _Limit:
    """What is wanted, and by whom. ``lock`` guards it, and is held for a few instructions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.usual_bytes = 0  # the default size of stacks; 0: it is not known
        self.is_refused = False
        self.allowing = 0  # how many are in `allowing_threads`

    def apply(self) -> None:
        """Sets the default size of stacks. Keeps the interpreter's lock."""
        if _c is None or not self.usual_bytes:
            return
        is_refused = self.is_refused and not self.allowing
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        if _c.pthread_attr_init(attributes):
            return
        size_bytes = ctypes.c_size_t(_IMPOSSIBLE_BYTES if is_refused else self.usual_bytes)
        _c.pthread_attr_setstacksize(attributes, size_bytes)
        _c.pthread_setattr_default_np(attributes)
        _c.pthread_attr_destroy(attributes)


_limit = _Limit()
_c = (
    ctypes.PyDLL(None) if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "pthread_setattr_default_np") else None
)


def prepare() -> None:
    """To be called before `refuse_threads`. Threads that Python starts from now on are never refused."""
    if _c is not None and not _limit.usual_bytes:
        _start_arrow_threads()
    with _limit.lock:
        if _c is None or _limit.usual_bytes:
            return
        attributes, size = ctypes.create_string_buffer(_ATTRIBUTES_BYTES), ctypes.c_size_t()
        if not _c.pthread_getattr_default_np(attributes):
            _c.pthread_attr_getstacksize(attributes, ctypes.byref(size))
            _c.pthread_attr_destroy(attributes)
            threading.stack_size(size.value)
            _limit.usual_bytes = size.value


def refuse_threads(is_refused: bool) -> None:
    """While refused, no thread can be started in this process, but Python's own. Does nothing before `prepare`."""
    with _limit.lock:
        _limit.is_refused = is_refused
        _limit.apply()


@contextmanager
def allowing_threads() -> Iterator[None]:
    """Within, any thread can be started, whatever is refused."""
    if not _limit.usual_bytes:  # nothing ever is, as in clients: no lock that a fork could leave behind
        yield
        return
    with _limit.lock:
        _limit.allowing += 1
        _limit.apply()
    try:
        yield
    finally:
        with _limit.lock:
            _limit.allowing -= 1
            _limit.apply()


def _start_arrow_threads() -> None:
    """Arrow starts a thread of its pool when there are more tasks than threads. So the tasks take longer (0.4 ms) than
    to start one; on a busy machine the threads may still be done with them before the last is started: then again."""
    columns = [number_array(np.arange(1 << 13))] * (4 * pa.cpu_count())
    batch = pa.record_batch(columns, names=[str(number) for number in range(len(columns))])
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=6))
    enough = _thread_count() + pa.cpu_count()
    for _ in range(_MOST_ROUNDS):
        with pa.ipc.new_stream(pa.MockOutputStream(), batch.schema, options=options) as writer:
            writer.write_batch(batch)  # a task for each column
        if _thread_count() >= enough:
            return


def _thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
