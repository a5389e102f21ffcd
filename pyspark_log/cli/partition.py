"""`pylog partition …`: moves of partitions between brokers, and leader elections."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli import complete
from pyspark_log.cli.arguments import check_number, parse_partition
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows
from pyspark_log.cli.progress import Progress

if TYPE_CHECKING:
    from broker_runtime.contract.model import Reassignment, TopicDescription, TopicPartition
    from pyspark_log.client.admin.admin import Admin

_WATCH_INTERVAL_S = 0.5
_PARTITION = typer.Argument(
    help="The partition.", metavar="TOPIC:PARTITION", show_default=False, autocompletion=complete.partitions
)
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
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ID[,ID…]",
            help="Brokers to move it to; the first is its preferred leader.",
            autocompletion=complete.brokers,
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the move: it keeps its former brokers.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Wait until the move is complete.")] = False,
) -> None:
    """Move a partition to other brokers. It stays readable and writable."""
    at = parse_partition(partition)
    if (to is None) != cancel:
        raise OptionError("use either --to (for example --to 2,3,4) or --cancel")
    with invocation.admin() as admin:
        admin.reassign_partitions({at: None if to is None else parse_brokers(to)})
        if cancel:
            invocation.say(f"Cancelled the move of {at.topic}:{at.partition}.")
            return
        invocation.say(f"Moving {at.topic}:{at.partition} to brokers {to}.")
        if watch:
            watch_moves(invocation, admin, [at])


def moves(
    invocation: Invocation,
    watch: Annotated[bool, typer.Option("--watch", help="Wait until all moves are complete.")] = False,
) -> None:
    """Show the moves in progress."""
    with invocation.admin() as admin:
        running = admin.list_reassignments()
        if not running and invocation.output in {None, OutputFormat.TABLE, OutputFormat.WIDE}:
            invocation.say("No partitions are being moved.")
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
        typer.Argument(
            help="Partitions; default: all that need an election.",
            metavar="[TOPIC:PARTITION…]",
            autocompletion=complete.partitions,
        ),
    ] = None,
    election: Annotated[
        Literal["preferred", "unclean"],
        typer.Option(
            help="preferred: the first replica, if it is in sync. unclean: any live replica of a partition without a "
            "leader; the records that it lacks are lost."
        ),
    ] = "preferred",
) -> None:
    """Elect leaders."""
    named = [parse_partition(text) for text in partitions or []] or None
    with invocation.admin() as admin:
        if election == "unclean" and not invocation.yes:
            where = "every partition without a leader" if named is None else ", ".join(map(str, named))
            text = [*choices(admin.describe_topics(), named), f"This may lose acknowledged records of {where}."]
            invocation.confirm_name("\n".join(text), "unclean", what="unclean")
        elected = admin.elect_leaders(named, election=election)
    for at, leader in sorted(elected.items()):
        invocation.say(f"Broker {leader} is now the leader of {at.topic}:{at.partition}.")
    if not elected:
        invocation.say(
            "Every partition is led by its preferred replica."
            if election == "preferred"
            else "Every partition has a leader."
        )


def parse_brokers(text: str) -> list[int]:
    """``2,3,4``. Raises `OptionError`."""
    try:
        brokers = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--to {text!r}: must be broker ids separated by commas, for example 2,3,4") from None
    return [check_number(broker, option="--to") for broker in brokers]


def watch_moves(invocation: Invocation, admin: Admin, partitions: Collection[TopicPartition]) -> None:
    """Blocks until none of the partitions is being moved. Shows the progress on standard error."""
    printed, most = "", 0
    with Progress(invocation, "Moving", total=0) as progress:
        while running := {at: each for at, each in admin.list_reassignments().items() if at in partitions}:
            lags = [each.lag for each in running.values()]
            text = f"{counted(len(running), 'partition')} moving, "
            # Until a new replica has fetched for the first time, its lag is unknown.
            text += "lag not known yet" if min(lags) < 0 else f"{counted(sum(lags), 'record')} left"
            most = max(most, sum(lags))
            progress.reach(most - sum(lags), text, total=most)
            if text != printed and not progress.is_shown:
                invocation.say(text)
                printed = text
            time.sleep(_WATCH_INTERVAL_S)
    invocation.say("All moves are complete.")


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
    """For each partition without a leader (of those ``named``, if any): the cause, the choices and what each costs."""
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log.client.admin.health import why_offline

    without = [
        (TopicPartition(topic.name, partition.partition), partition)
        for topic in topics
        for partition in topic.partitions
        if partition.leader is None
    ]
    return [why for at, partition in without if named is None or at in named if (why := why_offline(at, partition))]
