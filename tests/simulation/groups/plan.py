"""What a seed makes of a run: how many take part, what is done to them, how bad network and ZooKeeper are."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.weather import PlannedWeather, draw_weather
from tests.simulation.simulator.zookeeper import ZooKeeperWeather

_KINDS = (
    "broker killed", "broker stopped", "broker paused", "cut from zookeeper", "session expiry", "zookeeper down",
    "broker isolated", "client cut off", "join", "leave", "client killed", "freeze", "slow release", "no polls",
    "rewind", "other topics", "twin", "partitions added", "topic recreated", "member removed",
    "death at a write", "offsets reset", "port refuses", "zookeeper lags", "stands still in a call",
    "commit held back", "release held back", "succeeded unawares", "reset held back", "commit arrives again",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlannedWeather):
    """See the module. ``partitions``: by topic."""

    brokers: int
    groups: int
    clients: int
    static: float  # how many of the clients are static
    partitions: dict[str, int]
    session_timeout_ms: int
    max_poll_interval_ms: int
    zookeeper_session_timeout_us: int
    duration_us: int
    faults: tuple[str, ...]
    fault_interval_us: tuple[int, int]
    loss: float
    repeats: float
    lateness: float
    ambiguity: float

    def zookeeper_weather(self) -> ZooKeeperWeather:
        weather = PlannedWeather.zookeeper_weather(self)
        return replace(weather, session_timeout_us=self.zookeeper_session_timeout_us)


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"groups plan {seed}")
    is_stormy = rng.random() < 0.6
    return Plan(
        brokers=rng.choice([2, 3, 3]),
        groups=rng.choice([1, 1, 1, 2]),
        clients=rng.randint(2, 5),
        static=rng.choice([0.0, 0.0, 0.3, 1.0]),
        partitions={"t": rng.randint(1, 6), "u": rng.randint(1, 4)},
        session_timeout_ms=rng.choice([2_000, 3_000, 6_000]),
        max_poll_interval_ms=rng.choice([4_000, 6_000, 15_000]),
        zookeeper_session_timeout_us=rng.choice([2, 4, 6]) * SECOND,
        duration_us=rng.randint(20, 45) * SECOND,
        # Few kinds or many: what takes several of one kind in a row is not drowned by the others.
        faults=tuple(rng.sample(_KINDS, rng.choice([2, 4, 9, 9]))),
        fault_interval_us=(300 * MS, rng.choice([2, 4, 8]) * SECOND),
        **draw_weather(rng, is_stormy=is_stormy),
    )
