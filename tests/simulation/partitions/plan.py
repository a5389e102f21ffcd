"""What a seed makes of a run: how large the cluster is, what is done to it, how bad network and ZooKeeper are."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.weather import PlannedWeather, draw_weather
from tests.simulation.simulator.zookeeper import ZooKeeperWeather

_KINDS = (
    "kill", "power loss", "crash at a write", "restart", "pause", "partition", "isolate", "cut from zookeeper",
    "session expiry", "zookeeper down", "lagging zookeeper",
    "clock jump", "slow disk", "stalled fsync", "all lose power",
    "disk error", "bit flip",
    "stop", "broker added", "move", "cancelled move", "election", "deletion",
)  # fmt: skip
_DIRECTED = (
    "controller deposed", "back and forth", "outcome lost", "session ends",
    "disk lost", "all end", "older copy", "only disk lost", "failed fsync", "bit flip",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steered:
    """A seed that is steered to one kind of fault, with the cluster that it needs. ``beside``: how many other kinds
    there are at most. ``replicas`` None: two or three. ``is_busy``: many batches are on their way."""

    kind: str
    beside: int = 1
    flush_modes: tuple[str, ...] = ("ack", "ack", "ack", "interval", "os")
    replicas: int | None = None
    min_in_sync: tuple[int | None, ...] = (None, 2)
    is_busy: bool = False
    is_stormy: bool = False
    longer_us: int = 0


_ANY = _Steered(kind="")
_STEERED = {
    8: _Steered(
        kind="who kept its power damaged", beside=0, flush_modes=("interval",), replicas=2, min_in_sync=(None,)
    ),
    10: _Steered(kind="all but one lose power", flush_modes=("interval", "os")),
    11: _Steered(kind="outcome of leaving lost", replicas=2, min_in_sync=(2,), is_busy=True),
    13: _Steered(kind="all end, but one for ever", flush_modes=("ack",), longer_us=20 * SECOND),
    14: _Steered(kind="disk full", beside=2, is_stormy=True),
    16: _Steered(kind="leader lost in a move", replicas=2),
    17: _Steered(kind="producers forgotten", is_busy=True),
    19: _Steered(kind="all lose power, without fsyncs", beside=0, flush_modes=("interval", "os")),
    20: _Steered(kind="first one damaged", flush_modes=("ack",), replicas=3),
    22: _Steered(kind="outcome of joining lost", replicas=2, min_in_sync=(1,), is_busy=True),
    23: _Steered(kind="only disk given up", beside=0, flush_modes=("ack",), replicas=2, min_in_sync=(1,), is_busy=True),
    25: _Steered(kind="successor killed", beside=0, flush_modes=("interval", "os"), longer_us=20 * SECOND),
    26: _Steered(kind="copy of a moment ago", beside=0, flush_modes=("ack",), is_busy=True, longer_us=20 * SECOND),
    27: _Steered(
        kind="target without power",  # which leaves one replica
        beside=0,
        flush_modes=("interval", "os"),
        replicas=2,
        min_in_sync=(None,),
        longer_us=20 * SECOND,
    ),
    28: _Steered(kind="failed one back first", beside=0, flush_modes=("interval", "os"), longer_us=20 * SECOND),
    29: _Steered(
        kind="failed ones outlive the others", beside=0, flush_modes=("interval", "os", "ack"), longer_us=20 * SECOND
    ),
}
"""By the remainder that a seed leaves when divided by thirty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlannedWeather):
    """See the module."""

    brokers: int
    assignment: tuple[tuple[int, ...], ...]  # of each partition its replicas
    flush_mode: str
    segment_bytes: int
    value_bytes: int
    producers: int
    plain_producers: frozenset[int]
    consumers: int
    batches: int
    produce_every_us: int
    min_in_sync: int | None
    duration_us: int
    faults: tuple[str, ...]
    fault_interval_us: tuple[int, int]
    loss: float
    repeats: float
    lateness: float
    ambiguity: float
    late_watches: float
    sync_us: tuple[int, int]

    def zookeeper_weather(self) -> ZooKeeperWeather:
        return replace(PlannedWeather.zookeeper_weather(self), late_watch=self.late_watches)

    def topic_config(self) -> dict[str, str]:
        """The topic's settings."""
        return {
            "flush.mode": self.flush_mode,
            "segment.bytes": str(self.segment_bytes),
            "max.message.bytes": str(min(self.segment_bytes, 1 << 20)),
            "retention.ms": "-1",
            **({} if self.min_in_sync is None else {"min.insync.replicas": str(self.min_in_sync)}),
        }


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"plan {seed}")
    is_stormy = rng.random() < 0.6
    kinds = [kind for kind in _KINDS if rng.random() < 0.4]
    if seed % 3 == 0:  # steered to one situation, with little else beside it
        kinds = [_DIRECTED[seed // 3 % len(_DIRECTED)], *rng.sample(kinds, min(len(kinds), 2))]
        is_stormy = is_stormy and rng.random() < 0.3
    steered = _STEERED.get(seed % 30, _ANY)
    if steered is not _ANY:
        kinds = [steered.kind, *rng.sample(kinds, min(len(kinds), steered.beside))]
        is_stormy = is_stormy and steered.is_stormy
    is_busy = steered.is_busy or kinds[:1] == ["back and forth"]
    brokers = 3
    replicas = list(range(1, brokers + 1))
    factor = steered.replicas or rng.choice([2, 3, 3])
    assignment = tuple(tuple(rng.sample(replicas, factor)) for _ in range(rng.randint(1, 3)))
    return Plan(
        brokers=brokers,
        assignment=assignment,
        flush_mode=rng.choice(steered.flush_modes),
        segment_bytes=rng.choice([4 << 10, 16 << 10, 1 << 20]),
        value_bytes=rng.choice([0, 0, 300]),
        producers=2,
        plain_producers=frozenset({1}) if rng.random() < 0.3 else frozenset(),
        consumers=rng.randint(1, 2),
        batches=rng.randint(15, 40) * (3 if is_busy else 1),
        produce_every_us=rng.choice([150, 250, 500]) * MS,
        min_in_sync=rng.choice(steered.min_in_sync),
        duration_us=rng.randint(12, 30) * SECOND + steered.longer_us,
        faults=tuple(kinds),
        fault_interval_us=(500 * MS, rng.choice([3, 6, 10]) * SECOND),
        **draw_weather(rng, is_stormy=is_stormy),
        sync_us=rng.choice([(100, 600), (MS, 12 * MS), (10 * MS, 80 * MS)]),
        late_watches=rng.choice([0.0, 0.05, 0.3]) if is_stormy else 0.0,
    )
