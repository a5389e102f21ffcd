"""Threads where the system may have none to give: that is a refusal, or a wait, and never the end of a broker."""

from __future__ import annotations

import threading
from typing import Final

_REFUSED: Final = "can't start new thread"  # what Python says


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
