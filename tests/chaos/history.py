"""What producers and consumers saw, and what of it must be true of the log at the end. Pure, but for a lock.

Every record is unique: its value is ``<producer>/<partition>/<number>``, numbers rising from 0 within a producer's
partition. So the log itself shows who wrote a record, and which of its records it is.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Partition = tuple[str, int]


def value_of(producer: str, partition: int, number: int) -> bytes:
    """The record's value."""
    return f"{producer}/{partition}/{number}".encode()


@dataclass
class History:
    """Thread-safe. Offsets are per (topic, partition)."""

    acknowledged: dict[Partition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    unplaced: dict[Partition, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    consumed: dict[Partition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    failed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    anomalies: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, at: Partition, offset: int, value: bytes) -> None:
        """A producer got the acknowledgement that its record is at this offset (-1: a duplicate of unknown offset)."""
        with self._lock:
            known = self.acknowledged[at].get(offset)
            if offset >= 0 and known is not None and known != value:
                self.anomalies.append(f"{at}: offset {offset} acknowledged for {known!r} and for {value!r}")
            if offset >= 0:
                self.acknowledged[at][offset] = value
            else:
                self.unplaced[at].add(value)

    def fail(self, error: BaseException) -> None:
        """A record was given up: it may be in the log once, or not at all."""
        with self._lock:
            self.failed[str(error)[:300]] += 1

    def consume(
        self, at: Partition, offsets: Sequence[int], values: Sequence[bytes], *, expected: int | None = None
    ) -> None:
        """A consumer got these records, the first of which should be at ``expected`` (None: anywhere)."""
        with self._lock:
            for offset in offsets:
                if expected is not None and offset != expected:
                    self.anomalies.append(f"skipped: {at} went on at {offset}, not {expected}")
                expected = offset + 1
            seen = self.consumed[at]
            for offset, value in zip(offsets, values, strict=True):
                known = seen.setdefault(offset, value)
                if known != value:
                    self.anomalies.append(f"{at}: offset {offset} read as {known!r} and as {value!r}")

    @property
    def acknowledged_records(self) -> int:
        with self._lock:
            placed = sum(len(records) for records in self.acknowledged.values())
            return placed + sum(len(records) for records in self.unplaced.values())

    @property
    def consumed_records(self) -> int:
        with self._lock:
            return sum(len(records) for records in self.consumed.values())

    def unread(self) -> dict[Partition, list[int]]:
        """The offsets of acknowledged records that no consumer got so far."""
        with self._lock:
            missing = {at: sorted(records.keys() - self.consumed[at]) for at, records in self.acknowledged.items()}
        return {at: offsets for at, offsets in missing.items() if offsets}


def check(history: History, final: Mapping[Partition, Mapping[int, bytes]]) -> list[str]:
    """What is wrong, a line each. ``final``: every record of the log at the end, by offset.

    skipped     a consumer did not get the next offset
    lost        acknowledged, and not at its offset (or nowhere, if that is unknown)
    duplicated  one record at two offsets
    misplaced   a record of another partition
    reordered   a producer's later record before an earlier one in a partition
    gap         offsets that are not dense
    unreal      read by a consumer, and not (or otherwise) in the log: it was above the high watermark
    """
    wrong = list(history.anomalies)
    for at, records in sorted(history.acknowledged.items()):
        there = final.get(at, {})
        lost = [offset for offset, value in records.items() if there.get(offset) != value]
        if lost:
            first = min(lost)
            wrong.append(
                f"lost: {at} has {len(lost)} acknowledged records that are not where they were said to be; the first: "
                f"offset {first}, {records[first]!r}, there is {there.get(first)!r}"
            )
    for at, values in sorted(history.unplaced.items()):
        absent = values - set(final.get(at, {}).values())
        if absent:
            wrong.append(f"lost: {at} lacks {len(absent)} acknowledged records, one is {min(absent)!r}")
    for at, seen in sorted(history.consumed.items()):
        there = final.get(at, {})
        unreal = [offset for offset, value in seen.items() if there.get(offset) != value]
        if unreal:
            first = min(unreal)
            wrong.append(
                f"unreal: {at}: {len(unreal)} records were read that the log does not have; the first: offset {first}, "
                f"{seen[first]!r}, there is {there.get(first)!r}"
            )
    for at, there in sorted(final.items()):
        wrong += _order(at, there)
    return wrong


def _order(at: Partition, there: Mapping[int, bytes]) -> list[str]:
    wrong: list[str] = []
    last: dict[bytes, int] = {}
    where: dict[bytes, int] = {}
    expected = min(there, default=0)
    for offset in sorted(there):
        value = there[offset]
        if offset != expected:
            wrong.append(f"gap: {at} has no offset {expected}, the next is {offset}")
        expected = offset + 1
        if value in where:
            wrong.append(f"duplicated: {at} has {value!r} at {where[value]} and at {offset}")
            continue
        where[value] = offset
        producer, _, number = value.rpartition(b"/")
        if int(producer.rpartition(b"/")[2]) != at[1]:
            wrong.append(f"misplaced: {at} has {value!r} at {offset}")
        if int(number) < last.get(producer, -1):
            wrong.append(f"reordered: {at} has {value!r} at {offset}, behind number {last[producer]}")
        last[producer] = max(int(number), last.get(producer, -1))
    return wrong
