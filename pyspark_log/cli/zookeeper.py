"""`pylog zookeeper start`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.up import data_directory, print_address


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    add_command(group, "start")(start)


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
