"""What every command takes, wherever it stands: `pylog -o json topic list`, `pylog topic -o json list`,
`pylog topic list -o json`.

Rule: options are only gathered here, nearest to the command winning; `pyspark_log.cli.invocation` decides.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from pyspark_log.cli.exit_status import translated_errors
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.output import OutputFormat

_PANEL = "Options of every command"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The common options as given at one place; None, empty and 0 where not."""

    bootstrap_server: str | None = None
    setting: tuple[str, ...] = ()
    output: OutputFormat | None = None
    timeout: str | None = None
    yes: bool = False
    quiet: bool = False
    verbose: int = 0

    def then(self, nearer: GivenOptions) -> GivenOptions:
        """Both together; ``nearer`` (to the command's name) wins."""
        return GivenOptions(
            bootstrap_server=nearer.bootstrap_server or self.bootstrap_server,
            setting=self.setting + nearer.setting,
            output=nearer.output or self.output,
            timeout=nearer.timeout or self.timeout,
            yes=nearer.yes or self.yes,
            quiet=nearer.quiet or self.quiet,
            verbose=max(nearer.verbose, self.verbose),
        )


def _common(
    ctx: typer.Context,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "-b", "--bootstrap-server", metavar="HOST:PORT[,…]", help="Brokers of the cluster.", rich_help_panel=_PANEL
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="NAME=VALUE", help="A client setting; may be repeated.", rich_help_panel=_PANEL),
    ] = None,
    output: Annotated[
        OutputFormat | None,
        typer.Option(
            "-o", "--output", metavar="FORMAT", help="table, wide, json, jsonl, yaml or name.", rich_help_panel=_PANEL
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Seconds, or 500ms, 2m: give up then.", rich_help_panel=_PANEL),
    ] = None,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.", rich_help_panel=_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Results only, no remarks.", rich_help_panel=_PANEL)
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            help="Say more; twice: tracebacks.",
            rich_help_panel=_PANEL,
            show_default=False,
            metavar=" ",
        ),
    ] = 0,
) -> None:
    """The signature that all commands share; never called."""


def _readable(hint: Any, **changes: Any) -> Any:
    """The same annotation with a word for the value that help shows, where typer would show the type's name. A flag
    takes no value. ``changes`` of the option's other fields as well."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, option = get_args(hint)
    option = copy.copy(option)
    words = {str: "TEXT", int: "N"}
    kinds = [each for each in (kind, *get_args(kind)) if each in (bool, str, int)]
    if not option.metavar and kinds:
        option.metavar = words.get(kinds[0], " ")
    for name, value in changes.items():
        setattr(option, name, value)
    return Annotated[kind, option]


def _common_parameters(**changes: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(_common, include_extras=True)
    return [
        parameter.replace(annotation=_readable(hints[name], **changes), kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(_common).parameters.items()
    ]


_COMMON_PARAMETERS = _common_parameters()
_HIDDEN_PARAMETERS = _common_parameters(hidden=True)


def add_command(
    app: typer.Typer, name: str, *, hidden: bool = False, asks_cluster: bool = True
) -> Callable[[Callable[..., None]], Any]:
    """Decorator: ``function(invocation, …)`` becomes the command ``name`` of ``app``, with the common options; its help
    leaves them out where it asks no cluster (``asks_cluster``)."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        common = _COMMON_PARAMETERS if asks_cluster else _HIDDEN_PARAMETERS
        app.command(name, hidden=hidden)(_with_common_options(function, common))
        return function

    return register


def add_group(app: typer.Typer, name: str, help_text: str) -> typer.Typer:
    """A group of commands under ``name``, and under its plural as an alias that help does not list."""
    group = typer.Typer(help=help_text, no_args_is_help=True, add_completion=False)
    accept_common_options(group)
    app.add_typer(group, name=name)
    app.add_typer(group, name=f"{name}s", hidden=True)
    return group


def accept_common_options(group: typer.Typer, **callback: Any) -> None:
    """Lets the common options stand between the group's name and its command's."""

    def gather(ctx: typer.Context, **given: Any) -> None:
        _remember(ctx, given)

    _set_signature(gather, _COMMON_PARAMETERS)
    group.callback(**callback)(gather)


def _with_common_options(function: Callable[..., None], common: list[inspect.Parameter]) -> Callable[..., None]:
    hints = {name: _readable(hint) for name, hint in get_type_hints(function, include_extras=True).items()}
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]
    ]
    own_names = {parameter.name for parameter in own}

    @functools.wraps(function)
    def command(ctx: typer.Context, **values: Any) -> None:
        own_values = {name: value for name, value in values.items() if name in own_names}
        given = _remember(ctx, {name: value for name, value in values.items() if name not in own_names})
        with translated_errors(verbose=given.verbose):
            function(Invocation.resolve(given), **own_values)

    del command.__wrapped__  # typer would look through it, at the function's own signature
    _set_signature(command, [*own, *common])
    return command


def _remember(ctx: typer.Context, given: dict[str, Any]) -> GivenOptions:
    given["setting"] = tuple(given.get("setting") or ())
    nearer = GivenOptions(**given)
    ctx.obj = ctx.obj.then(nearer) if isinstance(ctx.obj, GivenOptions) else nearer
    merged: GivenOptions = ctx.obj
    return merged


def _set_signature(function: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    # Parameters without a default must come first only for positional kinds; all are keyword-only here.
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
