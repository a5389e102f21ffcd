"""``buffer.memory``: the bytes that wait to be acknowledged, and who waits for room among them.

Rule: the accumulator's lock guards it, and is let go of while somebody waits. Never above its bound, but for one piece
that is larger than the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker_runtime.contract.errors import BufferExhaustedError, ClosedError
from pyspark_log.client.retry import Deadline


class BufferMemory:
    """All methods are called with the lock held."""

    def __init__(self, lock: threading.Lock, *, total_bytes: int, max_block_s: float) -> None:
        self.total_bytes = total_bytes
        self.is_closed = False
        self._reason = ""
        self._freed = threading.Condition(lock)
        self._free_bytes = total_bytes
        self._max_block_s = max_block_s

    def reserve(self, size: int, make_room: Callable[[], int]) -> None:
        """Takes ``size`` bytes; lets go of the lock while it waits for them.

        ``make_room`` is called once before that, and returns how many frames wait for their acknowledgement. Raises
        `BufferExhaustedError` after ``max.block.ms``, `ClosedError`.
        """
        self.check_open()
        if self._free_bytes < size:
            waiting = make_room()
            deadline = Deadline(self._max_block_s)
            while self._free_bytes < min(size, self.total_bytes):
                if deadline.expired:
                    raise BufferExhaustedError(
                        f"buffer.memory={self.total_bytes} stayed full for {self._max_block_s:g} s "
                        f"(max.block.ms); {waiting} frames wait for their acknowledgement"
                    )
                self._freed.wait(deadline.remaining_s())
                self.check_open()
        self._free_bytes -= size

    def release(self, size: int) -> None:
        """Gives ``size`` bytes back."""
        self._free_bytes += size
        self._freed.notify_all()

    def close(self, reason: str = "the producer was closed") -> None:
        """Those who wait, and all later ones, raise `ClosedError` with the ``reason`` that was given first."""
        if not self.is_closed:
            self.is_closed = True
            self._reason = reason
        self._freed.notify_all()

    def check_open(self) -> None:
        """Raises `ClosedError`."""
        if self.is_closed:
            raise ClosedError(self._reason)
