"""A rate limit, for replication (`replication.throttled.rate`) and for client quotas.

Rule: callers spend after the fact, also more than is left; then they take nothing more until the debt is paid. So the
average rate holds whatever the size of a piece, and no caller has to know that size beforehand. Knows no clock.
"""

from __future__ import annotations

import math
import threading


class RateLimit:
    """``per_s`` units a second, shared by all callers. Thread-safe; time is an argument.

    At most one second's worth is saved up while nothing is spent. A debt of more than ``most_debt_s`` seconds' worth is
    forgiven.
    """

    def __init__(self, per_s: float, *, most_debt_s: float = math.inf) -> None:
        assert per_s > 0
        self._per_s = per_s
        self._most_debt = per_s * most_debt_s
        self._lock = threading.Lock()
        self._left = float(per_s)  # Invariant: at most one second's worth
        self._at_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """Milliseconds until more may be taken; 0: now."""
        with self._lock:
            self._earn(now_ms)
            return 0 if self._left > 0 else int(-self._left * 1000 / self._per_s) + 1

    def spend(self, amount: float, now_ms: int) -> None:
        """Records that ``amount`` was taken."""
        with self._lock:
            self._earn(now_ms)
            self._left = max(self._left - amount, -self._most_debt)

    def _earn(self, now_ms: int) -> None:
        if self._at_ms is not None and now_ms > self._at_ms:
            earned = (now_ms - self._at_ms) * self._per_s / 1000
            self._left = min(self._left + earned, float(self._per_s))
        self._at_ms = now_ms if self._at_ms is None else max(self._at_ms, now_ms)
