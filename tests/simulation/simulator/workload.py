"""What a workload brings to the simulator: what a seed means, the world it is played in, and what to expect of many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

from tests.simulation.simulator.outcome import Outcome, carry_out
from tests.simulation.simulator.variants import Variants
from tests.simulation.simulator.world import SimulatedWorld


class Run(Protocol):
    """One run."""

    def run(self) -> None:
        """All of it. Raises `ViolationError`, and what the product raised that it must not."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of run.

    ``name``: what ``--workload`` and mutants call it. ``make_target``: the target of make that runs it. ``situations``:
    those that many seeds must reach. ``variants``: the product broken on purpose. ``plan_of``: the plan of a seed,
    a dataclass with ``brokers``, ``faults`` and the weather. ``make_world``: takes the seed, ``brokers``, ``weather``,
    ``zookeeper_weather`` and ``keep_lines``. ``make_run``: takes the world and the plan.
    """

    name: str
    make_target: str
    situations: tuple[str, ...]
    variants: Variants
    plan_of: Callable[[int], Any]
    make_world: Callable[..., SimulatedWorld]
    make_run: Callable[[Any, Any], Run]

    def run_seed(
        self,
        seed: int,
        *,
        variant: str | None = None,
        faults: tuple[str, ...] | None = None,
        keep_lines: int = 400,
        keep_trace: bool = False,
    ) -> Outcome:
        """Runs a seed to its end or to the first thing that is wrong. Raises nothing but what ends the process.

        ``variant``: with the product broken in this way. ``faults``: these kinds instead of those of the plan; by
        default those that find the variant soonest, if it names any.
        """
        if faults is None and variant is not None:
            faults = self.variants.faults(variant)
        plan = self.plan_of(seed)
        if faults is not None:
            plan = dataclasses.replace(plan, faults=faults)
        with nullcontext() if variant is None else self.variants.broken(variant):
            world = self.make_world(
                seed,
                brokers=plan.brokers,
                weather=plan.weather(),
                zookeeper_weather=plan.zookeeper_weather(),
                keep_lines=keep_lines,
            )
            world.trace.line("sim", f"seed {seed}: {plan}")
            with world.environment():
                run = self.make_run(world, plan).run
                outcome = carry_out(run, seed, world.trace, world.scheduler, keep_trace=keep_trace)
        outcome.counts = world.counts()
        return outcome
