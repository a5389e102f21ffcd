"""A network that delays, loses, repeats and reorders messages, and partitions that cut it in one or both directions.

Rule: a message is delivered in the life its receiver had when it was sent, as a connection breaks with the process at
its end. Whoever asks hears of a refusal only if nobody listens; of everything else that goes wrong, only by a time-out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.simulator.scheduler import MS, SECOND, Scheduler
from tests.simulation.simulator.trace import Trace


@dataclass(slots=True)
class Weather:
    """How bad the network is. Probabilities per message."""

    delay_us: tuple[int, int] = (MS // 2, 3 * MS)
    late: float = 0.0  # a message takes up to late_us instead: later ones pass it
    late_us: int = 2 * SECOND
    lost: float = 0.0
    repeated: float = 0.0


class Network:
    """The links between all actors."""

    def __init__(self, scheduler: Scheduler, trace: Trace, weather: Weather) -> None:
        self.weather = weather
        self._scheduler = scheduler
        self._trace = trace
        self._cut: set[tuple[str, str]] = set()

    def cut(self, source: str, target: str) -> None:
        """Messages from ``source`` to ``target`` are lost from now on."""
        self._cut.add((source, target))

    def mend(self, source: str, target: str) -> None:
        """That link carries everything again."""
        self._cut.discard((source, target))

    def heal(self) -> None:
        """All links carry everything again."""
        self._cut.clear()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages that way are lost."""
        return (source, target) in self._cut

    @property
    def is_cut_anywhere(self) -> bool:
        """Whether any link loses everything."""
        return bool(self._cut)

    def send(
        self,
        source: str,
        target: str,
        deliver: Callable[[], None],
        *,
        may_repeat: bool = False,
        thread: str = "serve",
        what: str = "",
    ) -> None:
        """Delivers a message some time later, once, not at all or (``may_repeat``) twice."""
        rng, weather = self._scheduler.rng, self.weather
        if self.is_cut(source, target):
            return
        if weather.lost and rng.random() < weather.lost:
            self._trace.fault("message lost", source, f"to {target} {what}")
            return
        self._scheduler.after(self._delay_us(), target, deliver, thread=thread)
        if may_repeat and weather.repeated and rng.random() < weather.repeated:
            self._trace.fault("message repeated", source, f"to {target} {what}")
            self._scheduler.after(self._delay_us(), target, deliver, thread=thread)

    def _delay_us(self) -> int:
        rng, weather = self._scheduler.rng, self.weather
        if weather.late and rng.random() < weather.late:
            self._trace.counts["fault message late"] += 1
            return rng.randrange(weather.delay_us[1], weather.late_us)
        return self._scheduler.between(*weather.delay_us)


class Call:
    """A request that waits for its answer: exactly one of ``on_answer`` and ``on_failure`` is called, once."""

    __slots__ = ("_is_over", "_on_answer", "_on_failure", "_timeout")

    def __init__(
        self,
        scheduler: Scheduler,
        actor: str,
        *,
        timeout_us: int,
        thread: str = "serve",
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._is_over = False
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._timeout = scheduler.after(timeout_us, actor, lambda: self.fail("no answer"), thread=thread)

    @property
    def is_over(self) -> bool:
        """Whether it was answered or given up."""
        return self._is_over

    def answer(self, value: object) -> None:
        """The answer arrived."""
        if not self._is_over:
            self._is_over = True
            self._timeout.is_cancelled = True
            self._on_answer(value)

    def fail(self, reason: str) -> None:
        """Nobody answers."""
        if not self._is_over:
            self._is_over = True
            self._timeout.is_cancelled = True
            self._on_failure(reason)
