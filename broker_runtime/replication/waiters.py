"""A thread that waits until one of several partitions has news: committed records, an error, the end of its hosting.

Rule: a waiter only says *that* something moved; its owner looks again. So the owner's loop is always: `add_waiter`,
look, `wait`, look …, `remove_waiter`. Looking after adding means that no wake-up is lost; looking again after each
wake means that one too many does no harm.
"""

from __future__ import annotations

import threading


class FetchWaiter:
    """One waiting thread's bell. `wake` may be called by any thread, under any lock; it never blocks for long."""

    __slots__ = ("_bell",)

    def __init__(self) -> None:
        self._bell = threading.Event()

    def wake(self) -> None:
        """Ends the present or the next `wait`. Several wakes before a wait are one."""
        self._bell.set()

    def wait(self, timeout_s: float) -> bool:
        """Blocks until woken or ``timeout_s`` has passed. True: woken, and the bell is silent again."""
        rung = self._bell.wait(max(0.0, timeout_s))
        if rung:
            self._bell.clear()
        return rung
