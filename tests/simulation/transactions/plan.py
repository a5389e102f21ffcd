"""What a seed makes of a run: who writes, and what goes wrong with writers and with brokers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.partitions.plan import Plan as PartitionsPlan
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.weather import draw_weather

_BROKERS = (
    "kill", "power loss", "crash at a write", "restart", "pause", "partition", "isolate", "cut from zookeeper",
    "session expiry", "zookeeper down", "lagging zookeeper", "clock jump", "slow disk", "stalled fsync",
    "all lose power", "stop", "broker added", "move", "election", "controller deposed", "back and forth",
    "outcome lost", "session ends", "older copy", "failed fsync", "disk full",
)  # fmt: skip
WRITERS = (
    "driver killed", "executor killed", "driver stands still", "executor stands still", "checkpoint copied",
    "checkpoint rewound", "transactions aborted", "process taken over from", "process killed", "writer cut off",
    "driver killed after a decision", "broker killed after a decision",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PartitionsPlan):
    """See the module. ``faults``: of brokers and of writers."""

    queries: int
    executors: int
    tasks: int
    random_queries: frozenset[int]
    filtered_queries: frozenset[int]
    transfers: int
    timeout_ms: int
    writer_fault_interval_us: tuple[int, int]


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"transactions {seed}")
    is_stormy = rng.random() < 0.4
    of_brokers = rng.sample(_BROKERS, rng.choice([0, 1, 2, 4]))
    of_writers = rng.sample(WRITERS, rng.choice([1, 2, 4]))
    brokers = 3
    replicas = list(range(1, brokers + 1))
    factor = rng.choice([2, 3, 3])
    assignment = tuple(tuple(rng.sample(replicas, factor)) for _ in range(rng.randint(1, 3)))
    queries = rng.choice([1, 1, 2])
    return Plan(
        brokers=brokers,
        assignment=assignment,
        flush_mode="ack",
        segment_bytes=rng.choice([4 << 10, 1 << 20]),
        value_bytes=0,
        producers=rng.choice([0, 1]),
        plain_producers=frozenset(),
        consumers=1,
        batches=10,
        produce_every_us=400 * MS,
        min_in_sync=rng.choice([None, 2]),
        duration_us=rng.randint(10, 18) * SECOND,
        faults=(*of_brokers, *of_writers),
        fault_interval_us=(500 * MS, rng.choice([3, 6]) * SECOND),
        writer_fault_interval_us=(300 * MS, rng.choice([2, 4]) * SECOND),
        **draw_weather(rng, is_stormy=is_stormy),
        sync_us=rng.choice([(100, 600), (MS, 12 * MS)]),
        late_watches=rng.choice([0.0, 0.05, 0.3]) if is_stormy else 0.0,
        queries=queries,
        executors=2,
        tasks=rng.randint(1, 3),
        random_queries=frozenset({0}) if rng.random() < 0.25 else frozenset(),
        transfers=rng.choice([0, 1, 1]),
        timeout_ms=rng.choice([4_000, 10_000, 20_000]),
        filtered_queries=frozenset(number for number in range(queries) if rng.random() < 0.4),
    )
