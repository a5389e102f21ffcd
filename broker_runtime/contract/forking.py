"""What must happen around ``os.fork``: no Flight client may be alive in the parent at that moment.

With one alive, even a fresh client in the child hangs in gRPC. So every link registers here; before a fork all close
their connections (which their users notice only as connections to open again), and no new one is opened until the fork
is done. In the child, clients forget what belonged to the parent: locks, threads, connections, records not yet sent.

Closing is not enough. A Flight object that something still refers to keeps gRPC alive (0 of 6 children worked), and
after the last one gRPC takes some milliseconds to end its threads, on a busy machine some hundreds (5 of 6 children
worked without waiting). So a fork waits for `SETTLE_S` and then, where the system shows threads (Linux), until gRPC's
are gone. A program that uses Arrow Flight by itself may keep them: by a client or a server of its own, or by one that
is garbage, with an exception's traceback for instance, which a fork collects.

Rule: whoever creates a Flight client, or calls one, does so inside `flight_use`; `link` does, and nothing else touches
Flight clients. A fork waits at most `FORK_WAIT_S` for calls that are under way, and as long again for gRPC's threads. A
child that was forked with a call still under way, or with gRPC alive, cannot use Flight: it would hang, so it gets an
error (`check_child`). Only where grpcio is loaded, a gRPC of its own whose threads have the same names, is the child
left to try.

Brokers never fork. They have links too, so the hooks are there; starting a process by `subprocess` calls none.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import ClientStateError
from broker_runtime.contract.waiting import Deadline

FORK_WAIT_S: Final = 3.0
"""How long a fork waits for calls that are under way."""

SETTLE_S: Final = 0.1
"""How long gRPC has at least for ending after the last connection."""

_COLLECT_AFTER_S: Final = 1.0
"""Threads of gRPC that are there for longer may belong to garbage."""

_LOOK_EVERY_S: Final = 0.005
_TASKS: Final = Path("/proc/self/task")
_GRPC_THREADS: Final = ("event_engine", "lifeguard", "timer_manager", "grpc_", "default-exec", "resolver-exec")
"""How the names of gRPC's threads begin."""
_GRPCIO: Final = "grpc._cython.cygrpc"

_CALL_UNDER_WAY: Final = f"while a call to a broker had been under way for {FORK_WAIT_S:g} s"
_GRPC_ALIVE: Final = "while it had an Arrow Flight client or server of its own"
_CURE: Final = "fork before clients are used, or start processes by spawn or forkserver"


class Forkable:
    """Something that lives across a fork, once it is registered. It overrides the hooks in which it does something."""

    def _interrupt_for_fork(self) -> None:
        """In the parent, before: makes threads that are inside Flight calls come out soon. Bounded."""

    def _drop_for_fork(self) -> None:
        """In the parent, before, when threads have come out: lets go of all Flight objects. Bounded."""

    def _after_fork_in_child(self) -> None:
        """In the child, which has this thread only: forgets the parent's threads, locks and connections."""


class _Gate:
    """Counts threads inside Flight calls; a fork shuts it and waits until nobody is inside."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.inside = 0
        self.shut_by: int | None = None  # the thread that forks
        self.used = False  # whether gRPC was used since the last fork
        self.is_grpc_alive = False  # whether gRPC had threads when the fork had waited for their end
        self.forked: str | None = None  # when this process was forked, if it cannot use Flight therefore


class _FlightUse:
    """One use: see `flight_use`. Ends at the gate where it began: a child has another one, and counts from 0."""

    __slots__ = ("_gate",)

    def __init__(self, gate: _Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        with gate.condition:
            while gate.shut_by is not None and gate.shut_by != threading.get_ident():
                gate.condition.wait(FORK_WAIT_S)
            gate.inside += 1
            gate.used = True

    def __exit__(self, *raised: object) -> None:
        gate = self._gate
        with gate.condition:
            gate.inside -= 1
            # Only a fork waits for this. It shuts the gate under this lock before it counts who is inside: if it came
            # after this use began, it is seen here; if it comes after this, it counts one fewer.
            if gate.shut_by is not None:
                gate.condition.notify_all()


_gate = _Gate()
_live: weakref.WeakSet[Forkable] = weakref.WeakSet()  # guarded by the gate: threads open and close all the time
_abandoned: list[object] = []


def register(client: Forkable) -> None:
    """``client`` takes part in forks until it is collected or `unregister`-ed."""
    with _gate.condition:
        _live.add(client)


def unregister(client: Forkable) -> None:
    """``client`` was closed."""
    with _gate.condition:
        _live.discard(client)


def abandon(parents: object) -> None:
    """In a child: keeps what holds Flight objects of the parent alive for ever. Ending them would hang."""
    if parents is not None:
        _abandoned.append(parents)


def check_child() -> None:
    """Before a Flight client is made. Raises `ClientStateError` in a child in which it would hang."""
    if _gate.forked is not None:
        raise ClientStateError(f"this process was forked {_gate.forked}, so it cannot talk to brokers: {_CURE}")


def flight_use() -> AbstractContextManager[None]:
    """Around every use of a Flight object, once. Blocks while another thread forks, which the fork's hooks bound."""
    return _FlightUse(_gate)


def _all_live() -> list[Forkable]:
    with _gate.condition:
        return list(_live)


def _before_fork() -> None:
    with _gate.condition:
        while _gate.shut_by is not None:
            _gate.condition.wait(FORK_WAIT_S)
        _gate.shut_by = threading.get_ident()
    for client in _all_live():
        client._interrupt_for_fork()
    with _gate.condition:
        _gate.condition.wait_for(lambda: _gate.inside == 0, FORK_WAIT_S)
    for client in _all_live():
        client._drop_for_fork()
    _gate.is_grpc_alive = False
    if not _gate.inside:
        if _gate.used:
            time.sleep(SETTLE_S)
            _await_end_of_grpc()
        _gate.is_grpc_alive = _has_grpc_threads() and _GRPCIO not in sys.modules


def _await_end_of_grpc() -> None:
    """Until gRPC has no thread, at most `FORK_WAIT_S`."""
    limit, patience = Deadline(FORK_WAIT_S), Deadline(_COLLECT_AFTER_S)
    has_collected = False
    while _has_grpc_threads() and not limit.expired:
        if patience.expired and not has_collected:
            has_collected = True
            gc.collect()
        limit.sleep(_LOOK_EVERY_S)


def _has_grpc_threads() -> bool:
    return any(name.startswith(_GRPC_THREADS) for name in _thread_names())


def _thread_names() -> Iterator[str]:
    """As the kernel has them, cut after 15 bytes. Empty where there is no /proc."""
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError):  # it has just ended
                yield (task / "comm").read_text(errors="replace")


def _after_fork_in_parent() -> None:
    with _gate.condition:
        _gate.shut_by = None
        _gate.used = _gate.inside > 0  # whoever came inside before the fork still has gRPC's threads
        _gate.condition.notify_all()


def _after_fork_in_child() -> None:
    global _gate
    parent, _gate = _gate, _Gate()
    if parent.inside > 0:
        _gate.forked = _CALL_UNDER_WAY
    elif parent.is_grpc_alive:
        _gate.forked = _GRPC_ALIVE
    else:
        _gate.forked = parent.forked
    for client in _all_live():
        client._after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
