"""`pylog version` (also `pylog --version`) and `pylog completion`."""

from __future__ import annotations

import inspect
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

# Bash ends a word at : and =, which stand within words here (flights:0, retention.ms=7d). So the line is taken apart at
# blanks, and what stands before the last : or = is taken off the answers, as bash has it as a word already. Answers are
# read line by line, as bash would expand a group's id like * to the names of files.
_BASH_SCRIPT = r"""
_pylog_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" words count answer before=""
    read -r -a words <<< "$line"
    count=$(( ${#words[@]} - 1 ))
    [[ "$line" == *[[:space:]] ]] && count=${#words[@]}
    [[ $count -lt ${#words[@]} && "${words[count]}" == *[:=]* ]] && before="${words[count]%"${words[count]##*[:=]}"}"
    COMPREPLY=()
    while IFS= read -r answer; do
        [[ -n "$answer" ]] && COMPREPLY+=( "$answer" )
    done < <( env COMP_WORDS="$line" COMP_CWORD="$count" _PYLOG_COMPLETE=complete_bash "$1" )
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[:=] ]] && compopt -o nospace
    COMPREPLY=( "${COMPREPLY[@]#"$before"}" )
    return 0
}

complete -o default -F _pylog_completion pylog
"""


def add_to(app: typer.Typer, *, panel: str) -> None:
    """Adds the commands, listed under the heading ``panel``."""
    add_command(app, "version", panel=panel)(version)
    add_command(app, "completion", panel=panel)(completion)


def version(invocation: Invocation) -> None:
    """Show the versions of pylog, Python and packages."""
    versions = installed_versions()
    if invocation.output is None:
        sys.stdout.write(_version_line(versions))
        return
    shown = {name: value or "not installed" for name, value in versions.items()}
    columns = [Column(name, name.upper()) for name in shown]
    print_rows([shown], columns, invocation.output, name="pylog", one=True)


def installed_versions() -> dict[str, str | None]:
    """Of pylog, its protocol, Python, and what it uses; None: not installed. Imports none of them."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    from broker_runtime.contract.requests import PROTOCOL_VERSION
    from pyspark_log import __version__

    versions: dict[str, str | None] = {
        "pylog": __version__,
        "protocol": str(PROTOCOL_VERSION),
        "python": sys.version.split()[0],
    }
    for name in ("pyspark", "pyarrow"):
        try:
            versions[name] = installed_version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _version_line(versions: dict[str, str | None]) -> str:
    return " ".join(f"{name} {value}" for name, value in versions.items() if value is not None) + "\n"


def _print_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(_version_line(installed_versions()))
        raise typer.Exit


VERSION_OPTION = inspect.Parameter(
    "version",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--version",
            metavar=" ",
            is_eager=True,
            callback=_print_version,
            help="Show versions and exit.",
        ),
    ],
)
"""The option `--version` of `pylog` itself."""


def completion(
    invocation: Invocation, shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")] = ""
) -> None:
    """Print the completion script of a shell.

    Put this into ~/.bashrc: eval "$(pylog completion bash)". Tab then completes commands, topics and groups.
    """
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in _SHELLS:
        raise usage_error(f"{chosen or 'SHELL'}: choose one of {', '.join(_SHELLS)}")
    if chosen == "bash":
        sys.stdout.write(_BASH_SCRIPT)
        return
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
