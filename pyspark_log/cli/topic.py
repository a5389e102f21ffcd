"""`pylog topic …`: create, show, alter and delete topics."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import OptionError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from pyspark_log.cli import complete
from pyspark_log.cli.arguments import check_number, is_number, parse_partition, parse_settings
from pyspark_log.cli.invocation import Invocation, usage_error
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicDescription
    from pyspark_log import Admin

_NAME = typer.Argument(help="Name of the topic.", metavar="TOPIC", show_default=False, autocompletion=complete.topics)
_NEW_NAME = typer.Argument(help="Name of the topic.", metavar="TOPIC", show_default=False)

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
    add_command(group, "ls", hidden=True)(list_topics)


def create(
    invocation: Invocation,
    name: Annotated[str, _NEW_NAME],
    partitions: Annotated[
        int | None, typer.Option("-p", "--partitions", help="Number of partitions; 1 by default.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("-r", "--replication-factor", help="Number of replicas of each partition.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--config",
            metavar="NAME=VALUE",
            help="A topic setting; repeatable.",
            autocompletion=complete.topic_settings,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(help="Typed columns: 'carrier string, delay int32'. Default: Kafka's columns."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The column that determines the partition.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate only; create nothing.")] = False,
) -> None:
    """Create a topic."""
    settings = parse_settings(config or [], option="-c", example="retention.ms=7d")
    for option, number in (("-p", partitions), ("-r", replication_factor)):
        if number is not None:
            check_number(number, option=option)

    def asked_for(admin: Admin, *, exist_ok: bool) -> TopicDescription:
        return admin.create_topic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            schema=schema,
            key=key,
            config=settings,
            exist_ok=exist_ok,
            validate_only=dry_run,
        )

    message = "Topic {name} can be created with {partitions}." if dry_run else "Created topic {name} with {partitions}."
    with invocation.admin() as admin:
        try:
            topic = asked_for(admin, exist_ok=False)
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            topic = asked_for(admin, exist_ok=True)
            message = "Topic {name} already exists with {partitions}."
    if invocation.output is not None:
        print_rows([_row(topic)], _TOPIC_COLUMNS, invocation.output, name="name", one=True)
    invocation.say(message.format(name=name, partitions=counted(len(topic.partitions), "partition")))


def list_topics(invocation: Invocation) -> None:
    """List topics."""
    with invocation.admin() as admin:
        found = admin.describe_topics()
    if not found and invocation.output in {None, OutputFormat.TABLE, OutputFormat.WIDE}:
        invocation.say("No topics yet. To create one: pylog topic create NAME")
        return
    print_rows([_row(topic) for topic in found], _TOPIC_COLUMNS, invocation.output, name="name")


def describe(invocation: Invocation, name: Annotated[str, _NAME]) -> None:
    """Show a topic's schema, settings and partitions."""
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log.client.admin.health import advice

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
        out.write(f"Key      {topic.key or '- (round robin)'}\n")
    shown = settings if invocation.output is OutputFormat.WIDE else topic.config
    for index, (setting, value) in enumerate(sorted(shown.items())):
        out.write(f"{'Settings' if index == 0 else '        '} {setting}={_setting(value)}\n")
    out.write("\n")
    print_rows(row["partitions"], _PARTITION_COLUMNS, invocation.output, name="partition")
    for partition in topic.partitions:
        text = advice(TopicPartition(topic.name, partition.partition), partition)
        if text is not None:
            invocation.say(text)


def alter(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--config",
            metavar="NAME=VALUE",
            help="A setting to change; repeatable.",
            autocompletion=complete.topic_settings,
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "-d",
            "--delete-config",
            metavar="NAME",
            help="A setting to reset to its default; repeatable.",
            autocompletion=complete.topic_setting_names,
        ),
    ] = None,
) -> None:
    """Change a topic's settings."""
    changes: dict[str, str | None] = dict(parse_settings(config or [], option="-c", example="retention.ms=7d"))
    for setting in delete_config or []:
        if setting in changes:
            raise OptionError(f"{setting} is given with both -c and -d: use only one of them")
        changes[setting] = None
    if not changes:
        raise usage_error("nothing to change: use -c NAME=VALUE or -d NAME")
    with invocation.admin() as admin:
        admin.alter_config(name, changes)
    invocation.say(f"Changed {', '.join(sorted(changes))} of topic {name}.")


def delete(
    invocation: Invocation,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Names, or patterns in quotes: 'test-*'.", metavar="TOPIC…", autocompletion=complete.topics
        ),
    ],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such topic.")] = False,
) -> None:
    """Delete topics and all their records. Asks for confirmation unless -y."""
    with invocation.admin() as admin:
        chosen = choose_topics(names, admin.list_topics(), if_exists=if_exists)
        if len(chosen) == 1:
            invocation.confirm_name(f"This deletes topic {chosen[0]} and all its records.", chosen[0])
        elif chosen:
            shown = "".join(f"    {name}\n" for name in chosen)
            invocation.confirm_name(
                f"{shown}This deletes these {len(chosen)} topics and all their records.",
                str(len(chosen)),
                what="their number",
            )
        for name in chosen:
            admin.delete_topic(name, missing_ok=if_exists)
            invocation.say(f"Deleted topic {name}.")
    if not chosen:
        invocation.say("There is no such topic. Nothing was deleted.")


def choose_topics(given: Sequence[str], existing: Sequence[str], *, if_exists: bool) -> list[str]:
    """The topics that the names and patterns match, each once, in the order of the arguments.

    Raises `UnknownTopicOrPartitionError` for a name or pattern without a match, unless ``if_exists``.
    """
    chosen: dict[str, None] = {}
    for text in given:
        is_pattern = any(character in text for character in "*?[")
        found = fnmatch.filter(sorted(existing), text) if is_pattern else [text] if text in existing else []
        if not found and not if_exists:
            what = "no topic matches" if is_pattern else "there is no topic"
            raise UnknownTopicOrPartitionError(f"{what} {text!r}")
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def add_partitions(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    total: Annotated[int, typer.Argument(help="The new number of partitions.", metavar="TOTAL")],
) -> None:
    """Add partitions.

    New records of a key may go to another partition than its older records.
    """
    check_number(total, option="TOTAL")
    with invocation.admin() as admin:
        admin.create_partitions(name, total)
    invocation.say(f"Topic {name} now has {counted(total, 'partition')}.")


def add_column(
    invocation: Invocation,
    name: Annotated[str, _NAME],
    columns: Annotated[str, typer.Argument(help="Nullable columns: 'gate string, note string'.", metavar="COLUMNS")],
) -> None:
    """Add nullable columns to a typed topic. They are null in older records."""
    from broker_runtime.contract.schema import parse_schema

    fields = parse_schema(columns)
    with invocation.admin() as admin:
        schema_id = admin.add_columns(name, fields)
    invocation.say(f"Added {', '.join(fields.names)} to topic {name} (schema version {schema_id}).")


def trim(
    invocation: Invocation,
    partition: Annotated[
        str, typer.Argument(help="The partition.", metavar="TOPIC:PARTITION", autocompletion=complete.partitions)
    ],
    before: Annotated[str, typer.Option(metavar="OFFSET", help="The first offset to keep, or latest to keep none.")],
) -> None:
    """Delete a partition's records before an offset."""
    from broker_runtime.contract.model import LATEST

    at = parse_partition(partition)
    if before != "latest" and not is_number(before):
        raise usage_error(f"--before {before!r}: must be an offset (up to 18 digits) or latest")
    with invocation.admin() as admin:
        admin.describe_topic(at.topic)
        where = "all records" if before == "latest" else f"the records before offset {before}"
        invocation.confirm_name(f"This deletes {where} of {at.topic}:{at.partition}.", at.topic)
        started = admin.delete_records({at: LATEST if before == "latest" else int(before)})
    invocation.say(f"Partition {at.topic}:{at.partition} now starts at offset {started[at]}.")


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
        "eligible": list(partition.eligible),
        "damaged": list(partition.damaged),
        "log_start": partition.log_start if has_offsets else None,
        "high_watermark": partition.high_watermark if has_offsets else None,
        "records": partition.high_watermark - partition.log_start if has_offsets else None,
    }


def _setting(value: Any) -> Any:
    """The value alone: `describe_config` also says where each value comes from."""
    return value.get("value") if isinstance(value, Mapping) else getattr(value, "value", value)
