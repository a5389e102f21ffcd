"""`pylog version` and `pylog completion`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pyspark_log.cli.invocation import Invocation, usage_error
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, print_rows

_SHELLS = ("bash", "zsh", "fish")


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    add_command(app, "version")(version)
    add_command(app, "completion", asks_cluster=False)(completion)


def version(invocation: Invocation) -> None:
    """Show the versions of pylog and of what it rests on. Also: pylog --version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    from broker_runtime.contract.requests import PROTOCOL_VERSION
    from pyspark_log import __version__

    versions = {"pylog": __version__, "protocol": str(PROTOCOL_VERSION), "python": sys.version.split()[0]}
    for name in ("pyspark", "pyarrow"):
        try:
            versions[name] = installed_version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    if invocation.output is None:
        sys.stdout.write(" ".join(f"{name} {value}" for name, value in versions.items()) + "\n")
        return
    columns = [Column(name, name.upper()) for name in versions]
    print_rows([versions], columns, invocation.output, name="pylog", one=True)


def completion(
    invocation: Invocation, shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")] = ""
) -> None:
    """Print a shell's completion script: eval "$(pylog completion bash)"."""
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in _SHELLS:
        raise usage_error(f"{chosen or 'no shell'}: say which, of {', '.join(_SHELLS)}")
    script = subprocess.run(
        [sys.executable, "-m", "pyspark_log.cli"],
        env={**os.environ, "_PYLOG_COMPLETE": f"source_{chosen}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    sys.stdout.write(script.stdout)
    if script.returncode != 0 or not script.stdout:
        sys.stderr.write(script.stderr)
        raise typer.Exit(1)
