"""What Spark shows of our errors: their one line, without the traceback of Spark's Python process.

Spark's processes send an error as Python prints it, traceback first, unless the environment says that tracebacks are to
be hidden. So it says that as long as an error of ours is on its way, and no longer: the same process may go on to run
other people's code. The traceback goes to the process's log (level DEBUG).
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event

_HIDES = "SPARK_HIDE_TRACEBACK"

_logger = logging.getLogger(__name__)


@contextmanager
def plain_errors() -> Iterator[None]:
    """For ``with``, and as a decorator of what Spark calls."""
    try:
        yield
    except PylogError as error:
        if _HIDES not in os.environ:
            event(_logger, "answer spark", level=logging.DEBUG, error=error, exc_info=error)
            os.environ[_HIDES] = "1"
            weakref.finalize(error, os.environ.pop, _HIDES, None).atexit = False
        raise
