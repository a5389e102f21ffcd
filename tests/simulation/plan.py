"""What a seed makes of a run: how large the cluster is, what is done to it, how bad network and ZooKeeper are."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.network import Weather
from tests.simulation.scheduler import MS, SECOND
from tests.simulation.sim_zookeeper import ZooKeeperWeather

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
_STEERED = {
    10: "all but one lose power",
    11: "outcome of leaving lost",
    13: "all end, but one for ever",
    14: "disk full",
    16: "leader lost in a move",
    17: "producers forgotten",
    19: "all lose power, without fsyncs",
    20: "first one damaged",
    22: "outcome of joining lost",
    23: "only disk given up",
}
"""Remainder of the seed by thirty → what it is steered to, where needed with the cluster for it."""
_FLUSH_MODES = {
    "all but one lose power": ["interval", "os"],
    "all lose power, without fsyncs": ["interval", "os"],
    "all end, but one for ever": ["ack"],
    "first one damaged": ["ack"],
    "only disk given up": ["ack"],
}
_FACTORS = {
    "first one damaged": 3,
    "leader lost in a move": 2,
    "only disk given up": 2,
    "outcome of joining lost": 2,
    "outcome of leaving lost": 2,
}
_BESIDE = {"disk full": 2, "all lose power, without fsyncs": 0, "only disk given up": 0}
_MIN_IN_SYNC: dict[str, list[int | None]] = {
    "only disk given up": [1],
    "outcome of joining lost": [1],
    "outcome of leaving lost": [2],
}
_BUSY = (
    ["back and forth"],
    ["outcome of joining lost"],
    ["outcome of leaving lost"],
    ["producers forgotten"],
    ["only disk given up"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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

    def weather(self) -> Weather:
        """The network's."""
        return Weather(lost=self.loss, repeated=self.repeats, late=self.lateness)

    def zookeeper_weather(self) -> ZooKeeperWeather:
        """ZooKeeper's."""
        return ZooKeeperWeather(late_watch=self.late_watches, lost_before=self.ambiguity, lost_after=self.ambiguity)

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
    steered = _STEERED.get(seed % 30) if seed % 3 else None
    if steered is not None:
        kinds = [steered, *rng.sample(kinds, min(len(kinds), _BESIDE.get(steered, 1)))]
        is_stormy = is_stormy and steered == "disk full"
    brokers = 3
    replicas = list(range(1, brokers + 1))
    factor = _FACTORS.get(steered or "") or rng.choice([2, 3, 3])
    assignment = tuple(tuple(rng.sample(replicas, factor)) for _ in range(rng.randint(1, 3)))
    return Plan(
        brokers=brokers,
        assignment=assignment,
        flush_mode=rng.choice(_FLUSH_MODES.get(steered or "", ["ack", "ack", "ack", "interval", "os"])),
        segment_bytes=rng.choice([4 << 10, 16 << 10, 1 << 20]),
        value_bytes=rng.choice([0, 0, 300]),
        producers=2,
        plain_producers=frozenset({1}) if rng.random() < 0.3 else frozenset(),
        consumers=rng.randint(1, 2),
        batches=rng.randint(15, 40) * (3 if kinds[:1] in _BUSY else 1),  # they need some on their way
        produce_every_us=rng.choice([150, 250, 500]) * MS,
        min_in_sync=rng.choice(_MIN_IN_SYNC.get(steered or "", [None, 2])),
        duration_us=rng.randint(12, 30) * SECOND + (20 * SECOND if steered == "all end, but one for ever" else 0),
        faults=tuple(kinds),
        fault_interval_us=(500 * MS, rng.choice([3, 6, 10]) * SECOND),
        loss=rng.choice([0.0, 0.01, 0.05]) if is_stormy else 0.0,
        repeats=rng.choice([0.0, 0.02, 0.1]) if is_stormy else 0.0,
        lateness=rng.choice([0.0, 0.02, 0.1]) if is_stormy else 0.0,
        ambiguity=rng.choice([0.0, 0.01, 0.05, 0.15]) if is_stormy else 0.0,
        sync_us=rng.choice([(100, 600), (MS, 12 * MS), (10 * MS, 80 * MS)]),
        late_watches=rng.choice([0.0, 0.05, 0.3]) if is_stormy else 0.0,
    )
