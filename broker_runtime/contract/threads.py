"""Threads where the system may refuse one: that is an error for one call, or a wait, and never the end of a broker."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

_REFUSED: Final = "can't start new thread"  # what Python says
# Python's own calls let go of the interpreter's lock, for which thousands may wait.
_statx = getattr(ctypes.PyDLL(None), "statx", None) if sys.platform == "linux" else None
_HERE, _LINKS, _STATX_BYTES = -100, 0x4, 256  # AT_FDCWD, STATX_NLINK, sizeof(struct statx)
_LINKS_AT = 16  # __u32 stx_nlink


def thread_count() -> int | None:
    """This process's threads; None where it cannot be known (not Linux). Keeps the interpreter's lock."""
    if _statx is None:
        return None
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(_HERE, b"/proc/self/task", 0, _LINKS, answer):
        return None
    links: int = struct.unpack_from("=I", answer, _LINKS_AT)[0]
    return links - 2  # each thread is a directory, with a link to the one above


def may_start(thread: threading.Thread) -> bool:
    """Starts the thread; False: the system has none to give at present, and this one was not started."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_out_of_threads(error):
            raise
        return False
    return True


def is_out_of_threads(error: BaseException) -> bool:
    """Whether it says that the system has no thread to give."""
    return isinstance(error, RuntimeError) and str(error) == _REFUSED


def run_within(limit_s: float, calls: Mapping[str, Callable[[], object]]) -> dict[str, BaseException | None]:
    """Runs all at once, each on a thread of its own of that name, and returns when all have ended, or after
    ``limit_s``: those that failed, and what they raised, and with None those that have not ended (they go on).

    One that no thread can be started for is run by the caller, without a limit.
    """
    failed: dict[str, BaseException | None] = {}
    deadline_s = time.monotonic() + limit_s

    def run(name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed back; a SystemExit would end the thread unseen
            failed[name] = error

    threads = {name: threading.Thread(target=run, args=(name, calls[name]), name=name, daemon=True) for name in calls}
    for name, thread in threads.items():
        if not may_start(thread):
            run(name, calls[name])
    for thread in threads.values():
        if thread.ident is not None:
            thread.join(max(0.0, deadline_s - time.monotonic()))
    return {name: failed.get(name) for name, thread in threads.items() if name in failed or thread.is_alive()}
