"""`pylog cluster …`: the brokers, and decommissioning one; `health` stands beside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import InvalidReplicaAssignmentError
from pyspark_log.cli import complete
from pyspark_log.cli.health import health
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows
from pyspark_log.cli.partition import watch_moves

if TYPE_CHECKING:
    from broker_runtime.contract.model import ClusterDescription, TopicDescription

_BROKER_COLUMNS = [
    Column("broker", "BROKER"),
    Column("address", "ADDRESS"),
    Column("controller", "CONTROLLER"),
    Column("leaders", "LEADERS"),
    Column("replicas", "REPLICAS"),
    Column("in_sync", "IN SYNC"),
    Column("epoch", "EPOCH", wide_only=True),
]
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("describe", describe), ("health", health), ("decommission", decommission)):
        add_command(group, name)(function)


def describe(invocation: Invocation) -> None:
    """Show the brokers and the number of partitions of each."""
    with invocation.admin() as admin:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics()
    partitions = [partition for topic in topics for partition in topic.partitions]
    brokers = sorted({*cluster.brokers, *(replica for partition in partitions for replica in partition.replicas)})
    rows: list[dict[str, Any]] = []
    for broker_id in brokers:
        broker = cluster.brokers.get(broker_id)
        rows.append(
            {
                "broker": broker_id,
                "address": None if broker is None else broker.address,
                "epoch": None if broker is None else broker.epoch,
                "controller": broker_id == cluster.controller_id,
                "leaders": sum(partition.leader == broker_id for partition in partitions),
                "replicas": sum(broker_id in partition.replicas for partition in partitions),
                "in_sync": sum(broker_id in partition.isr for partition in partitions),
            }
        )
    if invocation.output in _TABLES:
        invocation.say(
            f"Cluster {cluster.cluster_id}: {counted(len(topics), 'topic')}, {counted(len(partitions), 'partition')}"
        )
        shown = [
            {**row, "controller": "yes" if row["controller"] else "", "address": row["address"] or "down"}
            for row in rows
        ]
        print_rows(shown, _BROKER_COLUMNS, invocation.output, name="broker")
        return
    if invocation.output in {OutputFormat.NAME, OutputFormat.JSONL}:
        print_rows(rows, _BROKER_COLUMNS, invocation.output, name="broker")
        return
    whole = {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "topics": len(topics),
        "partitions": len(partitions),
        "brokers": rows,
    }
    print_rows([whole], _BROKER_COLUMNS, invocation.output, name="cluster_id", one=True)


def decommission(
    invocation: Invocation,
    broker: Annotated[
        int,
        typer.Argument(help="Id of the broker.", metavar="BROKER", show_default=False, autocompletion=complete.brokers),
    ],
    cancel: Annotated[bool, typer.Option("--cancel", help="Keep the broker. Moves that have begun continue.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Wait until the broker is empty.")] = False,
) -> None:
    """Move all partitions of a broker to the others, so that it can be removed."""
    with invocation.admin() as admin:
        if not cancel:
            refuse_to_decommission(broker, admin.describe_cluster(), admin.describe_topics())
            invocation.confirm_name(f"This moves all partitions away from broker {broker}.", str(broker), what="its id")
        moves = admin.decommission_broker(broker, cancel=cancel)
        if cancel:
            invocation.say(
                f"Broker {broker} is kept. Moves that have begun continue; pylog partition moves shows them."
            )
            return
        invocation.say(f"Moving {counted(moves, 'partition')} away from broker {broker}.")
        if watch:
            watch_moves(invocation, admin, list(admin.list_reassignments()))
            invocation.say(f"Broker {broker} is empty and can be stopped.")


def refuse_to_decommission(broker: int, cluster: ClusterDescription, topics: Sequence[TopicDescription]) -> None:
    """Raises `InvalidReplicaAssignmentError` if there is no such broker, or if there are too few others for its
    replicas. The cluster checks this too; here it is checked before the user is asked to confirm."""
    held = [
        (topic.name, partition) for topic in topics for partition in topic.partitions if broker in partition.replicas
    ]
    if broker not in cluster.brokers and not held:
        raise InvalidReplicaAssignmentError(
            f"there is no broker {broker}; the live brokers are {_listed(cluster.brokers)}"
        )
    others = cluster.brokers.keys() - {broker}
    for name, partition in held:
        if len(others) < len(partition.replicas):
            raise InvalidReplicaAssignmentError(
                f"broker {broker} cannot be decommissioned: {name}:{partition.partition} needs "
                f"{counted(len(partition.replicas), 'broker')}, and "
                + (f"the other live brokers are {_listed(others)}" if others else "there is no other live broker")
            )


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "none"
