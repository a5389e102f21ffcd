"""Which brokers hold which partition: a pure function of the brokers and of what they already hold.

Leaders are assigned round robin as in Kafka's scheme (`AdminUtils.assignReplicasToBrokersRackUnaware`), except that the
brokers are taken in the order of how many partitions they lead, not starting at random: of N partitions on N brokers
each broker leads one, on fewer brokers each leads an even share, on more the N that lead least lead one each. A
follower goes to the broker with the fewest replicas; among equals Kafka's shift decides, so that a broker's followers
are spread over many others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker_runtime.contract.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError

Assignment = tuple[tuple[int, ...], ...]
"""The replicas of each partition, the preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """What a broker holds: how many partitions it is the preferred leader of, and how many replicas in all."""

    leaders: int = 0
    replicas: int = 0


def loads(broker_ids: Iterable[int], assignments: Iterable[Assignment]) -> dict[int, BrokerLoad]:
    """What each broker holds by these assignments."""
    leaders = dict.fromkeys(broker_ids, 0)
    replicas = dict.fromkeys(leaders, 0)
    for assignment in assignments:
        for partition in assignment:
            if partition[0] in leaders:
                leaders[partition[0]] += 1
            for broker_id in partition:
                if broker_id in replicas:
                    replicas[broker_id] += 1
    return {broker_id: BrokerLoad(leaders=leaders[broker_id], replicas=replicas[broker_id]) for broker_id in leaders}


def assign(
    partitions: int,
    replication_factor: int,
    brokers: Mapping[int, BrokerLoad],
    *,
    first: int = 0,
    suspects: Collection[int] = (),
) -> Assignment:
    """An assignment of ``partitions`` more partitions, the first of which has the number ``first``.

    ``suspects``: brokers that are probably dead; they get replicas only if the others are too few, and never a first
    one then. Raises `InvalidReplicationFactorError` if there are fewer brokers than replicas.
    """
    check_replication_factor(replication_factor, brokers)
    sure = {broker_id: load for broker_id, load in brokers.items() if broker_id not in suspects}
    if sure and len(sure) < len(brokers):
        return _with_last(
            assign(partitions, min(replication_factor, len(sure)), sure, first=first),
            sorted(brokers.keys() - sure.keys(), key=lambda b: (brokers[b].replicas, b)),
            replication_factor,
        )
    order = sorted(brokers, key=lambda b: (brokers[b].leaders, brokers[b].replicas, b))
    count = len(order)
    held = {broker_id: load.replicas for broker_id, load in brokers.items()}
    for position in range(partitions):
        held[order[position % count]] += 1
    assignment: list[tuple[int, ...]] = []
    for position in range(partitions):
        # The others, from the one that Kafka's scheme would take on.
        shift = (first + position) // count
        others = [order[(position + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)]
        chosen = sorted(others, key=held.__getitem__)[: replication_factor - 1]
        for broker_id in chosen:
            held[broker_id] += 1
        # Still in the scheme's order: the next leaders after a broker's death are spread evenly, too.
        assignment.append((order[position % count], *(broker_id for broker_id in others if broker_id in chosen)))
    return tuple(assignment)


def _with_last(assignment: Assignment, last: Sequence[int], replication_factor: int) -> Assignment:
    """The assignment with the missing replicas added on ``last``, round robin."""
    lacking = replication_factor - len(assignment[0]) if assignment else 0
    return tuple(
        (*replicas, *(last[(number + step) % len(last)] for step in range(lacking)))
        for number, replicas in enumerate(assignment)
    )


def check_replication_factor(replication_factor: int, broker_ids: Collection[int]) -> None:
    """Raises `InvalidReplicationFactorError` below one and above the number of live brokers."""
    if not 1 <= replication_factor <= len(broker_ids):
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} is not possible: allowed is 1 to {len(broker_ids)}, "
            f"the number of live brokers ({', '.join(map(str, sorted(broker_ids))) or 'none'})"
        )


def check_assignment(assignment: Sequence[Sequence[int]], broker_ids: Collection[int]) -> Assignment:
    """The assignment a user gave. Raises `InvalidReplicaAssignmentError` for unknown or repeated brokers, no replicas,
    and replicas of unequal number."""
    if not assignment:
        raise InvalidReplicaAssignmentError("the replica assignment has no partitions")
    for number, replicas in enumerate(assignment):
        if not replicas:
            raise InvalidReplicaAssignmentError(f"partition {number} has no replicas")
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignmentError(f"partition {number} names a broker twice: {list(replicas)}")
        unknown = sorted(set(replicas) - set(broker_ids))
        if unknown:
            raise InvalidReplicaAssignmentError(
                f"partition {number} names brokers that are not live: {unknown}. Live are {sorted(broker_ids)}"
            )
        if len(replicas) != len(assignment[0]):
            raise InvalidReplicaAssignmentError(
                f"partition {number} has {len(replicas)} replicas, partition 0 has {len(assignment[0])}: "
                "all must have as many"
            )
    return tuple(tuple(replicas) for replicas in assignment)
