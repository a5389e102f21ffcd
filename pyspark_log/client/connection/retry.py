"""How long to go on trying, and how long to wait in between.

Rule: every wait in the client ends at a `Deadline`; tries are spaced by a `Backoff`, exponential with jitter so that
many clients of a broker that restarts do not come back in step.
"""

from __future__ import annotations

import random
import time
from typing import Final


class Clock:
    """The time that a client goes by. The seam to `time`: tests put another in its place, whose waits take none."""

    __slots__ = ()

    def now_s(self) -> float:
        """Seconds since some moment; never less than before."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread for so long."""
        time.sleep(seconds)


CLOCK: Final = Clock()


class Deadline:
    """A moment after which an operation gives up. ``None`` seconds: never (used only where the caller chose so)."""

    __slots__ = ("_clock", "_end_s", "timeout_s")

    def __init__(self, timeout_s: float | None, *, clock: Clock = CLOCK) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._end_s = None if timeout_s is None else clock.now_s() + timeout_s

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return self._end_s is not None and self._clock.now_s() >= self._end_s

    def remaining_s(self, at_most_s: float | None = None) -> float:
        """Seconds left (0 when expired), at most ``at_most_s``; without any bound a day."""
        bound = 86_400.0 if at_most_s is None else at_most_s
        if self._end_s is None:
            return bound
        return max(0.0, min(bound, self._end_s - self._clock.now_s()))

    def sleep(self, seconds: float) -> None:
        """Blocks for so long, but not beyond the moment."""
        self._clock.sleep(self.remaining_s(seconds))


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
