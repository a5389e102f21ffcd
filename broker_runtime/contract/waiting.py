"""Waiting: until when, how long between two tries, until something changes, and on which thread.

    Deadline   a moment after which an operation gives up; what is left of its time
    Backoff    the pauses between tries, exponential with jitter: clients of a broker that restarts do not come in step
    Signal     wakes one thread that waits for something to change
    Worker     runs an object's `step` again and again on a thread of its own, until it is stopped

Rule: every wait ends at a time limit. Nothing else in the broker or in a client computes a deadline, spaces tries,
wakes a thread or runs a loop on one, apart from conditions that guard the data they wait for.

Time comes from a `Clock`, the seam to `time`: a test puts another in its place, whose waits take none.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.events import event
from broker_runtime.contract.threads import is_out_of_threads, may_start

_AGAIN_S: Final = 1.0  # after a step that failed for want of something the system may have again
_DAY_S: Final = 86_400.0

_logger = logging.getLogger(__name__)


class Clock:
    """The time that waits go by."""

    __slots__ = ()

    def now_s(self) -> float:
        """Seconds since some moment; never less than before."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread for so long."""
        time.sleep(seconds)


CLOCK: Final = Clock()


class Deadline:
    """A moment after which an operation gives up. ``None`` seconds: never (used only where the caller chose so)."""

    __slots__ = ("_clock", "_end_s", "timeout_s")

    def __init__(self, timeout_s: float | None, *, clock: Clock = CLOCK) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._end_s = None if timeout_s is None else clock.now_s() + timeout_s

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return self._end_s is not None and self._clock.now_s() >= self._end_s

    def remaining_s(self, at_most_s: float | None = None) -> float:
        """Seconds left (0 when expired), at most ``at_most_s``; without any bound a day."""
        bound = _DAY_S if at_most_s is None else at_most_s
        if self._end_s is None:
            return bound
        return max(0.0, min(bound, self._end_s - self._clock.now_s()))

    def sleep(self, seconds: float) -> None:
        """Blocks for so long, but not beyond the moment."""
        self._clock.sleep(self.remaining_s(seconds))


class Backoff:
    """Pauses of ``first_s · 2ⁿ`` up to ``limit_s``, each between half and all of that."""

    __slots__ = ("_first_s", "_limit_s", "_random", "_tries")

    def __init__(self, *, first_s: float = 0.02, limit_s: float = 1.0, rng: random.Random | None = None) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._random = rng or random.Random()
        self._tries = 0

    def next_s(self) -> float:
        """The next pause in seconds."""
        full = min(self._limit_s, self._first_s * float(1 << min(self._tries, 30)))
        self._tries += 1
        return full * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Something succeeded: begin small again."""
        self._tries = 0


class Signal:
    """Set by any thread, waited for by one. Not reentrant: no signal handler may set it.

    The order that loses no change: the writer makes its change first, and sets the signal afterwards. The reader first
    returns from `wait`, which clears the signal, and looks afterwards. A change during or after the look has set the
    signal again, so the next `wait` returns at once. (If the signal were cleared after the look, a change between the
    look and the clearing would be lost.)
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ends the wait that is under way, or the next one. Never blocks."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether the next `wait` returns at once."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Blocks until the signal is set, up to ``timeout_s``, and clears it. False: it was not set in that time."""
        was_set = self._event.wait(timeout_s)
        if was_set:  # else one that is set just now would be lost to a caller that waits again without a look
            self._event.clear()
        return was_set


class Worker:
    """A thread that calls ``step`` again and again until `stop`. Thread-safe.

    ``step`` returns the seconds to pause before the next call, None or 0 for none; a pause ends early at `wake` and at
    `stop`. A step that blocks elsewhere is ended by ``interrupt``, which `stop` calls on the stopping thread.

    What ``step`` raises is a defect: it goes to the log with its traceback, ``on_defect`` is called with it on the
    worker's thread, and the thread ends. Two kinds are none: that the system has no thread to give, and what is in
    ``retried``; the step is called again after a second (or after ``again_s``).

    ``at_end``: called on the worker's thread when it ends, in whatever way, before ``on_defect``.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        on_defect: Callable[[BaseException], object] = lambda error: None,
        interrupt: Callable[[], object] = lambda: None,
        at_end: Callable[[], object] = lambda: None,
        retried: tuple[type[Exception], ...] = (),
        again_s: float = _AGAIN_S,
    ) -> None:
        """``name``: of the thread, and in the log."""
        self._step = step
        self._on_defect = on_defect
        self._interrupt = interrupt
        self._at_end = at_end
        self._retried = retried
        self._again_s = again_s
        self._stopping = threading.Event()
        self._signal = Signal()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._thread.name

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Starts the thread, once. Raises `RuntimeError` where the system has none to give: see `threads`."""
        self._thread.start()

    def may_start(self) -> bool:
        """As `start`; False: the system has no thread to give at present, and this one may be started later."""
        return may_start(self._thread)

    def wake(self) -> None:
        """Ends the present pause, or the next one. Never blocks."""
        self._signal.set()

    def rest(self, seconds: float) -> bool:
        """For the step: blocks for so long, also if `wake` is called. True, and at once, when it is to stop."""
        return self._stopping.wait(seconds)

    def stop(self) -> None:
        """Ends the thread after the step that it is in; does not wait for it. Idempotent, also before `start`."""
        self._stopping.set()
        self._signal.set()
        self._interrupt()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end. False: it still runs, or is the caller's own. True if it was never started."""
        if self._thread is threading.current_thread():
            return False
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            try:
                while not self._stopping.is_set():
                    pause_s = self._step_or_again()
                    if pause_s:
                        self._signal.wait(pause_s)
            finally:
                self._at_end()
        except BaseException as error:  # noqa: BLE001 - the thread's edge: a SystemExit would end it unseen
            event(_logger, "end thread", level=logging.CRITICAL, exc_info=error, thread=self.name, error=error)
            self._on_defect(error)

    def _step_or_again(self) -> float | None:
        try:
            return self._step()
        except Exception as error:
            if not isinstance(error, self._retried) and not is_out_of_threads(error):
                raise
            event(_logger, "run step", level=logging.WARNING, thread=self.name, error=error)
            return self._again_s
