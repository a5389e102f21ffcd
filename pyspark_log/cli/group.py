"""`pylog group …`: consumer groups, how far they are, and where they go on."""

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
from pyspark_log.cli.complete import groups, topics
from pyspark_log.cli.exit_status import UNHEALTHY, say_error
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows
from pyspark_log.cli.reset import Shift, parse_target, parse_topics, read_offsets_file, resolve, within_log

if TYPE_CHECKING:
    from broker_runtime.contract.model import GroupDescription, GroupOffset, MemberDescription, TopicPartition
    from pyspark_log import Admin

_GROUP = typer.Argument(help="The group's id.", metavar="GROUP", show_default=False, autocompletion=groups)
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
    """List the groups."""
    with invocation.admin() as admin:
        found = admin.list_groups()
    if not found and invocation.output in _TABLES:
        invocation.say("No groups yet. A consumer makes one: pylog consume TOPIC -g GROUP")
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
        int | None, typer.Option("--max-lag", metavar="N", min=0, help="Exit 5 if a partition's lag is over it.")
    ] = None,
) -> None:
    """Show a group's members, and how far it is in each partition; LAG-S: the age of the oldest record it lacks."""
    with invocation.admin() as admin:
        group = admin.describe_group(group_id)
        offsets = admin.list_group_offsets(group_id)
        rows = _partition_rows(admin, group, offsets)
    if invocation.output in _TABLES:
        invocation.say(f"Group {group.group_id}: {_summary(group)}")
        if rows:
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
            help="Where; may be repeated.",
            autocompletion=topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every topic that the group has offsets in.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="PLACE", help="earliest, latest, N, +N or -N from the committed offset, 1h, an ISO time."
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="CSV", help="Lines of topic,partition,offset.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only show it.")] = False,
) -> None:
    """Set where a group goes on. Shows what it would do; does it with --execute. The group must have no members."""
    if (to is None) == (from_file is None):
        raise OptionError("give either --to latest or --from-file offsets.csv")
    if from_file is not None and (named_topics or all_topics):
        raise OptionError("--from-file names the partitions itself: leave out -t and --all-topics")
    if from_file is None and bool(named_topics) == all_topics:
        raise OptionError("give either -t flights or --all-topics")
    target = None if to is None else parse_target(to, now_ms=round(time.time() * 1000))
    given = None if from_file is None else read_offsets_file(from_file)
    named = parse_topics(named_topics or [])
    with invocation.admin() as admin:
        _refuse_members(admin, group_id, "Its offsets cannot be set meanwhile")
        old = {at: offset.committed for at, offset in admin.list_group_offsets(group_id).items()}
        if not old and isinstance(target, Shift):
            raise GroupIdNotFoundError(f"group {group_id!r} has no offsets to go on or back from: say --to earliest")
        if all_topics:
            if not old:
                raise GroupIdNotFoundError(f"group {group_id!r} has no offsets: say which topics with -t")
            named = dict.fromkeys(sorted({at.topic for at in old}))
        partitions = list(given) if given is not None else _partitions(admin, named)
        starts = {at: each.offset for at, each in admin.list_offsets(dict.fromkeys(partitions, "earliest")).items()}
        ends = {at: each.offset for at, each in admin.list_offsets(dict.fromkeys(partitions, "latest")).items()}
        wanted = given if target is None else resolve(admin, target, partitions, old)
        assert wanted is not None
        new, remarks = within_log(wanted, starts, ends)
        rows = [
            {"topic": at.topic, "partition": at.partition, "old": old.get(at), "new": new[at]} for at in sorted(new)
        ]
        _print_partitions(rows, _RESET_COLUMNS, invocation.output)
        if isinstance(target, Shift):
            remarks += [
                f"{at.topic}:{at.partition} stays as it is: the group has no offset there."
                for at in partitions
                if at not in new
            ]
        for remark in remarks:
            invocation.say(remark)
        if not execute:
            invocation.say("Nothing was changed: this is what --execute would do.")
            return
        admin.alter_group_offsets(group_id, new)
    invocation.say(f"Offsets of group {group_id} were reset.")


def delete(
    invocation: Invocation,
    group_id: Annotated[str, _GROUP],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing group is fine.")] = False,
) -> None:
    """Delete a group and its offsets. Asks for its id unless -y. The group must have no members."""
    with invocation.admin() as admin:
        try:
            _refuse_members(admin, group_id, "It cannot be deleted meanwhile", must_exist=True)
            invocation.confirm_name(f"This deletes the committed offsets of group {group_id}.", group_id)
            admin.delete_group(group_id)
        except GroupIdNotFoundError:
            if not if_exists:
                raise
    invocation.say(f"Deleted group {group_id}.")


def _print_partitions(rows: list[dict[str, Any]], columns: list[Column], form: OutputFormat | None) -> None:
    """One line per partition; members without any have no name."""
    if form is OutputFormat.NAME:
        rows = [{"name": f"{row['topic']}:{row['partition']}"} for row in rows if row["topic"]]
    print_rows(rows, columns, form, name="name")


def _refuse_members(admin: Admin, group_id: str, consequence: str, *, must_exist: bool = False) -> None:
    try:
        group = admin.describe_group(group_id)
    except GroupIdNotFoundError:
        if must_exist:
            raise
        return
    if group.members:
        who = ", ".join(f"{member.client_id or member.member_id} on {member.host}" for member in group.members)
        raise NonEmptyGroupError(f"group {group_id!r} has members ({who}). {consequence}: stop them first")


def _partitions(admin: Admin, named: dict[str, list[int] | None]) -> list[TopicPartition]:
    from pyspark_log.cli.ranges import partitions_of

    texts = [
        text
        for topic, numbers in named.items()
        for text in ([topic] if numbers is None else [f"{topic}:{number}" for number in numbers])
    ]
    return partitions_of(admin, texts)


def _check_lag(offsets: dict[TopicPartition, GroupOffset], max_lag: int) -> None:
    late = [f"{at.topic}:{at.partition}" for at, offset in offsets.items() if offset.lag > max_lag]
    untold = [f"{at.topic}:{at.partition}" for at, offset in offsets.items() if offset.lag < 0]
    if late:
        say_error(f"[LAG_OVER_LIMIT] More than {counted(max_lag, 'record')} behind: {', '.join(late)}")
    if untold:
        say_error(f"[LEADER_NOT_AVAILABLE] Lag unknown, as no leader answers: {', '.join(untold)}")
    if late or untold:
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
            continue  # it was deleted, and who holds it has not heard of that
        for partition in partitions:
            ends.setdefault(TopicPartition(name, partition.partition), partition.high_watermark)
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
    who = "no coordinator at present" if group.coordinator is None else f"coordinated by broker {group.coordinator}"
    return f"{group.state}, {members}, {who}"
