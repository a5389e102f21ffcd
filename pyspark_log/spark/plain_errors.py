"""What Spark shows of an error: the text that Python prints for it, which begins with the traceback.

A cause is printed before the traceback of what it caused. So an error of ours gets itself as its cause, without a
traceback: then Spark's message begins with our one line, and the traceback follows for those who need it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import PylogError


@contextmanager
def said_first() -> Iterator[None]:
    """For ``with``, and as a decorator of what Spark calls: errors of ours say first what they have to say."""
    try:
        yield
    except PylogError as error:
        line = copy.copy(error)
        line.__traceback__ = line.__cause__ = line.__context__ = None
        raise error from line
