"""`pylog topic …`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.arguments import parse_partition, parse_topic_settings
from pyspark_log.cli.invocation import Invocation, usage_error
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicDescription

_NAME = typer.Argument(help="The topic's name.", metavar="TOPIC", show_default=False)

_TOPIC_COLUMNS = [
    Column("name", "NAME"),
    Column("partitions", "PARTITIONS"),
    Column("replication_factor", "REPLICAS"),
    Column("key", "KEY"),
    Column("columns", "COLUMNS"),
    Column("topic_id", "ID", wide_only=True),
    Column("config", "CONFIG", wide_only=True),
]
_PARTITION_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("leader", "LEADER"),
    Column("leader_epoch", "EPOCH"),
    Column("replicas", "REPLICAS"),
    Column("isr", "ISR"),
    Column("lost", "LOST-LOG", wide_only=True),
    Column("log_start", "START"),
    Column("high_watermark", "HIGH-WATERMARK"),
    Column("records", "RECORDS"),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (
        ("create", create),
        ("list", list_topics),
        ("describe", describe),
        ("alter", alter),
        ("delete", delete),
        ("add-partitions", add_partitions),
        ("add-column", add_column),
        ("trim", trim),
    ):
        add_command(group, name)(function)


def create(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    partitions: Annotated[int | None, typer.Option("-p", "--partitions", help="How many; 1 unless said.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option("-r", "--replication-factor", help="Replicas of each partition.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", metavar="NAME=VALUE", help="A setting; may be repeated.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(help="Columns of a typed topic: 'carrier string, delay int32'. Without: Kafka's columns."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The column whose value chooses the partition.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is fine.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether it could be created.")] = False,
) -> None:
    """Create a topic."""
    with invocation.admin() as admin:
        topic = admin.create_topic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            schema=schema,
            key=key,
            config=parse_topic_settings(config or [], option="-c"),
            exist_ok=if_not_exists,
            validate_only=dry_run,
        )
    if invocation.output is not None:
        print_rows([_row(topic)], _TOPIC_COLUMNS, invocation.output, name="name", one=True)
    invocation.say(f"{name}: {'could be created' if dry_run else 'is there'}, {_count(len(topic.partitions))}")


def list_topics(invocation: Invocation) -> None:
    """List the topics."""
    with invocation.admin() as admin:
        topics = admin.describe_topics()
    if not topics and invocation.output in {None, OutputFormat.TABLE, OutputFormat.WIDE}:
        invocation.say("No topics yet. Create one: pylog topic create NAME")
        return
    print_rows([_row(topic) for topic in topics], _TOPIC_COLUMNS, invocation.output, name="name")


def describe(invocation: Invocation, name: Annotated[str, _NAME]) -> None:
    """Show a topic's schema, settings and partitions with their offsets."""
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log.client.health import why_offline

    with invocation.admin() as admin:
        topic = admin.describe_topic(name)
        settings = admin.describe_config(name)
    row = {**_row(topic), "settings": {key: _setting(value) for key, value in settings.items()}}
    row["partitions"] = [_partition_row(partition) for partition in topic.partitions]
    if invocation.output not in {None, OutputFormat.TABLE, OutputFormat.WIDE}:
        print_rows([row], _TOPIC_COLUMNS, invocation.output, name="name", one=True)
        return
    out = sys.stdout
    out.write(f"Topic    {topic.name}\nId       {topic.topic_id}\n")
    if topic.schema is None:
        out.write("Columns  Kafka's: key, value, headers, timestamp\n")
    else:
        out.write("Columns  " + "\n         ".join(_columns(topic)) + "\n")
        out.write(f"Key      {topic.key or '- (rows are shared equally)'}\n")
    shown = settings if invocation.output is OutputFormat.WIDE else topic.config
    for index, (setting, value) in enumerate(sorted(shown.items())):
        out.write(f"{'Settings' if index == 0 else '        '} {setting}={_setting(value)}\n")
    out.write("\n")
    print_rows(row["partitions"], _PARTITION_COLUMNS, invocation.output, name="partition")
    for partition in topic.partitions:
        advice = why_offline(TopicPartition(topic.name, partition.partition), partition)
        if advice is not None:
            invocation.say(advice)


def alter(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", metavar="NAME=VALUE", help="Set a setting; repeatable.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("-d", "--delete-config", metavar="NAME", help="Back to the default; repeatable.")
    ] = None,
) -> None:
    """Change a topic's settings."""
    changes: dict[str, str | None] = dict(parse_topic_settings(config or [], option="-c"))
    for setting in delete_config or []:
        if setting in changes:
            raise OptionError(f"{setting} is both set and deleted")
        changes[setting] = None
    if not changes:
        raise usage_error("nothing to change: give -c NAME=VALUE or -d NAME")
    with invocation.admin() as admin:
        admin.alter_config(name, changes)
    invocation.say(f"{name}: changed {', '.join(sorted(changes))}")


def delete(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is fine.")] = False,
) -> None:
    """Delete a topic and all its records. Asks for its name unless -y."""
    with invocation.admin() as admin:
        if not if_exists:
            admin.describe_topic(name)  # a missing topic is said before anything is asked
        invocation.confirm_name(f"This deletes topic {name} and all its records.", name)
        admin.delete_topic(name, missing_ok=if_exists)
    invocation.say(f"{name}: deleted")


def add_partitions(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    total: Annotated[int, typer.Argument(help="How many it has afterwards.", metavar="TOTAL")],
) -> None:
    """Add partitions. Keys are spread anew: records of one key may be in two partitions afterwards."""
    with invocation.admin() as admin:
        admin.create_partitions(name, total)
    invocation.say(f"{name}: {_count(total)}")


def add_column(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    columns: Annotated[str, typer.Argument(help="'gate string, note string'; nullable.", metavar="COLUMNS")],
) -> None:
    """Add nullable columns to a typed topic; older records have null there."""
    from broker_runtime.contract.schema import parse_schema

    fields = parse_schema(columns)
    with invocation.admin() as admin:
        schema_id = admin.add_columns(name, fields)
    invocation.say(f"{name}: schema version {schema_id} has {', '.join(fields.names)}")


def trim(
    invocation: Invocation,
    partition: Annotated[str, typer.Argument(help="Which, as TOPIC:PARTITION.", metavar="TOPIC:PARTITION")],
    before: Annotated[str, typer.Option(help="The first offset that stays, or 'latest': none stays.")],
) -> None:
    """Delete a partition's records before an offset."""
    from broker_runtime.contract.model import LATEST

    at = parse_partition(partition)
    if before != "latest" and not before.isdecimal():
        raise usage_error(f"--before {before!r}: must be an offset, or latest")
    with invocation.admin() as admin:
        admin.describe_topic(at.topic)
        invocation.confirm_name(f"This deletes the records of {at} before {before}.", at.topic)
        started = admin.delete_records({at: LATEST if before == "latest" else int(before)})
    invocation.say(f"{at}: starts at {started[at]}")


def _row(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": len(topic.partitions),
        "replication_factor": max((len(partition.replicas) for partition in topic.partitions), default=0),
        "key": topic.key,
        "columns": _columns(topic),
        "config": dict(topic.config),
    }


def _columns(topic: TopicDescription) -> list[str]:
    if topic.schema is None:
        return []
    return [f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in topic.schema]


def _partition_row(partition: Any) -> dict[str, Any]:
    has_offsets = partition.high_watermark >= 0
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "lost": list(partition.lost),
        "log_start": partition.log_start if has_offsets else None,
        "high_watermark": partition.high_watermark if has_offsets else None,
        "records": partition.high_watermark - partition.log_start if has_offsets else None,
    }


def _setting(value: Any) -> Any:
    """`describe_config` tells values with their source; here only the value counts."""
    return value.get("value") if isinstance(value, Mapping) else getattr(value, "value", value)


def _count(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"
