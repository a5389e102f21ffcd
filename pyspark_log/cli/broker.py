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
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="Its settings, as TOML.")],
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="FILE", help="Written when it serves: who and where, as JSON."),
    ] = None,
) -> None:
    """Run a broker in the foreground until SIGTERM or Ctrl-C. Its log goes to standard error; -q: warnings only."""
    from broker_runtime import memory
    from broker_runtime.broker_process import configure_logging, run
    from broker_runtime.contract.settings import load_broker_settings

    settings = load_broker_settings(config)
    configure_logging()
    if not invocation.quiet:
        # What all commands set up shows warnings only; a server tells what it does.
        logging.getLogger().setLevel(logging.DEBUG if invocation.verbose >= 2 else logging.INFO)
    memory.bound_arrow(memory.limit_bytes(settings))
    status = run(settings, ready_file=ready_file)
    logging.shutdown()
    sys.stderr.flush()
    # Not by returning: a thread that still waits for a peer must not hold the process.
    os._exit(status)
