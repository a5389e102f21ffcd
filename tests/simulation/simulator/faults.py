"""When faults strike: again and again, at random intervals, until everything heals."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.simulator.world import SimulatedWorld


class FaultInjector:
    """What the faults of a workload extend. Nothing strikes before `begin`, and nothing after `heal`."""

    def __init__(self, world: SimulatedWorld, *, interval_us: tuple[int, int]) -> None:
        self._rng = world.rng
        self._scheduler = world.scheduler
        self._trace = world.trace
        self._interval_us = interval_us
        self._is_over = False

    def begin(self) -> None:
        """Strikes after one interval, and then again and again."""
        self._scheduler.after(self._between(*self._interval_us), "net", self._strike_again)

    def heal(self) -> None:
        """Nothing goes wrong any more. What extends this mends what is broken."""
        self._is_over = True
        self._trace.line("sim", "healed")

    def strike(self) -> None:
        """Something goes wrong, or nothing, if it must not now."""

    def _strike_again(self) -> None:
        if not self._is_over:
            self.strike()
            self.begin()

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Carries a fault on, unless everything has healed by then."""

        def act() -> None:
            if not self._is_over:
                action()

        self._scheduler.after(delay_us, "net", act)

    def _between(self, least_us: int, most_us: int) -> int:
        return self._scheduler.between(least_us, most_us)
