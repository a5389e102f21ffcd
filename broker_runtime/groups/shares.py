"""Which member of a group should have what: the assignor's answer for the present members and topics.

Pure. The answer is kept together with what it depends on, so that nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_runtime.contract.model import TopicPartition
from broker_runtime.groups.assignor import assign
from broker_runtime.groups.member import Member, Partition


class TopicShape(NamedTuple):
    """What matters about a topic to groups."""

    topic_id: bytes
    partitions: int


@dataclass(frozen=True, slots=True)
class Shares:
    """By member id. ``made_from``: all that they depend on; None: they have to be computed again."""

    of: dict[str, frozenset[Partition]] = field(default_factory=dict)
    made_from: object = None


def shares_among(sharing: Sequence[Member], topics: Mapping[str, TopicShape], before: Shares) -> Shares:
    """The shares of the members that consume. What a member was meant to have stays with it as far as possible."""
    takers = [member for member in sharing if member.kind != "spark"]
    names = sorted({name for member in takers for name in member.topics if name in topics})
    made_from = (
        tuple(sorted((member.member_id, tuple(sorted(member.topics))) for member in takers)),
        tuple((name, topics[name]) for name in names),
    )
    if made_from == before.made_from:
        return before
    owners: dict[TopicPartition, str] = {}
    for member in takers:
        # What it is meant to have, otherwise what it holds, so that a change under way is not reversed.
        for partition in before.of.get(member.member_id) or member.granted.keys() - member.releasing:
            if partition.topic in topics and topics[partition.topic].topic_id == partition.topic_id:
                owners.setdefault(TopicPartition(partition.topic, partition.number), member.member_id)
    chosen = assign(
        {member.member_id: member.topics for member in takers},
        {name: topics[name].partitions for name in names},
        owners,
    )
    found = {
        member_id: frozenset(Partition(at.topic, topics[at.topic].topic_id, at.partition) for at in share)
        for member_id, share in chosen.items()
    }
    return Shares(found, made_from)


def all_of(names: Collection[str], topics: Mapping[str, TopicShape]) -> list[Partition]:
    """All partitions of those of the topics that exist."""
    return [
        Partition(name, topics[name].topic_id, number)
        for name in sorted(names)
        if name in topics
        for number in range(topics[name].partitions)
    ]
