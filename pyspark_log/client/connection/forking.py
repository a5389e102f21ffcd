"""What must happen around ``os.fork``: no Flight client may be alive in the parent at that moment.

With one alive, even a fresh client in the child hangs in gRPC. So every connection registers here; before a fork all
are closed (which the parent notices only as connections to open anew), and no new one is opened until the fork is
done. In the child, clients forget what belonged to the parent: locks, threads, connections, records not yet sent.

Closing is not enough: a Flight object that something still refers to keeps gRPC alive (0 of 6 children worked), and
after the last one gRPC takes some milliseconds to end its threads (5 of 6 without waiting, all with `SETTLE_S`).

Rule: whoever creates a Flight client, or calls one, does so inside `flight_use`, and keeps Flight objects in
attributes that are set to None, never in local variables: a traceback would hold them. A fork waits for calls under
way at most `FORK_WAIT_S`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

FORK_WAIT_S = 3.0
"""How long a fork waits for calls that are under way."""


SETTLE_S = 0.1
"""How long gRPC has for ending its threads after the last connection."""


class Forkable(Protocol):
    """Something that lives across a fork."""

    def _interrupt_for_fork(self) -> None:
        """In the parent, before: make threads that are inside Flight calls come out soon. Bounded."""

    def _drop_for_fork(self) -> None:
        """In the parent, before, when threads came out: let go of all Flight objects. Bounded."""

    def _after_fork_in_child(self) -> None:
        """In the child, which has this thread only: forget the parent's threads, locks and connections."""


class _Gate:
    """Counts threads inside Flight calls; a fork shuts it and waits until nobody is inside."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.inside = 0
        self.shut_by: int | None = None  # the thread that forks
        self.used = False  # whether gRPC was used since the last fork


_gate = _Gate()
_live: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(client: Forkable) -> None:
    """``client`` takes part in forks until it is collected or `unregister`-ed."""
    _live.add(client)


def unregister(client: Forkable) -> None:
    """``client`` was closed."""
    _live.discard(client)


@contextmanager
def flight_use() -> Iterator[None]:
    """Around every use of a Flight object. Blocks while another thread forks (bounded by its hooks)."""
    with _gate.condition:
        while _gate.shut_by is not None and _gate.shut_by != threading.get_ident():
            _gate.condition.wait(FORK_WAIT_S)
        _gate.inside += 1
        _gate.used = True
    try:
        yield
    finally:
        with _gate.condition:
            _gate.inside -= 1
            _gate.condition.notify_all()


def _before_fork() -> None:
    with _gate.condition:
        while _gate.shut_by is not None:
            _gate.condition.wait(FORK_WAIT_S)
        _gate.shut_by = threading.get_ident()
    for client in list(_live):
        client._interrupt_for_fork()
    with _gate.condition:
        _gate.condition.wait_for(lambda: _gate.inside == 0, FORK_WAIT_S)
    for client in list(_live):
        client._drop_for_fork()
    if _gate.used:
        time.sleep(SETTLE_S)


def _after_fork_in_parent() -> None:
    with _gate.condition:
        _gate.shut_by = None
        _gate.used = False
        _gate.condition.notify_all()


def _after_fork_in_child() -> None:
    global _gate
    _gate = _Gate()
    for client in list(_live):
        client._after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
