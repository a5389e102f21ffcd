"""Which member of a group gets which partition: a pure function of subscriptions, partitions and present owners.

Rules: a partition of a subscribed topic has exactly one owner, which subscribes to its topic. The shares are as even as
the subscriptions allow: no chain of hand-overs would take a partition from a member and give one to another that has at
least two fewer (Harvey et al., "Semi-matchings for bipartite graphs and load balancing"). A member keeps what it has
where that agrees with the balance: with equal subscriptions no assignment that is as even moves fewer partitions.
The result depends on the arguments' contents alone, not on the order of their dicts.

Topics with the same subscribers are one pool, so that the work grows with the number of different subscriptions.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from broker_runtime.contract.model import TopicPartition


def assign(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, int],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Each member's share; every member is in the result, with an empty set where it gets nothing.

    ``subscriptions``: member id → topics; ``partitions``: topic → how many it has, topics that do not exist have none;
    ``owners``: who has what at present. Owners that are not members, no longer subscribe to the topic, or have
    partitions that do not exist do not count.
    """
    shares = _Shares(_pools(subscriptions, partitions), subscriptions)
    kept = shares.keep(owners, partitions)
    shares.place(partitions, kept)
    shares.balance()
    return {member: {at for held in shares.held[member].values() for at in held} for member in subscriptions}


class _Pool:
    """The topics that the same members subscribe to."""

    def __init__(self, members: list[str]) -> None:
        self.topics: list[str] = []
        self.members = members
        # (count, member). Invariant: each member has an entry whose count is at most its present one.
        self.heap = [(0, member) for member in members]

    def least(self, counts: Mapping[str, int]) -> tuple[int, str]:
        """The number of partitions of the member that has the fewest, and that member."""
        while True:
            count, member = self.heap[0]
            if count == counts[member]:
                return count, member
            heapq.heapreplace(self.heap, (counts[member], member))


class _HandOver(NamedTuple):
    giver: str
    pool: int
    receiver: str


class _Shares:
    """Who has what, while it is computed."""

    def __init__(self, pools: list[_Pool], members: Iterable[str]) -> None:
        self.pools = pools
        self.pool_of = {topic: number for number, pool in enumerate(pools) for topic in pool.topics}
        # Member → pool → its partitions there; the one it got last is at the end, and is given away first.
        self.held: dict[str, dict[int, list[TopicPartition]]] = {member: {} for member in members}
        self.counts = dict.fromkeys(self.held, 0)
        self._pools_of: dict[str, list[int]] = {member: [] for member in self.held}
        for number, pool in enumerate(pools):
            for member in pool.members:
                self._pools_of[member].append(number)

    def keep(self, owners: Mapping[TopicPartition, str], partitions: Mapping[str, int]) -> set[TopicPartition]:
        """Leaves every member what it had and may keep; returns those partitions."""
        subscribers = [set(pool.members) for pool in self.pools]
        kept: set[TopicPartition] = set()
        # In this order, the partitions given away first are of all topics in turn.
        for at in sorted(owners, key=lambda at: (at.partition, at.topic)):
            pool = self.pool_of.get(at.topic)
            if pool is not None and 0 <= at.partition < partitions[at.topic] and owners[at] in subscribers[pool]:
                self._give(at, pool, owners[at])
                kept.add(at)
        return kept

    def place(self, partitions: Mapping[str, int], kept: Collection[TopicPartition]) -> None:
        """Gives what nobody has to the members with the fewest; topics with few subscribers come first."""
        for number in sorted(range(len(self.pools)), key=lambda number: (len(self.pools[number].members), number)):
            pool = self.pools[number]
            for topic in pool.topics:
                for partition in range(partitions[topic]):
                    at = TopicPartition(topic, partition)
                    if at not in kept:
                        self._give(at, number, pool.least(self.counts)[1])

    def balance(self) -> None:
        """Moves partitions from members to others that have at least two fewer, until no such hand-over is left."""
        givers = [(-count, member) for member, count in self.counts.items()]
        heapq.heapify(givers)
        closed_members: set[str] = set()
        closed_pools: set[int] = set()
        while givers:
            minus_count, giver = heapq.heappop(givers)
            if giver in closed_members or -minus_count != self.counts[giver]:
                continue
            reached_pools = set(closed_pools)
            came_from: dict[str, _HandOver | None] = {giver: None}
            receiver = self._search(giver, came_from, reached_pools)
            if receiver is None:
                # The members reached can only hand over among themselves, and none of them has fewer than count - 1:
                # they are no use to later givers, which have no more than this one.
                closed_members.update(came_from)
                closed_pools = reached_pools
                continue
            self._carry_out(receiver, came_from)
            for member in (giver, receiver):
                heapq.heappush(givers, (-self.counts[member], member))

    # --- private ----------------------------------------------------------------------------------------------------

    def _search(self, giver: str, came_from: dict[str, _HandOver | None], reached_pools: set[int]) -> str | None:
        """The nearest member that has at least two fewer. ``came_from``: the hand-over by which each was reached."""
        most = self.counts[giver] - 2
        level = [giver]
        while level:
            pools: dict[int, str] = {}
            for member in level:
                for number, held in self.held[member].items():
                    if held and number not in reached_pools:
                        reached_pools.add(number)
                        pools[number] = member
            found = [(*self.pools[number].least(self.counts), number) for number in pools]
            if found and (best := min(found))[0] <= most:
                _, receiver, number = best
                came_from[receiver] = _HandOver(pools[number], number, receiver)
                return receiver
            level = []
            for number, member in pools.items():
                for other in self.pools[number].members:
                    if other not in came_from:
                        came_from[other] = _HandOver(member, number, other)
                        level.append(other)
        return None

    def _carry_out(self, receiver: str, came_from: Mapping[str, _HandOver | None]) -> None:
        """Each member along the way gives a partition to the next."""
        step = came_from[receiver]
        while step is not None:
            at = self.held[step.giver][step.pool].pop()
            self.counts[step.giver] -= 1
            self._give(at, step.pool, step.receiver)
            step = came_from[step.giver]
        giver = next(member for member, origin in came_from.items() if origin is None)
        for number in self._pools_of[giver]:
            heapq.heappush(self.pools[number].heap, (self.counts[giver], giver))

    def _give(self, at: TopicPartition, pool: int, member: str) -> None:
        self.held[member].setdefault(pool, []).append(at)
        self.counts[member] += 1


def _pools(subscriptions: Mapping[str, Collection[str]], partitions: Mapping[str, int]) -> list[_Pool]:
    """The pools, in the order of their first topics."""
    alike: dict[frozenset[str], list[str]] = {}
    for member in sorted(subscriptions):
        alike.setdefault(frozenset(subscriptions[member]), []).append(member)
    kinds_of: dict[str, list[int]] = {}
    kinds = list(alike.values())
    for kind, topics in enumerate(alike):
        for topic in topics:
            kinds_of.setdefault(topic, []).append(kind)
    pools: dict[tuple[int, ...], _Pool] = {}
    for topic in sorted(kinds_of):
        if partitions.get(topic, 0) <= 0:
            continue
        key = tuple(kinds_of[topic])
        if key not in pools:
            pools[key] = _Pool(sorted(member for kind in key for member in kinds[kind]))
        pools[key].topics.append(topic)
    return list(pools.values())
