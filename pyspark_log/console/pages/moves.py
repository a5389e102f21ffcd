"""Moving partitions between brokers, with their progress, and electing leaders."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import Reassignment, TopicPartition
from pyspark_log.cli.arguments import is_number, parse_partition
from pyspark_log.console import formats
from pyspark_log.console.lag_history import LagSample
from pyspark_log.console.visit import Done, Page, Visit, portion

_Election = Literal["preferred", "unclean"]
_MOST_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """A partition that is being moved. ``done``: percent of what was left when first shown; None: unknown."""

    at: TopicPartition
    move: Reassignment
    done: int | None


def moves(visit: Visit) -> Page:
    """Running moves, partitions not led by their preferred replica, and the forms."""
    admin = visit.connection.admin
    running = admin.list_reassignments()
    described = admin.describe_topics()
    not_preferred = [
        (TopicPartition(topic.name, each.partition), each)
        for topic in described
        for each in topic.partitions
        if each.replicas and each.leader is not None and each.leader != each.replicas[0]
    ]
    leaderless = [
        (TopicPartition(topic.name, each.partition), each)
        for topic in described
        for each in topic.partitions
        if each.leader is None
    ]
    given = visit.form if visit.failed else visit.query
    return Page(
        template="moves.html",
        title="Moves and leaders",
        section="/moves",
        every_s=2,
        values={
            "moves": [_row(visit, at, each) for at, each in sorted(running.items())],
            "not_preferred": portion(not_preferred, visit.number("page", 1, least=1)),
            "leaderless": leaderless[:_MOST_NAMED],
            "brokers": sorted(admin.describe_cluster().brokers),
            "partition": given.get("partition", ""),
            "replicas": given.get("replicas", ""),
        },
    )


def _row(visit: Visit, at: TopicPartition, move: Reassignment) -> MoveRow:
    history, name = visit.connection.lag, f"move/{at.topic}:{at.partition}/{move.target}"  # no group's id has a slash
    if move.lag >= 0:
        history.add(name, LagSample(at_s=time.time(), lag=move.lag))
    most = max((each.lag for each in history.of(name)), default=0)
    return MoveRow(at=at, move=move, done=round(100 * (most - move.lag) / most) if most and move.lag >= 0 else None)


def start(visit: Visit) -> Done:
    """Starts to move a partition."""
    at = parse_partition(visit.form.get("partition", "").strip())
    replicas = [part.strip() for part in visit.form.get("replicas", "").split(",")]
    if not all(is_number(each) and int(each) < 2**31 for each in replicas):
        raise OptionError("brokers: must be broker ids with commas, the preferred leader first, for example 2,3,1")
    visit.connection.admin.reassign_partitions({at: [int(each) for each in replicas]})
    return Done("/moves", f"Moving {at.topic}:{at.partition} to {formats.listed(replicas)}.")


def cancel(visit: Visit) -> Done:
    """Cancels a move: the partition stays where it was."""
    at = parse_partition(visit.form.get("partition", "").strip())
    visit.connection.admin.reassign_partitions({at: None})
    return Done("/moves", f"Cancelled the move of {at.topic}:{at.partition}.")


def elect(visit: Visit) -> Done:
    """Elects leaders: of the partitions named, or wherever one is needed."""
    election = visit.form.get("election", "preferred")
    if election not in get_args(_Election):
        raise OptionError(f"election: {election[:40]!r} must be one of {', '.join(get_args(_Election))}")
    names = visit.form.get("partitions", "").replace(",", " ").split()
    if len(names) > _MOST_NAMED:
        raise OptionError(f"partitions: {len(names):,} are named; at most {_MOST_NAMED:,} are allowed at once")
    if election == "unclean":
        if not names:
            raise OptionError("partitions: an unclean election needs partition names, for example flights:0")
        if visit.form.get("confirm", "").strip() != "unclean":
            raise OptionError("type unclean to confirm: records that only other replicas have are lost")
    named = [parse_partition(name) for name in names] or None
    elected = visit.connection.admin.elect_leaders(named, election=cast(_Election, election))
    if not elected:
        return Done("/moves", "No partition needed an election.")
    leaders = [f"{at.topic}:{at.partition} → broker {leader}" for at, leader in sorted(elected.items())[:5]]
    return Done("/moves", f"Elected {formats.counted(len(elected), 'leader')}: {', '.join(leaders)}.")
