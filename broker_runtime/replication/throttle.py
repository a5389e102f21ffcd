"""How fast a broker fetches partitions it is not in sync with (``replication.throttled.rate``), so that moving
partitions leaves room for those who produce and consume. In-sync replicas are never held up.

Rule: what came is spent, even beyond what there was; then nothing is asked for until the debt is paid.
"""

from __future__ import annotations

import threading


class ReplicationThrottle:
    """A rate in bytes per second, shared by all fetchers of a broker. Thread-safe; time is an argument."""

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._left_bytes = float(bytes_per_s)  # Invariant: at most what one second gives
        self._at_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """In how many ms more may be asked for; 0: now."""
        with self._lock:
            self._earn(now_ms)
            return 0 if self._left_bytes > 0 else int(-self._left_bytes * 1000 / self._bytes_per_s) + 1

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """So many bytes came."""
        with self._lock:
            self._earn(now_ms)
            self._left_bytes -= size_bytes

    def _earn(self, now_ms: int) -> None:
        if self._at_ms is not None and now_ms > self._at_ms:
            earned = (now_ms - self._at_ms) * self._bytes_per_s / 1000
            self._left_bytes = min(self._left_bytes + earned, float(self._bytes_per_s))
        self._at_ms = now_ms if self._at_ms is None else max(self._at_ms, now_ms)
