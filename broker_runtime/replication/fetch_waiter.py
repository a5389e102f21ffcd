"""What a thread waits with until one of several partitions changes: records are committed, the log fails, a role ends.

Rule: a waiter only says *that* something changed; its owner looks again. So the owner's loop is always: `add_waiter`,
look, `wait`, look …, `remove_waiter`. Because it looks after adding, no wake-up is lost; because it looks after each
wait, one wake-up too many does no harm.
"""

from __future__ import annotations

from broker_runtime.contract.waiting import Signal


class FetchWaiter:
    """One waiting thread's signal, which a partition sets."""

    __slots__ = ("_signal",)

    def __init__(self) -> None:
        self._signal = Signal()

    def wake(self) -> None:
        """Ends the current or the next `wait`. Called by any thread, under any lock; never blocks. Several before a
        wait count as one."""
        self._signal.set()

    def wait(self, timeout_s: float) -> bool:
        """Blocks until woken or until ``timeout_s`` has passed. Returns whether it was woken."""
        return self._signal.wait(max(0.0, timeout_s))
