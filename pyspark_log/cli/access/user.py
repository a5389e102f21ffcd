"""`pylog user …`: who may prove themselves with a password.

Rule: a password is never an argument, which other users of the machine could read: it is asked for, or read from a file
or from standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker_runtime.contract.errors import InvalidConfigError
from pyspark_log.cli.exit_status import NOT_FOUND, say_error
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, print_rows

if TYPE_CHECKING:
    pass

_NAME = typer.Argument(help="The user's name.", metavar="USER", show_default=False)
_FILE = typer.Option(
    "--password-file", metavar="FILE", help="Read the password from a file; - is standard input.", show_default=False
)
_BROKER_CONFIG = typer.Option(
    "--broker-config",
    metavar="FILE",
    help="Write to ZooKeeper, as the broker with these settings: for the first user.",
    show_default=False,
)
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}
_MOST_FILE_BYTES: Final = 4_096


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("list", list_users), ("add", add), ("passwd", passwd), ("delete", delete)):
        add_command(group, name)(function)
    add_command(group, "ls", hidden=True)(list_users)


def list_users(invocation: Invocation) -> None:
    """List the users that have passwords."""
    with invocation.admin() as admin:
        users = admin.list_users()
    if not users and invocation.output in _TABLES:
        invocation.say("No users yet. Add one: pylog user add NAME")
        return
    print_rows([{"user": user} for user in users], [Column("user", "USER")], invocation.output, name="user")


def add(
    invocation: Invocation,
    user: Annotated[str, _NAME],
    password_file: Annotated[str | None, _FILE] = None,
    broker_config: Annotated[Path | None, _BROKER_CONFIG] = None,
) -> None:
    """Add a user with a password. What it may do, ACLs say: pylog acl add.

    Where every listener asks who calls, the first user is added with --broker-config; super.users of the brokers lets
    it do everything.
    """
    password = _password(user, password_file)
    if broker_config is not None:
        _change_in_zookeeper(broker_config, user, password, must_be_new=True)
    else:
        with invocation.admin() as admin:
            if user in admin.list_users():
                raise InvalidConfigError(f"user {user!r} exists already. To change its password: pylog user passwd")
            admin.set_password(user, password)
    invocation.say(f"Added user {user}.")


def passwd(
    invocation: Invocation,
    user: Annotated[str, _NAME],
    password_file: Annotated[str | None, _FILE] = None,
    broker_config: Annotated[Path | None, _BROKER_CONFIG] = None,
) -> None:
    """Give a user another password. What the old one opened ends."""
    password = _password(user, password_file)
    if broker_config is not None:
        _change_in_zookeeper(broker_config, user, password, must_be_new=False)
    else:
        with invocation.admin() as admin:
            if user not in admin.list_users():
                raise _not_found(user)
            admin.set_password(user, password)
    invocation.say(f"Changed the password of {user}.")


def delete(invocation: Invocation, user: Annotated[str, _NAME]) -> None:
    """Delete a user. Asks for confirmation unless -y. What it has open ends; ACLs about it stay."""
    with invocation.admin() as admin:
        if user not in admin.list_users():
            raise _not_found(user)
        invocation.confirm_name(f"This deletes user {user}, and ends what it has open.", user)
        admin.delete_user(user)
    invocation.say(f"Deleted user {user}.")


def _not_found(user: str) -> typer.Exit:
    say_error(f"[RESOURCE_NOT_FOUND] no user {user!r}. List those there are: pylog user list")
    return typer.Exit(NOT_FOUND)


def _password(user: str, file: str | None) -> str:
    """Asked for twice at a terminal; the first line of a file or of standard input."""
    from pyspark_log.client.admin.security import check_password

    if file is None and sys.stdin.isatty():
        password = typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        name = "standard input" if file in (None, "-") else f"--password-file={file}"
        try:
            # Standard input as bytes: Python would take what is not UTF-8 for something else.
            with open(0, "rb", closefd=False) if file in (None, "-") else Path(str(file)).open("rb") as opened:
                password = opened.readline(_MOST_FILE_BYTES).decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise InvalidConfigError(f"{name}: no password can be read: {reason}") from None
    check_password(str(password))
    return str(password)


def _change_in_zookeeper(broker_config: Path, user: str, password: str, *, must_be_new: bool) -> None:
    """As a broker would. Raises `InvalidConfigError` where the user exists, or does not."""
    from broker_runtime.contract.acls import check_user_name
    from broker_runtime.contract.passwords import hash_password
    from broker_runtime.security.records import SecurityRecords
    from pyspark_log.cli.zookeeper import as_broker

    check_user_name(user)
    with as_broker(broker_config) as client:
        records = SecurityRecords(client)
        records.read()
        if must_be_new and user in records.users:
            raise InvalidConfigError(f"user {user!r} exists already. To change its password: pylog user passwd")
        if not must_be_new and user not in records.users:
            raise _not_found(user)
        records.alter_users({user: hash_password(password)}, ())
