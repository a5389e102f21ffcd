"""`pylog partition …`: where partitions are, and who leads them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.arguments import parse_partition
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.model import Reassignment, TopicDescription, TopicPartition
    from pyspark_log.client.admin.admin import Admin

_WATCH_INTERVAL_S = 0.5
_PARTITION = typer.Argument(help="The partition.", metavar="TOPIC:PARTITION", show_default=False)
_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("original", "FROM"),
    Column("target", "TO"),
    Column("adding", "ADDING", wide_only=True),
    Column("removing", "REMOVING", wide_only=True),
    Column("lag", "RECORDS LEFT"),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("move", move), ("moves", moves), ("elect", elect)):
        add_command(group, name)(function)


def move(
    invocation: Invocation,
    partition: Annotated[str, _PARTITION],
    to: Annotated[str | None, typer.Option("--to", metavar="ID[,ID…]", help="Brokers; the first is to lead.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the move; it keeps the brokers it had.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Wait until it is done, and show how far it is.")] = False,
) -> None:
    """Move a partition to other brokers, while it is written and read."""
    at = parse_partition(partition)
    if (to is None) != cancel:
        raise OptionError("give either --to 2,3,4 or --cancel")
    with invocation.admin() as admin:
        admin.reassign_partitions({at: None if to is None else parse_brokers(to)})
        if cancel:
            invocation.say(f"{at.topic}:{at.partition} stays where it was.")
            return
        invocation.say(f"Moving {at.topic}:{at.partition} to brokers {to}.")
        if watch:
            watch_moves(invocation, admin, [at])


def moves(
    invocation: Invocation,
    watch: Annotated[bool, typer.Option("--watch", help="Wait until all are done, and show how far they are.")] = False,
) -> None:
    """Show the partitions that are being moved."""
    with invocation.admin() as admin:
        running = admin.list_reassignments()
        if not running and invocation.output in {None, OutputFormat.TABLE, OutputFormat.WIDE}:
            invocation.say("Nothing is being moved.")
            return
        print_rows(
            [_row(at, each) for at, each in sorted(running.items())], _COLUMNS, invocation.output, name="partition"
        )
        if watch:
            watch_moves(invocation, admin, list(running))


def elect(
    invocation: Invocation,
    partitions: Annotated[
        list[str] | None,
        typer.Argument(help="Without any, all that need it.", metavar="[TOPIC:PARTITION…]"),
    ] = None,
    election: Annotated[
        Literal["preferred", "unclean"],
        typer.Option(
            help="preferred: the first replica, if in sync. unclean: for partitions without a leader, a live "
            "replica that may lack records; they are lost then."
        ),
    ] = "preferred",
) -> None:
    """Choose leaders anew."""
    named = [parse_partition(text) for text in partitions or []] or None
    with invocation.admin() as admin:
        if election == "unclean" and not invocation.yes:
            where = "every partition without a leader" if named is None else ", ".join(map(str, named))
            told = [*choices(admin.describe_topics(), named), f"This may lose acknowledged records of {where}."]
            invocation.confirm_name("\n".join(told), "unclean")
        elected = admin.elect_leaders(named, election=election)
    for at, leader in sorted(elected.items()):
        invocation.say(f"{at.topic}:{at.partition} is now led by broker {leader}.")
    if not elected:
        invocation.say(
            "Every partition is led by its preferred replica."
            if election == "preferred"
            else "Every partition has a leader."
        )


def parse_brokers(text: str) -> list[int]:
    """``2,3,4``. Raises `OptionError`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--to {text!r}: must be broker ids with commas between them, as in 2,3,4") from None


def watch_moves(invocation: Invocation, admin: Admin, partitions: list[TopicPartition]) -> None:
    """Returns when none of the partitions moves any more; shows on stderr how far they are."""
    shown = ""
    while running := {at: each for at, each in admin.list_reassignments().items() if at in partitions}:
        lags = [each.lag for each in running.values()]
        text = f"{counted(len(running), 'partition')} moving, "
        # Until a new replica has fetched for the first time, nobody knows what it lacks.
        text += "not counted yet" if min(lags) < 0 else f"{counted(sum(lags), 'record')} left"
        if text != shown:
            invocation.say(text)
            shown = text
        time.sleep(_WATCH_INTERVAL_S)
    invocation.say("All moves are done.")


def _row(at: TopicPartition, each: Reassignment) -> dict[str, Any]:
    return {
        "partition": f"{at.topic}:{at.partition}",
        "original": list(each.original),
        "target": list(each.target),
        "adding": list(each.adding),
        "removing": list(each.removing),
        "lag": each.lag if each.lag >= 0 else None,
    }


def choices(topics: Iterable[TopicDescription], named: Collection[TopicPartition] | None) -> list[str]:
    """Of each partition without a leader (of those ``named``, if any): why, what can be done, and what that costs."""
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log.client.admin.health import why_offline

    without = [
        (TopicPartition(topic.name, partition.partition), partition)
        for topic in topics
        for partition in topic.partitions
        if partition.leader is None
    ]
    return [why for at, partition in without if named is None or at in named if (why := why_offline(at, partition))]
