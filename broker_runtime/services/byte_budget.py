"""How many bytes of requests, or of answers, the broker holds at once.

Rule: bytes are acquired here before they are held for a peer, and released when they are written or no longer needed.
Waiting is bounded. A holder larger than the whole budget is let in alone, so that nothing waits for ever.
"""

from __future__ import annotations

import threading


class ByteBudget:
    """A bounded number of bytes. Thread-safe; not fair beyond the order in which the condition wakes."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._freed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def acquire(self, size_bytes: int, timeout_s: float) -> bool:
        """Takes ``size_bytes``, waiting up to ``timeout_s`` for them. False: they were not free in time."""
        with self._freed:
            if not self._fits(size_bytes) and not self._freed.wait_for(lambda: self._fits(size_bytes), timeout_s):
                return False
            self._used_bytes += size_bytes
            return True

    def release(self, size_bytes: int) -> None:
        """Gives back what `acquire` took."""
        with self._freed:
            self._used_bytes -= size_bytes
            assert self._used_bytes >= 0, "more bytes given back than were taken"
            self._freed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size_bytes <= self._limit_bytes
