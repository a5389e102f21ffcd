"""`pylog`: every command with its arguments and options, as its ``--help`` has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docs.reference.markdown import sections, table
from pyspark_log.cli.app import pylog_command


def page() -> str:
    """The page."""
    whole = pylog_command()
    return sections(
        "# Commands",
        "Every command of `pylog`, as `pylog COMMAND --help` shows it. The guide "
        "[Command line](../guides/cli.md) says how they work together.",
        "## Options for every command",
        _parameters(whole),
        _plain(whole.epilog),
        *(_section(name, command) for name, command in every_command(whole, "pylog")),
    )


def every_command(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What is below ``group`` and not hidden: full names and commands."""
    for word in group.list_commands(None):
        command = group.commands[word]
        if not command.hidden:
            yield f"{name} {word}", command
            if hasattr(command, "commands"):
                yield from every_command(command, f"{name} {word}")


def _section(name: str, command: Any) -> str:
    level = "##" if name.count(" ") == 1 else "###"
    if hasattr(command, "commands"):
        return sections(f"{level} {name}", _plain(command.help))
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    usage = " ".join([name, *(_argument(each) for each in arguments if not each.hidden)])
    has_options = any(each.opts[0].startswith("-") and not each.hidden for each in command.params)
    return sections(
        f"{level} {name}",
        f"```text\n{usage}{' [OPTIONS]' if has_options else ''}\n```",
        _plain(command.help),
        _parameters(command),
    )


def _argument(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    return shown if argument.required else f"[{shown}]"


def _parameters(command: Any) -> str:
    shown = [each for each in command.params if not each.hidden and (each.help or each.opts[0].startswith("-"))]
    return table(("", ""), map(_row, shown)) if shown else ""


def _row(parameter: Any) -> tuple[str, str]:
    metavar = (parameter.metavar or "").strip()
    if parameter.opts[0].startswith("-"):
        names = ", ".join(f"`{each}`" for each in parameter.opts)
        names += f" `{metavar}`" if metavar else ""
    else:
        names = f"`{metavar or parameter.name.upper()}`"
    remarks = [
        "Required." if parameter.required and parameter.opts[0].startswith("-") else "",
        f"Environment: `{parameter.envvar}`." if parameter.envvar else "",
        f"Default: {_default(parameter)}." if _default(parameter) else "",
    ]
    return names, " ".join([_plain(parameter.help or ""), *filter(None, remarks)])


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default.strip("()")
    is_said = parameter.show_default and isinstance(parameter.default, str | int | float)
    return f"`{parameter.default}`" if is_said and not isinstance(parameter.default, bool) and parameter.default else ""


def _plain(text: str | None) -> str:
    # The words of rich's markup become markdown; what markdown would take for a tag or for emphasis stays text.
    marked = re.sub(r"\[/?bold\]", "`", text or "")
    pieces = re.split(r"(`[^`]*`)", marked)
    return "".join(
        piece if piece.startswith("`") else piece.replace("<", "&lt;").replace("*", "\\*") for piece in pieces
    )
