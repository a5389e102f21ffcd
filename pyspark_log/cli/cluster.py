"""`pylog cluster …`: the brokers, the health of the cluster, and decommissioning a broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import InvalidReplicaAssignmentError
from pyspark_log.cli import complete
from pyspark_log.cli.exit_status import UNHEALTHY
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows
from pyspark_log.cli.partition import watch_moves

if TYPE_CHECKING:
    from broker_runtime.contract.model import ClusterDescription, TopicDescription
    from pyspark_log.client.admin.health import ClusterHealth

_BROKER_COLUMNS = [
    Column("broker", "BROKER"),
    Column("address", "ADDRESS"),
    Column("controller", "CONTROLLER"),
    Column("leaders", "LEADERS"),
    Column("replicas", "REPLICAS"),
    Column("in_sync", "IN SYNC"),
    Column("epoch", "EPOCH", wide_only=True),
]
_PROBLEM_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("problem", "PROBLEM"),
    Column("leader", "LEADER"),
    Column("replicas", "REPLICAS"),
    Column("isr", "ISR"),
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


def health(invocation: Invocation) -> None:
    """Check the health of the cluster; exit status 5 if it is not healthy.

    It is unhealthy without a controller, if partitions lack a leader or replicas, if logs are damaged or disks fail, or
    if a transaction that should have ended holds readers back.
    """
    with invocation.admin() as admin:
        found = admin.check_health()
    rows = _problem_rows(found)
    if invocation.output in _TABLES:
        if rows:
            print_rows(rows, _PROBLEM_COLUMNS, invocation.output, name="partition")
            for row in rows:
                if row["advice"]:
                    invocation.say(row["advice"])
        for remark in found.remarks:
            invocation.say(remark)
        invocation.say(_verdict(found))
    elif invocation.output in {OutputFormat.NAME, OutputFormat.JSONL}:
        print_rows(rows, _PROBLEM_COLUMNS, invocation.output, name="partition")
    else:
        whole = {
            "healthy": found.is_healthy,
            "controller": found.cluster.controller_id,
            "brokers": sorted(found.cluster.brokers),
            "missing_brokers": list(found.missing_brokers),
            "disks": list(found.disks),
            "remarks": list(found.remarks),
            "transactions": [
                {
                    "transactional_id": each.opened.transactional_id,
                    "batch_id": each.opened.batch_id,
                    "partition": f"{each.opened.topic}:{each.opened.partition}",
                    "first_offset": each.opened.first_offset,
                    "open_s": each.opened.open_ms // 1000,
                    "limit_s": None if each.timeout_ms is None else each.timeout_ms // 1000,
                    "is_decided": each.decided_ms is not None,
                    "hangs": each.hangs,
                }
                for each in found.transactions
            ],
            "partitions": found.partitions,
            "problems": rows,
        }
        print_rows([whole], _PROBLEM_COLUMNS, invocation.output, name="healthy", one=True)
    if not found.is_healthy:
        raise typer.Exit(UNHEALTHY)


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


def _problem_rows(found: ClusterHealth) -> list[dict[str, Any]]:
    from pyspark_log.client.admin.health import advice

    return [
        {
            "partition": f"{at.topic}:{at.partition}",
            "problem": found.problems[at],
            "leader": partition.leader,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "lost": list(partition.lost),
            "eligible": list(partition.eligible),
            "damaged": list(partition.damaged),
            "advice": advice(at, partition, found.transactions),
        }
        for at, partition in sorted(found.described.items())
    ]


def _verdict(found: ClusterHealth) -> str:
    partitions = counted(found.partitions, "partition")
    if found.is_healthy:
        brokers = counted(len(found.cluster.brokers), "broker")
        return f"Healthy: {brokers}, controller {found.cluster.controller_id}, {partitions} healthy"
    bad = len(found.problems)
    problems = [f"{bad} of {partitions} {'is' if bad == 1 else 'are'} not healthy"] if bad else []
    if found.cluster.controller_id is None:
        problems.append("there is no controller")
    if found.missing_brokers:
        problems.append(f"down: {', '.join(f'broker {broker_id}' for broker_id in found.missing_brokers)}")
    problems += found.disks
    return f"Not healthy: {'; '.join(problems)}"
