"""`pylog acl …`: who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_log.cli import complete
from pyspark_log.cli.invocation import Invocation, usage_error
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.acls import Acl, AclFilter

_PRINCIPAL = typer.Option("--principal", metavar="USER", help="User:bob, bob, or * for everybody.", show_default=False)
_OPERATION = typer.Option(
    "--operation",
    metavar="OPERATION",
    help="Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs, All; repeatable.",
    show_default=False,
)
_TOPIC = typer.Option(
    "--topic", metavar="TOPIC", help="On a topic; * for all.", show_default=False, autocompletion=complete.topics
)
_GROUP = typer.Option(
    "--group", metavar="GROUP", help="On a group; * for all.", show_default=False, autocompletion=complete.groups
)
_TRANSACTIONAL_ID = typer.Option(
    "--transactional-id", metavar="ID", help="On a transactional id; * for all.", show_default=False
)
_CLUSTER = typer.Option("--cluster", help="On the cluster.")
_PREFIXED = typer.Option("--prefixed", help="The name is how names begin.")
_HOST = typer.Option("--host", metavar="IP", help="Only from this address.", show_default=False)
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}
_ANYTHING = [(None, None)]
_COLUMNS = [
    Column("principal", "PRINCIPAL"),
    Column("permission", "PERMISSION"),
    Column("operation", "OPERATION"),
    Column("resource_type", "RESOURCE"),
    Column("name", "NAME"),
    Column("pattern", "PATTERN"),
    Column("host", "HOST"),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("list", list_acls), ("add", add), ("delete", delete)):
        add_command(group, name)(function)
    add_command(group, "ls", hidden=True)(list_acls)


def list_acls(
    invocation: Invocation,
    principal: Annotated[str | None, _PRINCIPAL] = None,
    topic: Annotated[str | None, _TOPIC] = None,
    group: Annotated[str | None, _GROUP] = None,
    transactional_id: Annotated[str | None, _TRANSACTIONAL_ID] = None,
    cluster: Annotated[bool, _CLUSTER] = False,
) -> None:
    """List access control lists; all, or those that name what is given."""
    resources: Sequence[tuple[Any, Any]] = _resources(topic, group, transactional_id, cluster=cluster)
    with invocation.admin() as admin:
        found = [
            acl for kind, name in resources or _ANYTHING for acl in admin.describe_acls(_filter(principal, kind, name))
        ]
    if not found and invocation.output in _TABLES:
        invocation.say("No ACLs. With authorizer.class.name=AclAuthorizer only super users may do anything then.")
        return
    print_rows([_row(acl) for acl in found], _COLUMNS, invocation.output, name="principal")


def add(
    invocation: Invocation,
    principal: Annotated[str, _PRINCIPAL],
    operation: Annotated[list[str] | None, _OPERATION] = None,
    topic: Annotated[str | None, _TOPIC] = None,
    group: Annotated[str | None, _GROUP] = None,
    transactional_id: Annotated[str | None, _TRANSACTIONAL_ID] = None,
    cluster: Annotated[bool, _CLUSTER] = False,
    prefixed: Annotated[bool, _PREFIXED] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it, whatever else allows it.")] = False,
    host: Annotated[str | None, _HOST] = None,
    producer: Annotated[bool, typer.Option("--producer", help="All that a producer to --topic needs.")] = False,
    consumer: Annotated[bool, typer.Option("--consumer", help="All that a consumer of --topic needs.")] = False,
) -> None:
    """Allow a principal something, or forbid it. In force within a second.

    `pylog acl add --principal bob --consumer --topic flights --group team`: read the topic, as a member of the group.
    """
    from broker_runtime.contract.acls import Acl

    resources = _resources(topic, group, transactional_id, cluster=cluster)
    if not resources:
        raise usage_error("name what it is about: --topic, --group, --transactional-id or --cluster")
    if bool(operation) == (producer or consumer):
        raise usage_error("give either --operation, or --producer or --consumer, or both of these")
    wanted = [(each, resource) for each in operation or () for resource in resources]
    if producer:
        wanted += [("Write", resource) for resource in resources if resource[0] in ("Topic", "TransactionalId")]
    if consumer:
        wanted += [("Read", resource) for resource in resources if resource[0] in ("Topic", "Group")]
    acls = [
        Acl(
            principal=_principal(principal),
            operation=_operation(each),
            resource_type=kind,
            name=name,
            pattern="Prefixed" if prefixed else "Literal",
            permission="Deny" if deny else "Allow",
            host=host or "*",
        )
        for each, (kind, name) in wanted
    ]
    if not acls:
        raise usage_error("--producer needs --topic or --transactional-id, --consumer --topic or --group")
    with invocation.admin() as admin:
        created = admin.create_acls(acls)
    invocation.say(f"Added {counted(len(created), 'ACL')}." if created else "They exist already.")
    for acl in created:
        invocation.say(f"  {acl}")


def delete(
    invocation: Invocation,
    principal: Annotated[str | None, _PRINCIPAL] = None,
    operation: Annotated[list[str] | None, _OPERATION] = None,
    topic: Annotated[str | None, _TOPIC] = None,
    group: Annotated[str | None, _GROUP] = None,
    transactional_id: Annotated[str | None, _TRANSACTIONAL_ID] = None,
    cluster: Annotated[bool, _CLUSTER] = False,
    host: Annotated[str | None, _HOST] = None,
) -> None:
    """Delete the ACLs that match all that is given. Asks for confirmation unless -y."""
    resources: Sequence[tuple[Any, Any]] = _resources(topic, group, transactional_id, cluster=cluster)
    operations: Sequence[str | None] = operation or [None]
    filters = [
        _filter(principal, kind, name, operation=None if each is None else _operation(each), host=host)
        for kind, name in resources or _ANYTHING
        for each in operations
    ]
    with invocation.admin() as admin:
        meant = [acl for each in filters for acl in admin.describe_acls(each)]
        if not meant:
            invocation.say("No ACL matches.")
            return
        listed = "\n".join(f"  {acl}" for acl in meant)
        invocation.confirm_name(f"This deletes {counted(len(meant), 'ACL')}:\n{listed}", "delete", what="the word")
        deleted = admin.delete_acls(*filters)
    invocation.say(f"Deleted {counted(len(deleted), 'ACL')}.")


def _resources(
    topic: str | None, group: str | None, transactional_id: str | None, *, cluster: bool
) -> list[tuple[Any, str]]:
    from broker_runtime.contract.acls import CLUSTER_RESOURCE

    named = [("Topic", topic), ("Group", group), ("TransactionalId", transactional_id)]
    found = [(kind, name) for kind, name in named if name is not None]
    return [*found, *([("Cluster", CLUSTER_RESOURCE)] if cluster else [])]


def _filter(
    principal: str | None, kind: Any, name: str | None, *, operation: Any = None, host: str | None = None
) -> AclFilter:
    from broker_runtime.contract.acls import AclFilter

    who = None if principal is None else _principal(principal)
    return AclFilter(principal=who, operation=operation, resource_type=kind, name=name, host=host)


def _principal(given: str) -> str:
    return f"User:{given[5:] if given[:5].lower() == 'user:' else given}"


def _operation(given: str) -> Any:
    from broker_runtime.contract.acls import OPERATIONS

    found = [each for each in OPERATIONS if each.lower() == given.strip().lower()]
    if not found:
        raise usage_error(f"--operation: must be one of {', '.join(OPERATIONS)}, not {given!r}")
    return found[0]


def _row(acl: Acl) -> dict[str, Any]:
    return {column.key: getattr(acl, column.key) for column in _COLUMNS}
