"""`pylog quota …`: how much users and client ids may take of each broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pyspark_log.cli import complete
from pyspark_log.cli.arguments import parse_settings
from pyspark_log.cli.exit_status import NOT_FOUND, say_error
from pyspark_log.cli.invocation import Invocation, usage_error
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.quotas import QuotaEntity

_USER = typer.Option("--user", metavar="USER", help="The user: a principal without User:.", show_default=False)
_CLIENT_ID = typer.Option("--client-id", metavar="ID", help="The client id.", show_default=False)
_DEFAULT_USER = typer.Option("--default-user", help="Every user without a quota of its own.")
_DEFAULT_CLIENT_ID = typer.Option("--default-client-id", help="Every client id without a quota of its own.")
_LIMITS = typer.Argument(
    help="producer_byte_rate (10MB), consumer_byte_rate, request_percentage (50), max_connections.",
    metavar="NAME=VALUE...",
    show_default=False,
    autocompletion=complete.quotas,
)
_NAMES = typer.Argument(help="Only these limits; without any, all of them.", metavar="[NAME]...", show_default=False)
_RATES: Final = frozenset({"producer_byte_rate", "consumer_byte_rate"})
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}
_COLUMNS = [
    Column("user", "USER"),
    Column("client_id", "CLIENT-ID"),
    Column("producer_byte_rate", "PRODUCER-BYTES/S"),
    Column("consumer_byte_rate", "CONSUMER-BYTES/S"),
    Column("request_percentage", "REQUEST-%"),
    Column("max_connections", "CONNECTIONS"),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("list", list_quotas), ("set", set_quota), ("delete", delete)):
        add_command(group, name)(function)
    add_command(group, "ls", hidden=True)(list_quotas)


def list_quotas(invocation: Invocation) -> None:
    """List the quotas of users and client ids."""
    with invocation.admin() as admin:
        quotas = admin.describe_quotas()
    if not quotas and invocation.output in _TABLES:
        invocation.say("There are no quotas.")
        return
    rows: list[dict[str, Any]] = []
    for quota in quotas:
        limits = {name: int(value) if value.is_integer() else value for name, value in quota.limits.items()}
        shown = {column.key: limits.get(column.key) for column in _COLUMNS[2:]}
        rows.append({"user": quota.entity.user, "client_id": quota.entity.client_id, **shown})
    print_rows(rows, _COLUMNS, invocation.output, name="user")


def set_quota(
    invocation: Invocation,
    limits: Annotated[list[str], _LIMITS],
    user: Annotated[str | None, _USER] = None,
    client_id: Annotated[str | None, _CLIENT_ID] = None,
    default_user: Annotated[bool, _DEFAULT_USER] = False,
    default_client_id: Annotated[bool, _DEFAULT_CLIENT_ID] = False,
) -> None:
    """Limit what a user, a client id, or a pair of both may take of each broker.

    `pylog quota set --user bob producer_byte_rate=10MB request_percentage=50`. Clients over a limit are throttled.
    A change takes effect within a second.
    """
    from broker_runtime.contract.quotas import LIMITS

    entity = _entity(user, client_id, default_user=default_user, default_client_id=default_client_id)
    given = parse_settings(limits, option="limit", example="producer_byte_rate=10MB")
    if unknown := [name for name in given if name not in LIMITS]:
        raise usage_error(f"{unknown[0]!r}: must be one of {', '.join(LIMITS)}")
    wanted = {name: _limit(name, text) for name, text in given.items()}
    with invocation.admin() as admin:
        admin.alter_quotas({entity: wanted})
    invocation.say(f"Limited {entity} to {', '.join(f'{name}={value:.15g}' for name, value in wanted.items())}.")


def delete(
    invocation: Invocation,
    names: Annotated[list[str] | None, _NAMES] = None,
    user: Annotated[str | None, _USER] = None,
    client_id: Annotated[str | None, _CLIENT_ID] = None,
    default_user: Annotated[bool, _DEFAULT_USER] = False,
    default_client_id: Annotated[bool, _DEFAULT_CLIENT_ID] = False,
) -> None:
    """Remove limits of a user, a client id, or a pair of both."""
    from broker_runtime.contract.quotas import LIMITS

    entity = _entity(user, client_id, default_user=default_user, default_client_id=default_client_id)
    if unknown := [name for name in names or () if name not in LIMITS]:
        raise usage_error(f"{unknown[0]!r}: must be one of {', '.join(LIMITS)}")
    with invocation.admin() as admin:
        found: Sequence[str] = next(
            (tuple(each.limits) for each in admin.describe_quotas() if each.entity == entity), ()
        )
        if missing := [name for name in names or () if name not in found]:
            raise _not_found(f"{entity} has no {missing[0]}")
        if not found:
            raise _not_found(f"{entity} has no quotas")
        admin.alter_quotas({entity: dict.fromkeys(names or found)})
    invocation.say(f"Removed {', '.join(names or found)} from {entity}.")


def _entity(user: str | None, client_id: str | None, *, default_user: bool, default_client_id: bool) -> QuotaEntity:
    from broker_runtime.contract.quotas import DEFAULT, QuotaEntity

    if default_user and user is not None:
        raise usage_error("give either --user or --default-user")
    if default_client_id and client_id is not None:
        raise usage_error("give either --client-id or --default-client-id")
    named = DEFAULT if default_user else user, DEFAULT if default_client_id else client_id
    if named == (None, None):
        raise usage_error("give --user, --client-id, --default-user or --default-client-id")
    if "" in named:
        raise usage_error("--user and --client-id must not be empty")
    return QuotaEntity(user=named[0], client_id=named[1])


def _limit(name: str, text: str) -> float:
    from broker_runtime.contract.quotas import check_limit
    from broker_runtime.contract.settings.kinds import parse_size

    try:
        value: Any = float(parse_size(text)) if name in _RATES else float(text.removesuffix("%"))
    except ValueError as error:
        allowed = f"must be {error if name in _RATES else 'a number'}"
        raise usage_error(f"{name}={text:.80}: {allowed}") from None
    return check_limit(name, value)


def _not_found(what: str) -> typer.Exit:
    say_error(f"[RESOURCE_NOT_FOUND] {what}. To list the existing ones: pylog quota list")
    return typer.Exit(NOT_FOUND)
