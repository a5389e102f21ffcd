"""`pylog group …`: consumer groups, their members, lag and committed offsets."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import (
    GroupIdNotFoundError,
    NonEmptyGroupError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from pyspark_log.cli import complete
from pyspark_log.cli.exit_status import UNHEALTHY, say_error
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows
from pyspark_log.cli.reset import Shift, parse_target, parse_topics, read_offsets_file, resolve, within_log

if TYPE_CHECKING:
    from broker_runtime.contract.model import GroupDescription, GroupOffset, MemberDescription, TopicPartition
    from pyspark_log import Admin

_GROUP = typer.Argument(help="Id of the group.", metavar="GROUP", show_default=False, autocompletion=complete.groups)
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}

_GROUP_COLUMNS = [
    Column("group_id", "GROUP"),
    Column("state", "STATE"),
    Column("kind", "KIND"),
    Column("members", "MEMBERS"),
    Column("coordinator", "COORDINATOR"),
]
_PARTITION_COLUMNS = [
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION"),
    Column("committed", "COMMITTED"),
    Column("end", "END"),
    Column("lag", "LAG"),
    Column("lag_s", "LAG-S"),
    Column("client_id", "CLIENT"),
    Column("host", "HOST"),
    Column("member_id", "MEMBER", wide_only=True),
    Column("instance_id", "INSTANCE", wide_only=True),
    Column("epoch", "EPOCH", wide_only=True),
    Column("state", "STATE", wide_only=True),
]
_YEAR_S = 31_557_600
_RESET_COLUMNS = [
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION"),
    Column("old", "OLD"),
    Column("new", "NEW"),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("list", list_groups), ("describe", describe), ("reset", reset), ("delete", delete)):
        add_command(group, name)(function)
    add_command(group, "ls", hidden=True)(list_groups)


def list_groups(invocation: Invocation) -> None:
    """List consumer groups."""
    with invocation.admin() as admin:
        found = admin.list_groups()
    if not found and invocation.output in _TABLES:
        invocation.say("No groups yet. A group is created by its first consumer: pylog consume TOPIC -g GROUP")
        return
    rows = [
        {
            "group_id": group.group_id,
            "state": group.state,
            "kind": group.kind,
            "members": group.members,
            "coordinator": group.coordinator,
        }
        for group in found
    ]
    print_rows(rows, _GROUP_COLUMNS, invocation.output, name="group_id")


def describe(
    invocation: Invocation,
    group_id: Annotated[str, _GROUP],
    max_lag: Annotated[
        int | None,
        typer.Option("--max-lag", metavar="N", min=0, help="Exit with status 5 if the lag of a partition is larger."),
    ] = None,
) -> None:
    """Show a group's members, committed offsets and lag.

    LAG-S is the age in seconds (from a year on: 2y) of the oldest record that the group has not acknowledged.
    """
    with invocation.admin() as admin:
        group = admin.describe_group(group_id)
        offsets = admin.list_group_offsets(group_id)
        rows = _partition_rows(admin, group, offsets)
    if invocation.output in _TABLES:
        invocation.say(f"Group {group.group_id}: {_summary(group)}")
        if rows:
            rows = [{**row, "lag_s": _age(row["lag_s"])} for row in rows]
            print_rows(rows, _PARTITION_COLUMNS, invocation.output, name="topic")
    elif invocation.output in {OutputFormat.NAME, OutputFormat.JSONL}:
        _print_partitions(rows, _PARTITION_COLUMNS, invocation.output)
    else:
        whole = {
            "group_id": group.group_id,
            "state": group.state,
            "kind": group.kind,
            "coordinator": group.coordinator,
            "epoch": group.epoch,
            "lag": sum(max(0, offset.lag) for offset in offsets.values()),
            "members": [_member_row(member) for member in group.members],
            "partitions": [row for row in rows if row["topic"]],
        }
        print_rows([whole], _PARTITION_COLUMNS, invocation.output, name="group_id", one=True)
    if max_lag is not None:
        _check_lag(offsets, max_lag)


def reset(
    invocation: Invocation,
    group_id: Annotated[str, _GROUP],
    named_topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC[:PARTITION[,…]]",
            help="Topic or partitions to reset; repeatable.",
            autocompletion=complete.topics_or_partitions,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics that the group has offsets for.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, offset 42, +10 or -10 from the committed offset, 1h (ago), or an ISO time.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="CSV", help="File with lines of topic,partition,offset.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Apply the change. Default: only show it.")] = False,
) -> None:
    """Reset the committed offsets of a group. Only shows the change unless --execute.

    The group must have no members.
    """
    if (to is None) == (from_file is None):
        raise OptionError(
            "use either --to (for example --to latest) or --from-file (for example --from-file offsets.csv)"
        )
    if from_file is not None and (named_topics or all_topics):
        raise OptionError("--from-file names the partitions itself: omit -t and --all-topics")
    if from_file is None and bool(named_topics) == all_topics:
        raise OptionError("use either -t (for example -t flights) or --all-topics")
    target = None if to is None else parse_target(to, now_ms=round(time.time() * 1000))
    given = None if from_file is None else read_offsets_file(from_file)
    named = parse_topics(named_topics or [])
    with invocation.admin() as admin:
        _refuse_members(admin, group_id, "reset its offsets")
        old = {at: offset.committed for at, offset in admin.list_group_offsets(group_id).items()}
        if not old and isinstance(target, Shift):
            raise GroupIdNotFoundError(
                f"group {group_id!r} has no committed offsets to add to or subtract from: use --to earliest"
            )
        if all_topics:
            if not old:
                raise GroupIdNotFoundError(f"group {group_id!r} has no committed offsets: name the topics with -t")
            named = dict.fromkeys(sorted({at.topic for at in old}))
        partitions = list(given) if given is not None else _partitions(admin, named)
        wanted = given if target is None else resolve(admin, target, partitions, old)  # first: the logs may grow
        starts = {at: each.offset for at, each in admin.list_offsets(dict.fromkeys(partitions, "earliest")).items()}
        ends = {at: each.offset for at, each in admin.list_offsets(dict.fromkeys(partitions, "latest")).items()}
        assert wanted is not None
        new, messages = within_log(wanted, starts, ends)
        rows = [
            {"topic": at.topic, "partition": at.partition, "old": old.get(at), "new": new[at]} for at in sorted(new)
        ]
        _print_partitions(rows, _RESET_COLUMNS, invocation.output)
        if isinstance(target, Shift):
            messages += [
                f"{at.topic}:{at.partition} is not changed: the group has no committed offset there."
                for at in partitions
                if at not in new
            ]
        for message in messages:
            invocation.say(message)
        if not execute:
            invocation.say("Nothing was changed. To apply these offsets, add --execute.")
            return
        admin.alter_group_offsets(group_id, new)
    invocation.say(f"Reset the offsets of group {group_id}.")


def delete(
    invocation: Invocation,
    group_id: Annotated[str, _GROUP],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such group.")] = False,
) -> None:
    """Delete a group and its committed offsets. Asks for confirmation unless -y.

    The group must have no members.
    """
    with invocation.admin() as admin:
        try:
            _refuse_members(admin, group_id, "delete it", must_exist=True)
            invocation.confirm_name(f"This deletes the committed offsets of group {group_id}.", group_id, what="its id")
            admin.delete_group(group_id)
        except GroupIdNotFoundError:
            if not if_exists:
                raise
            invocation.say(f"There is no group {group_id}. Nothing was deleted.")
            return
    invocation.say(f"Deleted group {group_id}.")


def _print_partitions(rows: list[dict[str, Any]], columns: list[Column], form: OutputFormat | None) -> None:
    """Prints a line per partition. `-o name` leaves out members without partitions."""
    if form is OutputFormat.NAME:
        rows = [{"name": f"{row['topic']}:{row['partition']}"} for row in rows if row["topic"]]
    print_rows(rows, columns, form, name="name")


def _refuse_members(admin: Admin, group_id: str, what: str, *, must_exist: bool = False) -> None:
    try:
        group = admin.describe_group(group_id)
    except GroupIdNotFoundError:
        if must_exist:
            raise
        return
    if group.members:
        who = ", ".join(f"{member.client_id or member.member_id} on {member.host}" for member in group.members)
        raise NonEmptyGroupError(f"group {group_id!r} has members ({who}). Stop them first, then {what}")


def _partitions(admin: Admin, named: dict[str, list[int] | None]) -> list[TopicPartition]:
    from pyspark_log.cli.records.ranges import partitions_of

    texts = [
        text
        for topic, numbers in named.items()
        for text in ([topic] if numbers is None else [f"{topic}:{number}" for number in numbers])
    ]
    return partitions_of(admin, texts)


def _check_lag(offsets: dict[TopicPartition, GroupOffset], max_lag: int) -> None:
    late = [f"{at.topic}:{at.partition}" for at, offset in offsets.items() if offset.lag > max_lag]
    unknown = [f"{at.topic}:{at.partition}" for at, offset in offsets.items() if offset.lag < 0]
    if late:
        say_error(f"[LAG_OVER_LIMIT] The lag is more than {counted(max_lag, 'record')}: {', '.join(late)}")
    if unknown:
        say_error(f"[LEADER_NOT_AVAILABLE] The lag is unknown because no leader answers: {', '.join(unknown)}")
    if late or unknown:
        raise typer.Exit(UNHEALTHY)


def _partition_rows(
    admin: Admin, group: GroupDescription, offsets: dict[TopicPartition, GroupOffset]
) -> list[dict[str, Any]]:
    from broker_runtime.contract.model import TopicPartition

    holders = {at: member for member in group.members for at in member.partitions}
    ends = {at: offset.end for at, offset in offsets.items()}
    for name in {at.topic for at in holders if at not in offsets}:
        try:
            partitions = admin.describe_topic(name).partitions
        except UnknownTopicOrPartitionError:
            continue  # deleted; the member that holds it does not know yet
        for partition in partitions:
            ends.setdefault(TopicPartition(name, partition.partition), partition.end)
    waiting = admin.timestamps_at({at: offset.committed for at, offset in offsets.items() if offset.lag > 0})
    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    for at in sorted({*offsets, *holders}):
        offset, since, end = offsets.get(at), waiting.get(at), ends.get(at, -1)
        rows.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "committed": None if offset is None else offset.committed,
                "end": end if end >= 0 else None,
                "lag": None if offset is None or offset.lag < 0 else offset.lag,
                "lag_s": None if since is None else max(0.0, round((now - since).total_seconds(), 1)),
                **_holder(holders.get(at)),
            }
        )
    idle = [member for member in group.members if not member.partitions]
    nothing = dict.fromkeys(("topic", "partition", "committed", "end", "lag", "lag_s"))
    return rows + [{**nothing, **_holder(member)} for member in idle]


def _age(seconds: float | None) -> float | str | None:
    """For people: records may have any timestamps, and nobody reads an age of years in seconds."""
    return seconds if seconds is None or seconds < _YEAR_S else f"{seconds / _YEAR_S:.0f}y"


def _holder(member: MemberDescription | None) -> dict[str, Any]:
    if member is None:
        return dict.fromkeys(("client_id", "host", "member_id", "instance_id", "epoch", "state"))
    return {
        "client_id": member.client_id,
        "host": member.host,
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "epoch": member.epoch,
        "state": member.state,
    }


def _member_row(member: MemberDescription) -> dict[str, Any]:
    return {
        **_holder(member),
        "kind": member.kind,
        "topics": list(member.topics),
        "partitions": [f"{at.topic}:{at.partition}" for at in member.partitions],
        "session_timeout_ms": member.session_timeout_ms,
        "heard_ms_ago": member.heard_ms_ago,
    }


def _summary(group: GroupDescription) -> str:
    what = "Spark query" if group.kind == "spark" else "member"
    count = len(group.members)
    members = f"{count} {what}" + ("" if count == 1 else "s" if what == "member" else "")
    who = "no coordinator" if group.coordinator is None else f"coordinated by broker {group.coordinator}"
    return f"{group.state}, {members}, {who}"
