"""How often an idle query asks the brokers.

Spark asks a source every 11 ms whether there is something new, and each answer costs a request (0.3 ms of a core on
either side, measured), because it must be newer than the question. So once nothing came for `_IDLE_CALLS` questions in
a row, each waits a little before it asks: a quarter of the requests for 15 ms more until a record is seen, on average.
Questions that are further apart than `_POLLING_GAP_S` are not Spark's idle loop (another source of the query is busy,
or a trigger has an interval) and never wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_IDLE_CALLS = 50
_POLLING_GAP_S = 0.03
_WAIT_S = 0.03


class IdlePace:
    """Told before each question to the brokers and after it. For one thread."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._idle_calls = 0
        self._answered_at_s = clock()

    def before(self) -> None:
        """Waits where the query is idle."""
        if self._idle_calls >= _IDLE_CALLS and self._clock() - self._answered_at_s < _POLLING_GAP_S:
            self._sleep(_WAIT_S)

    def after(self, *, is_news: bool) -> None:
        """What the answer was."""
        self._idle_calls = 0 if is_news else self._idle_calls + 1
        self._answered_at_s = self._clock()
