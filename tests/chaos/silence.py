"""The longest times without an acknowledgement: of any record, and for each partition.

A producer waits for all its records now and then, so a partition may also be silent because another one is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Silence:
    """Thread-safe. Times are of one clock, in seconds; ``partition_s`` is by partition, ``all_s`` of all."""

    def __init__(self) -> None:
        self.all_s = 0.0
        self.partition_s: dict[int, float] = {}
        self._last_s = 0.0
        self._last_of_s: dict[int, float] = {}
        self._lock = threading.Lock()

    def begin(self, now_s: float, partitions: Iterable[int]) -> None:
        """From now on acknowledgements are expected."""
        self._last_s = now_s
        self._last_of_s = dict.fromkeys(partitions, now_s)
        self.partition_s = dict.fromkeys(self._last_of_s, 0.0)

    def note(self, now_s: float, partition: int) -> None:
        """A record of the partition was acknowledged."""
        with self._lock:
            self.all_s = max(self.all_s, now_s - self._last_s)
            self.partition_s[partition] = max(self.partition_s[partition], now_s - self._last_of_s[partition])
            self._last_s = self._last_of_s[partition] = now_s
