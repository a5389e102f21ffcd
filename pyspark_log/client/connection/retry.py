"""How long to go on trying, and how long to wait in between.

Rule: every wait in the client ends at a `Deadline`; tries are spaced by a `Backoff`, exponential with jitter so that
many clients of a broker that restarts do not come back in step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable


class Deadline:
    """A moment after which an operation gives up. ``None`` seconds: never (used only where the caller chose so)."""

    __slots__ = ("_clock", "_end_s", "timeout_s")

    def __init__(self, timeout_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._end_s = None if timeout_s is None else clock() + timeout_s

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return self._end_s is not None and self._clock() >= self._end_s

    def remaining_s(self, at_most_s: float | None = None) -> float:
        """Seconds left (0 when expired), at most ``at_most_s``; without any bound a day."""
        bound = 86_400.0 if at_most_s is None else at_most_s
        if self._end_s is None:
            return bound
        return max(0.0, min(bound, self._end_s - self._clock()))


class Backoff:
    """Waits of ``first_s · 2ⁿ`` up to ``limit_s``, each between half and all of that."""

    __slots__ = ("_first_s", "_limit_s", "_random", "_tries")

    def __init__(self, *, first_s: float = 0.02, limit_s: float = 1.0, rng: random.Random | None = None) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._random = rng or random.Random()
        self._tries = 0

    def next_s(self) -> float:
        """The next wait in seconds."""
        full = min(self._limit_s, self._first_s * float(1 << min(self._tries, 30)))
        self._tries += 1
        return full * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Something succeeded: begin small again."""
        self._tries = 0
