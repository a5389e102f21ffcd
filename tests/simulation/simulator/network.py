"""A network that delays, loses, repeats and reorders messages, and partitions that cut it in one or both directions.

Rule: a message is delivered in the life its receiver had when it was sent, as a connection breaks with the process at
its end. A caller learns of a refusal only if nobody listens; of everything else that goes wrong, only by a time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

    def life_of(self, actor: str) -> int:
        """How often the actor died."""
        return self._scheduler.life_of(actor)

    def cut(self, source: str, target: str) -> None:
        """Messages from ``source`` to ``target`` are lost from now on."""
        self._cut.add((source, target))

    def mend(self, source: str, target: str) -> None:
        """That link carries everything again."""
        self._cut.discard((source, target))

    def isolate(self, actor: str, others: Iterable[str]) -> None:
        """Messages between the actor and each of the others are lost, in both directions, from now on."""
        for other in others:
            self.cut(actor, other)
            self.cut(other, actor)

    def rejoin(self, actor: str, others: Iterable[str]) -> None:
        """The links between the actor and the others carry everything again, in both directions."""
        for other in others:
            self.mend(actor, other)
            self.mend(other, actor)

    def heal(self) -> None:
        """All links carry everything again."""
        self._cut.clear()

    def calm(self) -> None:
        """Messages are neither lost nor repeated nor late from now on."""
        self.weather.lost = self.weather.repeated = self.weather.late = 0.0

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages that way are lost."""
        return (source, target) in self._cut

    def is_cut_between(self, one: str, other: str) -> bool:
        """Whether messages are lost in one direction or both, so that no connection comes about."""
        return self.is_cut(one, other) or self.is_cut(other, one)

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


class Reply:
    """How the ``source`` of a reply sends it, at any time, to whoever made the call. It gets lost where the process
    that called has ended, as its connection has."""

    __slots__ = ("_call", "_called_in_life", "_network", "_source", "_target", "_thread")

    def __init__(self, network: Network, call: Call, *, source: str, target: str, thread: str) -> None:
        self._network = network
        self._call = call
        self._source = source
        self._target = target
        self._thread = thread
        self._called_in_life = network.life_of(target)

    def answer(self, value: object) -> None:
        """The call has this answer."""
        self._send(lambda: self._call.answer(value))

    def fail(self, code: str) -> None:
        """The call has failed."""
        self._send(lambda: self._call.fail(code))

    def refuse(self) -> None:
        """Nobody listens."""
        self.fail("refused")

    def _send(self, deliver: Callable[[], None]) -> None:
        if self._network.life_of(self._target) == self._called_in_life:
            self._network.send(self._source, self._target, deliver, thread=self._thread)
