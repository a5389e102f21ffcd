"""No thread can be started where that is refused, but Python's own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

_IS_LIMITED = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "pthread_setattr_default_np")
_PROGRAM = """
import ctypes, threading
import pyarrow as pa
from broker_runtime.contract.thread_limit import allowing_threads, prepare, refuse_threads

start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda argument: None)
c = ctypes.CDLL(None)

def started():
    thread = ctypes.c_ulong()
    failed = c.pthread_create(ctypes.byref(thread), None, start, None)
    if not failed:
        c.pthread_join(thread, None)
    return not failed

def runs():
    ran = []
    thread = threading.Thread(target=lambda: ran.append(1))
    thread.start()
    thread.join()
    return bool(ran)

def decompresses():
    columns = [pa.array([bytes(1 << 16)]) for _ in range(64)]
    batch = pa.record_batch(columns, names=[str(number) for number in range(64)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_all().num_columns == 64

refuse_threads(True)  # before `prepare` it does nothing
print(started())
prepare()
print(started(), runs())
refuse_threads(True)
print(started(), runs(), decompresses())
with allowing_threads():
    print(started())
print(started())
prepare()  # by another server of the process
refuse_threads(False)
print(started(), runs())
"""

_ALL_STARTED = """
import os
import pyarrow as pa
from broker_runtime.contract.thread_limit import prepare

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
prepare()
print(threads() - before == pa.cpu_count())
"""


def test_threads_are_refused_but_those_of_python_and_of_arrow() -> None:
    """In a process of its own, as it is for all of it."""
    refused = "False" if _IS_LIMITED else "True"
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    expected = ["True", "True", "True", refused, "True", "True", "True", refused, "True", "True"]
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.parametrize("processors", [1, 2, 48])
def test_arrow_has_all_its_threads_before_any_is_refused(processors: int) -> None:
    """Also where it takes a thread longer to start than the others to do what there is to do: more threads than
    processors. A decompression that needs one more would fail."""
    if not _IS_LIMITED:  # none ever is
        return
    done = subprocess.run(
        [sys.executable, "-c", _ALL_STARTED], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(processors)},
    )  # fmt: skip
    assert done.stdout.split() == ["True"], done.stderr
