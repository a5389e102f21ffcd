"""What the diaries of a group's workers must prove together.

1. Every acknowledged record was delivered to a worker.
2. A record whose commit was acknowledged is not delivered afterwards: workers that commit after each record and are not
   killed in between process it exactly once.
3. While a worker keeps a partition, no other worker gets its records: between two records that one worker got without
   losing the partition there is none of another's.
4. A worker gets a partition's records in order, without a gap, from one assignment to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_UNKNOWN = -1
AFTER_A_FREEZE_NS = 200_000_000
"""A process that was frozen writes the line of its last action a moment after it is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """A delivered record; ``at_ns`` -1: the time is unknown. ``stay`` rises with each assignment and loss."""

    at_ns: int
    worker: str
    stay: int
    partition: int
    offset: int
    value: str


@dataclass(slots=True)
class Diaries:
    """All lines of all workers."""

    got: list[Got] = field(default_factory=list)
    done: dict[tuple[int, int], int] = field(default_factory=dict)  # (partition, offset) → when first acknowledged
    counts: dict[str, int] = field(default_factory=dict)

    def read(self, worker: str, path: Path, resumed_ns: Iterable[int] = ()) -> None:
        """Reads one worker's file. ``resumed_ns``: when it was resumed after it was frozen; its first events then
        are older.
        """
        resumed, stay = sorted(resumed_ns), 0
        text = path.read_bytes() if path.exists() else b""
        for line in text.decode().split("\n")[:-1]:  # a last line without an end was being written at the kill
            at, what, *rest = line.split(" ")
            self.counts[what] = self.counts.get(what, 0) + 1
            at_ns = int(at)
            if what in ("assign", "revoke", "lost"):
                stay += 1
            elif what == "got":
                if any(0 <= at_ns - each <= AFTER_A_FREEZE_NS for each in resumed):
                    at_ns = _UNKNOWN
                got = Got(
                    at_ns=at_ns, worker=worker, stay=stay, partition=int(rest[0]), offset=int(rest[1]), value=rest[2]
                )
                self.got.append(got)
            elif what == "done":
                key = int(rest[0]), int(rest[1])
                self.done[key] = min(at_ns, self.done.get(key, at_ns))


def judge(diaries: Diaries, acknowledged: Mapping[str, tuple[int, int]]) -> list[str]:
    """What is wrong, a line each. ``acknowledged``: partition and offset by value."""
    wrong: list[str] = []
    delivered = {got.value for got in diaries.got}
    missing = sorted(value for value in acknowledged if value not in delivered)
    if missing:
        wrong.append(f"{len(missing)} acknowledged records were delivered to nobody, the first is {missing[0]}")
    for got in diaries.got:
        done_ns = diaries.done.get((got.partition, got.offset))
        if done_ns is not None and got.at_ns > done_ns:
            late_ms = (got.at_ns - done_ns) / 1e6
            wrong.append(
                f"{got.partition}@{got.offset} was delivered to {got.worker} {late_ms:.1f} ms after its commit was "
                "acknowledged"
            )
        where = acknowledged.get(got.value)
        if where is not None and where != (got.partition, got.offset):
            wrong.append(f"{got.value} is at {where} and was delivered to {got.worker} as {got.partition}@{got.offset}")
    by_partition: dict[int, list[Got]] = {}
    for got in diaries.got:
        by_partition.setdefault(got.partition, []).append(got)
    for partition, all_got in sorted(by_partition.items()):
        wrong += _interleaved(partition, [got for got in all_got if got.at_ns != _UNKNOWN])
        wrong += _gaps(partition, all_got)
    return wrong


def _interleaved(partition: int, all_got: list[Got]) -> list[str]:
    stays: dict[tuple[str, int], list[Got]] = {}
    for got in all_got:
        stays.setdefault((got.worker, got.stay), []).append(got)
    found = []
    spans = [(some[0].at_ns, some[-1].at_ns, who) for who, some in stays.items()]
    for got in all_got:
        for first_ns, last_ns, (worker, stay) in spans:
            if worker != got.worker and first_ns < got.at_ns < last_ns:
                found.append(
                    f"{partition}@{got.offset} was delivered to {got.worker} while {worker} kept it (stay {stay})"
                )
    return found[:3]


def _gaps(partition: int, all_got: list[Got]) -> list[str]:
    last: dict[tuple[str, int], int] = {}
    found = []
    for got in all_got:
        who = got.worker, got.stay
        if who in last and got.offset != last[who] + 1:
            found.append(f"{got.worker} got {partition}@{got.offset} after {partition}@{last[who]}")
        last[who] = got.offset
    return found[:3]
