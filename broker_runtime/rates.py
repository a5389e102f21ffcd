"""A rate that is kept: how fast brokers copy what they lack, and how much a client may take.

Rule: what was taken is spent, even beyond what was left; then nothing more is taken until the debt is paid. So a rate
is kept on average whatever the size of a piece, and nobody has to know that size beforehand. Knows no clock.
"""

from __future__ import annotations

import math
import threading


class RateLimit:
    """So much a second, shared by all who spend. Thread-safe; time is an argument.

    Of time in which nothing was spent one second counts: as much may be taken at once. A debt beyond ``most_debt_s``
    of it is forgiven.
    """

    def __init__(self, per_s: float, *, most_debt_s: float = math.inf) -> None:
        assert per_s > 0
        self._per_s = per_s
        self._most_debt = per_s * most_debt_s
        self._lock = threading.Lock()
        self._left = float(per_s)  # Invariant: at most what one second gives
        self._at_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """After how many ms more may be taken; 0: now."""
        with self._lock:
            self._earn(now_ms)
            return 0 if self._left > 0 else int(-self._left * 1000 / self._per_s) + 1

    def spend(self, amount: float, now_ms: int) -> None:
        """So much was taken."""
        with self._lock:
            self._earn(now_ms)
            self._left = max(self._left - amount, -self._most_debt)

    def _earn(self, now_ms: int) -> None:
        if self._at_ms is not None and now_ms > self._at_ms:
            earned = (now_ms - self._at_ms) * self._per_s / 1000
            self._left = min(self._left + earned, float(self._per_s))
        self._at_ms = now_ms if self._at_ms is None else max(self._at_ms, now_ms)
