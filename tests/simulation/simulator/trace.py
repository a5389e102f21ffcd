"""What happened in a run, line by line, and a hash over all of it.

Rule: a line says when, where and what, and holds nothing that differs between two runs of one seed (no address of an
object, no wall clock). Two runs are the same exactly when their digests are. Only the last lines are kept as text.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from tests.simulation.simulator.situations import key


class Trace:
    """The lines of one run. ``now_us`` is simulated time; ``situations``: those that may be counted."""

    def __init__(self, now_us: Callable[[], int], *, keep_lines: int = 400, situations: Collection[str] = ()) -> None:
        self._now_us = now_us
        self._situations = situations
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: deque[str] = deque(maxlen=keep_lines)
        self.count = 0
        self.counts: Counter[str] = Counter()
        """How often what happened, for the summary: faults by kind, records acknowledged."""

    def line(self, actor: str, text: str) -> None:
        """Adds a line."""
        line = f"{self._now_us() / 1e6:10.6f} {actor:<4} {text}"
        self._hash.update(line.encode())
        self._lines.append(line)
        self.count += 1

    def fault(self, kind: str, actor: str, text: str = "") -> None:
        """Adds the line of an injected fault, and counts it."""
        self.counts[f"fault {kind}"] += 1
        self.line(actor, f"*** {kind}{' ' if text else ''}{text}")

    def situation(self, name: str) -> None:
        """Counts a situation that arises (`situations`)."""
        assert name in self._situations, name
        self.counts[key(name)] += 1

    @property
    def digest(self) -> str:
        """Over all lines so far."""
        return self._hash.hexdigest()

    def tail(self, lines: int | None = None) -> str:
        """The last lines as text."""
        kept = list(self._lines)
        return "\n".join(kept if lines is None else kept[-lines:])


class LogLines(logging.Handler):
    """Puts what the brokers log into the trace, as from the one that is running."""

    def __init__(self, trace: Trace, actor: Callable[[], str]) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._actor = actor

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        self._trace.line(self._actor(), f"{level}{record.getMessage()}")


@contextmanager
def logged_to(trace: Trace, actor: Callable[[], str]) -> Iterator[None]:
    """Inside, what brokers log goes into the trace, and nowhere else."""
    logger = logging.getLogger("broker_runtime")
    handler = LogLines(trace, actor)
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
