"""`pylog console`: the cluster in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.console import DEFAULT_PORT

if TYPE_CHECKING:
    from pyspark_log.console.serving import ConsoleServer


def add_to(app: typer.Typer, *, panel: str) -> None:
    """Adds the command, listed under the heading ``panel``."""
    add_command(app, "console", panel=panel)(console)


def console(
    invocation: Invocation,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="PYLOG_CONSOLE_PORT", help="Port to listen on. 0: a free one."),
    ] = DEFAULT_PORT,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(metavar="NAME[,…]", help="Host names that browsers use, besides localhost and IP addresses."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--ssl-certfile", metavar="FILE", help="The console's own certificate (PEM).")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--ssl-keyfile", metavar="FILE", help="The key of the certificate (PEM).")
    ] = None,
    allow_anyone: Annotated[
        bool,
        typer.Option("--allow-anyone", help="Allow addresses beyond loopback without a login or without TLS."),
    ] = False,
) -> None:
    """Serve a web console of the cluster until Ctrl-C.

    If the brokers ask for passwords, users log in with theirs. Otherwise it listens on loopback addresses only.
    """
    from pyspark_log.cli.up import print_address
    from pyspark_log.console.serving import ConsoleServer
    from pyspark_log.local.foreground import TerminatedError, terminable

    server = ConsoleServer(
        console_settings(invocation),
        host=host,
        port=port,
        allowed_hosts=[name.strip() for name in (allowed_hosts or "").split(",") if name.strip()],
        allow_anyone=allow_anyone,
        certfile=certificate,
        keyfile=key,
    )
    invocation.say(f"Console    {server.address}  (brokers {invocation.bootstrap_servers}; Ctrl-C stops it)")
    print_address(server.address)
    with terminable():
        try:
            server.serve()
        except TerminatedError:
            invocation.say("Stopping.")
        except KeyboardInterrupt:
            invocation.say("\nStopping.")


def start_beside(invocation: Invocation, bootstrap_servers: str, port: int) -> ConsoleServer | None:
    """A console for the brokers that `pylog up` has started, in a thread. None if it cannot start: a message says why,
    and the brokers go on."""
    from broker_runtime.contract.errors import PylogError
    from pyspark_log.console.serving import ConsoleServer

    settings = {"client.id": "pylog-console", "bootstrap.servers": bootstrap_servers}
    try:
        server = ConsoleServer(settings, port=port)
    except PylogError as error:
        invocation.say(f"Console    not started: {error.message}")
        return None
    server.start()
    invocation.say(f"Console    {server.address}")
    return server


def console_settings(invocation: Invocation) -> dict[str, Any]:
    """The settings of all the console's clients."""
    given = {**invocation.settings("consumer"), **invocation.settings("producer"), **invocation.settings("admin")}
    own = {"group.id", "group.instance.id", "transactional.id", "columns", "where", "client.id"}
    kept = {name: value for name, value in given.items() if name not in own}
    return {"client.id": "pylog-console", **kept, "bootstrap.servers": invocation.bootstrap_servers}
