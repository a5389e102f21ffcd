"""A scheduler whose events can wait in the middle: for ZooKeeper, a disk, a lock, or another thread of their broker.

Code that waits calls `block` or `park`. Its stack stays where it is, with the locks that it holds (see `locks`), and
the rest of the world goes on, other threads of the same actor included, as they do in a real process. A thread is
never entered twice; requests have a thread each (`OWN_THREAD`).

Stacks are those of the operating system's threads, of which exactly one runs: whoever stops running names the next.
Rules: everything random comes from the one generator; equal times run in the order they were asked for. Nothing
sleeps. `close` ends all stacks that still wait.
"""

from __future__ import annotations

import ctypes
import heapq
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulation.simulator.scheduler import ALL_THREADS, OWN_THREAD, Crashed, DefectError, Event, Scheduler

_SPINS = 20_000
_END_OF_TIME = 1 << 62


class SpinError(DefectError):
    """A thread goes round and round, and waits for nothing."""


class _Baton:
    """Who waits for it runs when somebody passes it on, and nobody else runs then."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self) -> None:
        self._gate.acquire()

    def give(self) -> None:
        self._gate.release()


@dataclass(slots=True, eq=False)
class Stack:
    """An event that waits in the middle."""

    event: Event
    baton: _Baton = field(default_factory=_Baton)
    is_parked: bool = True
    is_woken: bool = False


@dataclass(slots=True, eq=False)
class _Resumption:
    """The time when a stack goes on. ``is_wake``: because somebody woke it."""

    stack: Stack
    is_wake: bool


class StackScheduler(Scheduler):
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.spins = 0  # how often a condition was entered since anything else happened
        self.is_observed = False  # an observer looks at the world: no lock keeps it out
        self._nobody = self._current
        self._due: list[tuple[int, int, Event | _Resumption]] = []
        self._parked: dict[Stack, None] = {}
        self._waiting_threads: dict[tuple[str, int], dict[str, int]] = {}  # (actor, life) → that wait in the middle
        self._held_up: dict[tuple[str, int], list[Event]] = {}
        # The operating system's threads
        self._main = _Baton()
        self._running: int | None = None  # the one that has the baton; None: the caller of `run`
        self._idle: list[_Baton] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._failure: BaseException | None = None
        self._until_us = 0
        self._is_done: Callable[[], bool] = bool
        self._is_goal_met = False

    # --- events ---------------------------------------------------------------------------------------------------

    def run(self, until_us: int, *, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Runs events up to that time, or until ``is_done`` after an event; whether that was so.

        Raises what an event raised: `DefectError`, or what is no `Exception`."""
        assert self._running is None, "run is for whoever is outside of all events"
        self._until_us, self._is_done, self._is_goal_met = until_us, is_done, False
        try:
            self._pass_on()
            self._main.wait()
        except BaseException:  # a signal's
            self._abandon()
            raise
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._is_goal_met:
            return True
        self.now_us = max(self.now_us, until_us)
        return is_done()

    def block(self, duration_us: int, *, whole_actor: bool = False) -> None:
        """The running event waits: others run. Raises `Crashed` if its actor died meanwhile.

        ``whole_actor``: no thread of the actor runs meanwhile; else only its own waits.
        """
        end_us = self.now_us + duration_us
        if self._running is None:
            self.run(end_us)
        elif (not self._due or self._due[0][0] > end_us) and end_us <= self._until_us:
            self.now_us = end_us  # nothing happens meanwhile
        else:
            self.park(end_us, whole_actor=whole_actor)
        self.check_alive()

    def park(self, until_us: int | None, *, waiting: list[Stack] | None = None, whole_actor: bool = False) -> bool:
        """The running event waits until `wake`, or for that time; whether it was woken. It is in ``waiting`` meanwhile.

        Raises `Crashed` if its actor died.
        """
        assert self._running is not None, "only an event can wait"
        event, me = self._current, self._running
        self.check_alive()
        stack = Stack(event)
        self._parked[stack] = None
        if until_us is not None:
            self._push(until_us, _Resumption(stack, False))
        if waiting is not None:
            waiting.append(stack)
        threads = self._waiting_threads.setdefault((event.actor, event.life), {})
        thread = ALL_THREADS if whole_actor else event.thread
        threads[thread] = threads.get(thread, 0) + 1
        was_observed, self.is_observed = self.is_observed, False
        self._pass_on()
        stack.baton.wait()
        self._running, self._current, self.is_observed = me, event, was_observed
        if waiting is not None and stack in waiting:
            waiting.remove(stack)
        if threads[thread] > 1:
            threads[thread] -= 1
        else:
            del threads[thread]
        for held_up in self._held_up.pop((event.actor, event.life), ()):
            self._push(self.now_us, held_up)
        if self._is_closed:
            raise Crashed(event.actor)
        self.check_alive()
        return stack.is_woken

    def wake(self, stack: Stack) -> None:
        """The stack goes on now, when whoever runs has ended or waits."""
        if stack.is_parked and not stack.is_woken:
            stack.is_woken = True
            self._push(self.now_us, _Resumption(stack, True))

    @property
    def is_alive(self) -> bool:
        """Whether the running event's actor lives as it did when it began."""
        return self._lives.get(self._current.actor, 0) == self._current.life and not self._is_closed

    def check_alive(self) -> None:
        """Raises `Crashed` if the running event's actor died since it began."""
        if not self.is_alive:
            raise Crashed(self._current.actor)

    @property
    def current_thread(self) -> str:
        """The thread of the event that is running."""
        return self._current.thread

    @property
    def is_in_event(self) -> bool:
        """Whether an event is running, which may wait."""
        return self._running is not None

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Inside, nobody waits for a lock: what is looked at is as it is now."""
        before, self.is_observed = self.is_observed, True
        try:
            yield
        finally:
            self.is_observed = before

    def close(self) -> None:
        """All stacks that wait are unwound, and their threads end."""
        assert self._running is None
        self._is_closed = True
        self._due.clear()
        for stack in list(self._parked):
            if stack.is_parked:
                self._push(self.now_us, _Resumption(stack, False))
        self._until_us, self._is_done = _END_OF_TIME, lambda: False
        while self._due:
            self._pass_on()
            self._main.wait()
        self._failure = None
        for baton in self._idle:
            baton.give()
        for thread in self._threads:
            thread.join(5)

    # --- actors ---------------------------------------------------------------------------------------------------

    def end_life(self, actor: str) -> None:
        """The actor's process died: its events are forgotten, and where it waits `Crashed` is raised."""
        life = self.life_of(actor)
        super().end_life(actor)
        for stack in self._parked:
            if stack.event.actor == actor and stack.event.life == life:
                self._push(self.now_us, _Resumption(stack, False))

    # --- within ---------------------------------------------------------------------------------------------------

    def _push(self, due_us: int, item: Event | _Resumption) -> None:
        self._order += 1
        heapq.heappush(self._due, (due_us, self._order, item))

    def _pass_on(self) -> None:
        """Another thread goes on with the events."""
        if self._idle:
            self._idle.pop().give()
            return
        baton = _Baton()
        thread = threading.Thread(target=self._work, args=(baton,), name=f"events-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, baton: _Baton) -> None:
        """A thread: events, until the baton is given to another, and again when it comes back."""
        while not (self._is_closed and not self._due):
            self._running = threading.get_ident()
            try:
                to = self._run_events()
            except BaseException as failure:  # noqa: BLE001 - the caller of `run` raises it
                self._failure, to = failure, self._main
            if to is self._main:
                self._running = None
            self._idle.append(baton)
            to.give()
            baton.wait()

    def _run_events(self) -> _Baton:
        """Whoever is to run next: a stack that goes on, or the caller of `run`."""
        while self._due and self._due[0][0] <= self._until_us:
            due_us, _, item = heapq.heappop(self._due)
            if isinstance(item, Event):
                if self._run_one(due_us, item) and self._is_done():
                    self._is_goal_met = True
                    return self._main
            elif item.stack.is_parked and self._is_to_go_on(due_us, item):
                item.stack.is_parked = False
                del self._parked[item.stack]
                self.now_us = max(self.now_us, due_us)
                self.spins = 0
                return item.stack.baton
        return self._main

    def _is_to_go_on(self, due_us: int, item: _Resumption) -> bool:
        if item.stack.is_woken and not item.is_wake:
            return self._is_over(item.stack.event)
        event = item.stack.event
        paused_until_us = self._paused_until_us.get(event.actor, 0)
        if paused_until_us > due_us and not self._is_over(event):
            self._push(paused_until_us, item)
            return False
        return True

    def _is_over(self, event: Event) -> bool:
        return self._is_closed or event.life != self._lives.get(event.actor, 0)

    def _is_held_up(self, event: Event) -> bool:
        threads = self._waiting_threads.get((event.actor, event.life))
        if not threads:
            return False
        return (
            event.thread == ALL_THREADS
            or ALL_THREADS in threads
            or (event.thread != OWN_THREAD and event.thread in threads)
        )

    def _run_one(self, due_us: int, event: Event) -> bool:
        """Whether it was run."""
        if event.is_cancelled or self._is_over(event):
            return False
        paused_until_us = self._paused_until_us.get(event.actor, 0)
        if paused_until_us > due_us:
            self._push(paused_until_us, event)
            return False
        if self._is_held_up(event):
            self._held_up.setdefault((event.actor, event.life), []).append(event)
            return False
        self.now_us = max(self.now_us, due_us)
        self._current = event
        self.events_run += 1
        self.spins = 0
        try:
            self.run_event(event)
        except Exception as error:
            if not self._is_over(event):  # else it is what a process meets that is gone
                raise DefectError from error
        except Crashed:
            if not self._is_over(event):
                raise
        finally:
            self._current = self._nobody
        if self._is_closed:
            return False
        self.after_event(event.actor)
        return True

    def note_spin(self) -> None:
        """A condition was entered. Raises `SpinError` where a thread does so for ever, and nothing happens."""
        self.spins += 1
        if self.spins > _SPINS:
            raise SpinError from TimeoutError(f"a thread of {self.current} spins, and waits for nothing")

    def _abandon(self) -> None:
        """Whatever runs is to end: it does not do so by itself."""
        self._is_closed = True
        self._due.clear()
        running, self._running = self._running, None
        if running is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(running), ctypes.py_object(Crashed))
        self._parked.clear()
        self._threads.clear()
