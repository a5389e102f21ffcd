"""Locks, conditions, events and the clock of brokers in simulated time: who waits for one lets the rest of the world
go on.

They stand in for those of `threading` and `time` while the simulation runs. Rule: the first who waits for a lock is the
first who gets it; of those who wait for a condition anybody goes on first. An observer (`StackScheduler.observing`)
never waits: it looks at things as they are, as nothing else runs.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.simulator.scheduler import SECOND, Scheduler
from tests.simulation.simulator.stacks import Stack, StackScheduler

_PACKAGES = ("broker_runtime", "pyspark_log")


@contextmanager
def simulated_clock(scheduler: Scheduler) -> Iterator[None]:
    """Inside, the product's steady clock is the scheduler's, and so is its sleep."""
    clock = {
        "monotonic": lambda: scheduler.now_us / SECOND,
        "sleep": lambda pause_s: scheduler.block(int(pause_s * SECOND)),
    }
    with _replaced(time, clock):
        yield


@contextmanager
def simulated_locks(scheduler: StackScheduler) -> Iterator[None]:
    """Inside, what the product takes from `threading` is the scheduler's. Ends all that waits at its end."""

    class Lock(SimLock):
        def __init__(self) -> None:
            super().__init__(scheduler, threading.Lock())

    class RLock(SimLock):
        def __init__(self) -> None:
            super().__init__(scheduler, threading.RLock())

    class Condition(SimCondition):
        def __init__(self, lock: Any = None) -> None:
            super().__init__(scheduler, RLock() if lock is None else lock)

    class Event(SimEvent):
        def __init__(self) -> None:
            super().__init__(scheduler)

    with _replaced(threading, {"Lock": Lock, "RLock": RLock, "Condition": Condition, "Event": Event}):
        try:
            yield
        finally:
            scheduler.close()


@contextmanager
def _replaced(real: types.ModuleType, names: dict[str, Any]) -> Iterator[None]:
    """Inside, each module of the product that imports ``real`` has these names of it instead."""
    replacement = types.SimpleNamespace(**{**vars(real), **names})
    users = [module for module in _product(len(sys.modules)) if vars(module).get(real.__name__) is real]
    for module in users:
        setattr(module, real.__name__, replacement)
    try:
        yield
    finally:
        for module in users:
            setattr(module, real.__name__, real)


@functools.cache
def _product(loaded: int) -> list[types.ModuleType]:
    """The product's modules, found again only if the number of ``loaded`` ones has changed."""
    return [module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES]


class SimLock:
    """A `threading.Lock`, or a `threading.RLock`: ``real``, which knows who holds it."""

    __slots__ = ("_passes", "_real", "_scheduler", "_waiting")

    def __init__(self, scheduler: StackScheduler, real: Any) -> None:
        self._scheduler = scheduler
        self._real = real
        self._waiting: list[Stack] = []
        self._passes = 0  # observers inside, though another holds it

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._real.acquire(False):
            return True
        scheduler = self._scheduler
        if scheduler.is_observed or not scheduler.is_in_event:
            self._passes += 1
            return True
        if not blocking:
            return False
        until_us = None if timeout < 0 else scheduler.now_us + math.ceil(timeout * SECOND)  # a moment is not nothing
        while not self._real.acquire(False):
            if until_us is not None and scheduler.now_us >= until_us:
                return False
            scheduler.park(until_us, waiting=self._waiting)
        return True

    def release(self) -> None:
        if self._passes:
            self._passes -= 1
            return
        try:
            self._real.release()
        except RuntimeError:
            if self._scheduler.is_alive:
                raise
            return  # unwound where it waited for it
        if self._waiting:
            self._scheduler.wake(self._waiting[0])

    def locked(self) -> bool:
        """Whether anybody has it, the caller included."""
        is_owned = getattr(self._real, "_is_owned", None)  # of an RLock
        if is_owned is not None and is_owned():
            return True
        if self._real.acquire(False):
            self._real.release()
            return False
        return True

    def __enter__(self) -> bool:
        return self._real.acquire(False) or self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()

    def release_all(self) -> Any:
        """Whoever holds it, however often, holds it no more; for `take_back`."""
        saved = getattr(self._real, "_release_save", self._real.release)()
        if self._waiting:
            self._scheduler.wake(self._waiting[0])
        return saved

    def take_back(self, saved: Any) -> None:
        """As it was held before `release_all`. Waits, if its process lives."""
        self.acquire()
        if hasattr(self._real, "_acquire_restore") and not self._passes:
            self._real.release()
            self._real._acquire_restore(saved)


class SimCondition:
    """A `threading.Condition`."""

    __slots__ = ("_lock", "_scheduler", "_waiting")

    def __init__(self, scheduler: StackScheduler, lock: Any) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._waiting: list[Stack] = []

    def acquire(self, *args: Any) -> bool:
        return self._lock.acquire(*args)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        self._scheduler.note_spin()
        return self._lock.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        if timeout is not None and timeout <= 0:
            return False
        is_own = isinstance(self._lock, SimLock)
        saved = self._lock.release_all() if is_own else self._lock.release()
        try:
            return scheduler.park(
                None if timeout is None else scheduler.now_us + int(timeout * SECOND) + 1, waiting=self._waiting
            )
        finally:
            if scheduler.is_alive:
                if is_own:
                    self._lock.take_back(saved)
                else:  # one that the product makes of such a lock
                    self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end_us = None if timeout is None else self._scheduler.now_us + int(timeout * SECOND)
        while not (result := predicate()):
            left_s = None if end_us is None else (end_us - self._scheduler.now_us) / SECOND
            if left_s is not None and left_s <= 0:
                return result
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        woken = [stack for stack in self._waiting if not stack.is_woken][:n]
        for stack in woken:
            self._scheduler.wake(stack)

    def notify_all(self) -> None:
        woken = [stack for stack in self._waiting if not stack.is_woken]
        if len(woken) > 1:  # who runs first is anybody's guess
            self._scheduler.rng.shuffle(woken)
        for stack in woken:
            self._scheduler.wake(stack)


class SimEvent:
    """A `threading.Event`."""

    __slots__ = ("_is_set", "_scheduler", "_waiting")

    def __init__(self, scheduler: StackScheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[Stack] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for stack in self._waiting:
            self._scheduler.wake(stack)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            until_us = None if timeout is None else self._scheduler.now_us + math.ceil(timeout * SECOND)
            self._scheduler.park(until_us, waiting=self._waiting)
        return self._is_set
