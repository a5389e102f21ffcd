"""`pylog zookeeper …`: run the bundled one; close what brokers keep there to others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import counted
from pyspark_log.cli.up import data_directory, print_address

if TYPE_CHECKING:
    from broker_runtime.zookeeper.client import KazooZooKeeper

_CONNECT_S = 15.0
_SESSION_MS = 10_000


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    add_command(group, "start")(start)
    add_command(group, "acl")(acl)


def start(
    invocation: Invocation,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Data directory.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 2181,
) -> None:
    """Run the ZooKeeper that comes with PySpark, in the foreground until Ctrl-C."""
    from broker_runtime.contract.errors import SetupError
    from broker_runtime.zookeeper.bundled import BundledZooKeeper
    from pyspark_log.local.foreground import terminable

    directory = data.expanduser() if data is not None else data_directory(None) / "zookeeper"
    server = BundledZooKeeper(directory, host=host, port=port)
    with terminable():
        try:
            server.start()
            invocation.say(f"ZooKeeper is listening on {server.address}; its data is in {directory}. Ctrl-C stops it.")
            print_address(server.connect_string)
            while server.is_running:
                time.sleep(0.5)
        except KeyboardInterrupt:  # or SIGTERM
            return
        finally:
            server.stop()
    raise SetupError(f"ZooKeeper stopped unexpectedly; its log is in {directory}")


def acl(
    invocation: Invocation,
    broker_config: Annotated[
        Path, typer.Option("--broker-config", metavar="FILE", help="A broker's settings.", show_default=False)
    ],
    unsecure: Annotated[
        bool, typer.Option("--unsecure", help="Open it to everybody again, before zookeeper.set.acl is taken away.")
    ] = False,
) -> None:
    """Close all that brokers have written in ZooKeeper to everybody else.

    For a cluster that began without zookeeper.set.acl: first give it to all brokers, with a username or a certificate,
    and restart them one by one; then run this once. (Kafka: zookeeper-security-migration.sh.)
    """
    from broker_runtime.contract.errors import InvalidConfigError
    from broker_runtime.contract.settings import load_broker_settings
    from broker_runtime.zookeeper.session import NoNodeError

    settings = load_broker_settings(broker_config)
    if settings.zookeeper_username is None and settings.zookeeper_ssl_certfile is None:
        raise InvalidConfigError(
            f"{broker_config}: neither zookeeper.username nor zookeeper.ssl.certfile is set, so nobody could be let in"
        )
    count = 0
    with as_broker(broker_config) as client:
        left = ["/"]
        while left:
            path = left.pop()
            try:
                children = client.children(path)
                client.set_acl(path, is_closed=not unsecure)
            except NoNodeError:
                continue  # it was deleted meanwhile
            count += 1
            left += [f"{path.rstrip('/')}/{name}" for name in children]
    invocation.say(f"{'Opened' if unsecure else 'Closed'} {counted(count, 'znode')} at {settings.zookeeper_connect}.")


@contextmanager
def as_broker(broker_config: Path) -> Iterator[KazooZooKeeper]:
    """A client of ZooKeeper as the broker with these settings has it. Raises `InvalidConfigError`,
    `ZooKeeperUnavailableError`."""
    from broker_runtime.contract.settings import load_broker_settings
    from broker_runtime.zookeeper.client import KazooZooKeeper, ZooKeeperAccess

    settings = load_broker_settings(broker_config)
    client = KazooZooKeeper.connect(
        settings.zookeeper_connect,
        session_timeout_ms=_SESSION_MS,
        connect_timeout_s=_CONNECT_S,
        access=ZooKeeperAccess.of(settings),
    )
    try:
        yield client
    finally:
        client.close()
