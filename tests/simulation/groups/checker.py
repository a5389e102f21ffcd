"""What must hold of a group in every moment, whatever goes wrong. It knows of clients and of ZooKeeper's tree only.

    1  no two clients would both hand out records of one partition now (W24)
    2  a group's committed offset of a partition goes back only when a client rewound it, and then once, or an
       administrator reset it, while no member held it, as ZooKeeper has it
    3  a commit passes only records that some client of the group has finished
    4  who begins with a partition begins at what was committed when it was assigned, or behind
    5  what is acknowledged was in ZooKeeper

At the end every partition of the topics has one owner, as evenly as can be (W22), and every record was finished and is
committed. Violations carry these numbers, 0 where the end is not reached, -1 for a defect that shows itself otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from broker_runtime.groups.member import Partition
from broker_runtime.zookeeper.session import Create, Operation, Set
from broker_runtime.zookeeper.znodes import CONSUMERS, GroupMembers, GroupOffsets, from_json
from tests.simulation.simulator.outcome import ViolationError


class Holder(Protocol):
    """A client as the checker sees it."""

    name: str
    group_id: str

    def handing_out(self) -> Iterable[Partition]:
        """What it would hand out records of, were it asked now."""


class Checker:
    """See the module. It raises `ViolationError` where it finds something."""

    def __init__(self) -> None:
        self.holders: list[Holder] = []  # those whose processes live
        self.counts: Counter[str] = Counter()
        self._committed: dict[tuple[str, Partition], int] = {}
        self._ever: dict[tuple[str, Partition], set[int]] = {}
        self._finished: dict[tuple[str, Partition], set[int]] = {}
        self._finished_below: dict[tuple[str, Partition], int] = {}
        self._rewound: dict[tuple[str, Partition], int] = {}
        self._reset: set[tuple[str, Partition, int]] = set()
        self._members: dict[str, dict[Partition, str]] = {}  # by group what its members hold, as ZooKeeper has it

    # --- what happens ---------------------------------------------------------------------------------------------

    def observe(self, holder: Holder) -> None:
        """The client did something. Raises for invariant 1."""
        mine = set(holder.handing_out())
        if not mine:
            return
        for other in self.holders:
            if other is not holder and other.group_id == holder.group_id:
                for partition in other.handing_out():
                    if partition in mine:
                        raise ViolationError(
                            1, f"{name_of(partition)} is held by {holder.name} and by {other.name} at the same time"
                        )

    def began(self, holder: Holder, partition: Partition, offset: int, committed_then: int) -> None:
        """The client begins with the partition; that much was committed when it was assigned. Raises for 4."""
        if offset < committed_then:
            raise ViolationError(
                4, f"{holder.name} begins with {name_of(partition)} at {offset}, committed was {committed_then}"
            )

    def finished(self, holder: Holder, partition: Partition, start: int, end: int) -> None:
        """The client's caller is done with those records."""
        key = (holder.group_id, partition)
        done = self._finished.setdefault(key, set())
        self.counts["records finished"] += end - start
        self.counts["records finished again"] += sum(
            offset < self.finished_below(key) or offset in done for offset in range(start, end)
        )
        below = self.finished_below(key)
        done.update(range(max(start, below), end))
        while below in done:
            done.remove(below)
            below += 1
        self._finished_below[key] = below

    def rewinds(self, group_id: str, partition: Partition, offset: int) -> None:
        """A client goes back to that offset, and will commit from there on."""
        self._rewound[group_id, partition] = offset

    def resets(self, group_id: str, partition: Partition, offset: int) -> None:
        """An administrator asks to take the offset back there."""
        self._reset.add((group_id, partition, offset))

    def reset_refused(self, group_id: str, partition: Partition, offset: int) -> None:
        """That was refused: it never happens."""
        self._reset.discard((group_id, partition, offset))

    def acknowledged(self, group_id: str, partition: Partition, offset: int) -> None:
        """A commit was acknowledged: from now on nothing goes back. Raises for invariant 5."""
        key = (group_id, partition)
        if offset not in self._ever.get(key, ()):
            raise ViolationError(
                5, f"{group_id} was told that {offset} of {name_of(partition)} is committed, it never was"
            )
        self._rewound.pop(key, None)

    def wrote(self, operations: Sequence[Operation]) -> None:
        """ZooKeeper's tree has changed. Raises for 2 and 3."""
        for operation in operations:
            if isinstance(operation, Create | Set):
                group_id, kind, topic = _place(operation.path)
                if kind == "offsets" and topic:
                    self._committed_now(group_id, topic, from_json(operation.data, GroupOffsets, operation.path))
                elif kind == "members":
                    self._members[group_id] = _held(from_json(operation.data, GroupMembers, operation.path))

    def news_in(self, operations: Sequence[Operation]) -> list[tuple[str, Partition]]:
        """The partitions whose committed offsets the write would change, with the group."""
        found: list[tuple[str, Partition]] = []
        for operation in operations:
            if isinstance(operation, Create | Set):
                group_id, kind, topic = _place(operation.path)
                if kind == "offsets" and topic:
                    offsets = from_json(operation.data, GroupOffsets, operation.path)
                    for number, stored in offsets.offsets.items():
                        partition = Partition(topic, offsets.topic_id, number)
                        if stored.offset != self.committed(group_id, partition):
                            found.append((group_id, partition))
        return found

    def committed(self, group_id: str, partition: Partition) -> int:
        """What the group has committed; 0 where it has nothing."""
        return self._committed.get((group_id, partition), 0)

    def finished_below(self, key: tuple[str, Partition]) -> int:
        """All records below this were finished by clients of the group."""
        return self._finished_below.get(key, 0)

    # --- within ---------------------------------------------------------------------------------------------------

    def _committed_now(self, group_id: str, topic: str, offsets: GroupOffsets) -> None:
        for number, stored in offsets.offsets.items():
            partition = Partition(topic, offsets.topic_id, number)
            key = (group_id, partition)
            before = self._committed.get(key, 0)
            self._ever.setdefault(key, set()).add(stored.offset)
            if stored.offset == before:
                continue
            rewound = self._rewound.get(key)
            if (*key, stored.offset) in self._reset:
                holder = self._members.get(group_id, {}).get(partition)
                if holder is not None and stored.offset < before and (rewound is None or stored.offset < rewound):
                    raise ViolationError(
                        2,
                        f"an administrator took {group_id} in {name_of(partition)} from {before} back to "
                        f"{stored.offset} while {holder} held it",
                    )
                self._rewound.pop(key, None)
            elif stored.offset < before:
                self._rewound.pop(key, None)
                if rewound is None or stored.offset < rewound:
                    raise ViolationError(
                        2, f"{group_id} had committed {before} of {name_of(partition)}, now it is {stored.offset}"
                    )
                self.counts["offsets rewound"] += 1
            elif stored.offset > self.finished_below(key):
                raise ViolationError(
                    3,
                    f"{group_id} commits {stored.offset} of {name_of(partition)}, "
                    f"finished is what is below {self.finished_below(key)}",
                )
            self.counts["offsets committed"] += 1
            self._committed[key] = stored.offset


def _place(path: str) -> tuple[str, str, str]:
    """Of a znode below a group's: the group, what kind it is, and of which topic; empty for others."""
    if not path.startswith(f"{CONSUMERS}/"):
        return "", "", ""
    group_id, _, below = path[len(CONSUMERS) + 1 :].partition("/")
    kind, _, topic = below.partition("/")
    return group_id, kind, topic


def _held(record: GroupMembers) -> dict[Partition, str]:
    """Also by those that have left, or ended, until that is written: a successor takes them for members."""
    return {
        Partition(held.topic, held.topic_id, number): member.client_id
        for member in record.members
        for held in member.held
        for number in held.granted
    }


def listed(partitions: Iterable[Partition]) -> str:
    """As traces have them."""
    return ", ".join(map(name_of, sorted(partitions))) or "nothing"


def name_of(partition: Partition) -> str:
    """As traces have it."""
    return f"{partition.topic}-{partition.number}({partition.topic_id[:2].hex()})"
