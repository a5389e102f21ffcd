"""`pylog broker start`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    add_command(group, "start")(start)


def start(
    invocation: Invocation,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="TOML file with the broker's settings.")],
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="FILE", help="JSON file to write when the broker is ready."),
    ] = None,
) -> None:
    """Run a broker in the foreground until SIGTERM or Ctrl-C.

    Its log goes to standard error; -q logs warnings only.
    """
    from broker_runtime import memory
    from broker_runtime.broker_process import configure_logging, run
    from broker_runtime.contract.settings import load_broker_settings

    settings = load_broker_settings(config)
    configure_logging(settings)
    if not invocation.quiet:
        # Commands log warnings only; a server logs what it does.
        logging.getLogger().setLevel(logging.DEBUG if invocation.verbose >= 2 else logging.INFO)
    memory.bound_arrow(memory.limit_bytes(settings))
    status = run(settings, ready_file=ready_file)
    logging.shutdown()
    sys.stderr.flush()
    # Do not return: a thread that still waits for a peer must not keep the process alive.
    os._exit(status)
