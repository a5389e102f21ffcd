"""Simulated time: events on one thread, in an order that the seed decides and nothing else.

An event belongs to an actor (a broker, a client, ``zk``) and to one of its threads. Code that blocks, for ZooKeeper or
for a disk, calls `block`: time passes, and other events run inside the call, as the rest of the world goes on while
this thread waits. A thread is never entered twice; requests have a thread each (`OWN_THREAD`).

Rules: everything random comes from the one generator; equal times run in the order they were asked for. Nothing sleeps.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

MAX_NESTING = 3
MS = 1_000
SECOND = 1_000_000
ALL_THREADS = "*"
OWN_THREAD = ""
"""The event has a thread for itself, as each request that a server handles."""


class Crashed(BaseException):
    """Unwinds the stack of an actor whose process has died. Nothing that runs there may catch it for good."""


class DefectError(BaseException):
    """Something that an event raised and should not have. It passes through whatever code waits meanwhile; what it was
    is its cause."""


@dataclass(slots=True, eq=False)
class Event:
    """Something to be run once, in the life its actor had when it was asked for."""

    actor: str
    thread: str
    life: int
    action: Callable[[], None]
    is_cancelled: bool = False


class Scheduler:
    """See the module. ``run_event`` runs an event's action and deals with what it raises; ``after_event`` is called
    with the actor that did something, for whoever wants to look at the world then."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_us = 0
        self.events_run = 0
        self.run_event: Callable[[Event], None] = lambda event: event.action()
        self.after_event: Callable[[str], None] = lambda actor: None
        self._current = Event("sim", ALL_THREADS, 0, lambda: None)
        self._heap: list[tuple[int, int, Event]] = []
        self._order = 0
        self._busy: list[tuple[str, str]] = []
        self._lives: dict[str, int] = {}
        self._paused_until_us: dict[str, int] = {}
        self._stood_still_until_us: dict[str, int] = {}

    # --- events ---------------------------------------------------------------------------------------------------

    @property
    def current(self) -> str:
        """The actor whose event is running."""
        return self._current.actor

    @property
    def current_event(self) -> Event:
        """The event that is running."""
        return self._current

    def after(self, delay_us: int, actor: str, action: Callable[[], None], *, thread: str = "serve") -> Event:
        """Runs ``action`` as ``actor`` in ``delay_us``, unless the actor's life ends before."""
        event = Event(actor, thread, self._lives.get(actor, 0), action)
        self._push(self.now_us + max(0, int(delay_us)), event)
        return event

    def between(self, least_us: int, most_us: int) -> int:
        """A random time."""
        return least_us if most_us <= least_us else self.rng.randrange(least_us, most_us)

    def run(self, until_us: int, *, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Runs events up to that time, or until ``is_done`` after an event; whether that was so."""
        while self._heap and self._heap[0][0] <= until_us:
            due_us, _, event = heapq.heappop(self._heap)
            self._run_one(due_us, event)
            if is_done():
                return True
        self.now_us = max(self.now_us, until_us)
        return is_done()

    def block(self, duration_us: int, *, whole_actor: bool = False) -> None:
        """The running event waits: others run. Raises `Crashed` if its actor died meanwhile.

        ``whole_actor``: no thread of the actor runs meanwhile; else only its own waits.
        """
        waiting = self._current
        end_us = self.now_us + duration_us
        if len(self._busy) < MAX_NESTING:
            self._busy.append((waiting.actor, ALL_THREADS if whole_actor else waiting.thread))
            put_off: list[tuple[int, int, Event]] = []
            try:
                while self._heap and self._heap[0][0] <= end_us:
                    entry = heapq.heappop(self._heap)
                    if self._is_held_up(entry[2]):
                        put_off.append(entry)
                    else:
                        self._run_one(entry[0], entry[2])
            finally:
                self._busy.pop()
                for entry in put_off:
                    heapq.heappush(self._heap, entry)
        self.now_us = max(self.now_us, end_us)
        self.check_alive()

    def check_alive(self) -> None:
        """Raises `Crashed` if the running event's actor died since it began."""
        if self._lives.get(self._current.actor, 0) != self._current.life:
            raise Crashed(self._current.actor)

    # --- actors ---------------------------------------------------------------------------------------------------

    @property
    def nesting(self) -> int:
        """How many events wait for something while another runs."""
        return len(self._busy)

    def end_life(self, actor: str) -> None:
        """The actor's process died: its events are forgotten, and where it waits `Crashed` is raised."""
        self._lives[actor] = self._lives.get(actor, 0) + 1
        self._paused_until_us.pop(actor, None)

    def life_of(self, actor: str) -> int:
        """How often the actor died."""
        return self._lives.get(actor, 0)

    def pause(self, actor: str, duration_us: int) -> None:
        """The actor stands still (SIGSTOP, a long collection of garbage): its events wait."""
        until_us = max(self._paused_until_us.get(actor, 0), self.now_us + duration_us)
        self._paused_until_us[actor] = self._stood_still_until_us[actor] = until_us

    def paused_until_us(self, actor: str) -> int:
        """When its last pause ended, or will; 0: there was none."""
        return self._stood_still_until_us.get(actor, 0)

    def is_paused(self, actor: str) -> bool:
        """Whether the actor stands still."""
        return self._paused_until_us.get(actor, 0) > self.now_us

    def resume_all(self) -> None:
        """Nobody stands still any more. What waits still comes when it was put off to."""
        self._paused_until_us.clear()

    # --- within ---------------------------------------------------------------------------------------------------

    def _push(self, due_us: int, event: Event) -> None:
        self._order += 1
        heapq.heappush(self._heap, (due_us, self._order, event))

    def _is_held_up(self, event: Event) -> bool:
        for actor, thread in self._busy:
            if actor == event.actor and (ALL_THREADS in (thread, event.thread) or OWN_THREAD != thread == event.thread):
                return True
        return False

    def _run_one(self, due_us: int, event: Event) -> None:
        if event.is_cancelled or event.life != self._lives.get(event.actor, 0):
            return
        paused_until_us = self._paused_until_us.get(event.actor, 0)
        if paused_until_us > due_us:
            self._push(paused_until_us, event)
            return
        self.now_us = max(self.now_us, due_us)
        before, self._current = self._current, event
        self.events_run += 1
        try:
            self.run_event(event)
        except Exception as error:
            raise DefectError from error
        finally:
            self._current = before
        self.after_event(event.actor)
