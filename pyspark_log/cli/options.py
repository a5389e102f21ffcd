"""The options that every command takes, in any place: `pylog -o json topic list`, `pylog topic -o json list`,
`pylog topic list -o json`.

Rule: options are only gathered here, and the one nearest to the command's name wins; `pyspark_log.cli.invocation`
interprets them. `pylog --help` documents them once; the help of a command names them in one line.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from pyspark_log.cli import complete
from pyspark_log.cli.exit_status import translated_errors
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.output import OutputFormat

_PANEL = "Options for every command"
_EPILOG = "Options for every command (-b -X -o --timeout -y -q -v): pylog --help"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The common options given in one place; None, empty or 0 where they are not."""

    bootstrap_server: str | None = None
    setting: tuple[str, ...] = ()
    output: OutputFormat | None = None
    timeout: str | None = None
    yes: bool = False
    quiet: bool = False
    verbose: int = 0

    def then(self, nearer: GivenOptions) -> GivenOptions:
        """Merges both; ``nearer`` (to the command's name) wins."""
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
            "-b",
            "--bootstrap-server",
            metavar="HOST:PORT[,…]",
            help="Brokers to connect to.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "-X",
            metavar="NAME=VALUE",
            help="A client setting; repeatable.",
            rich_help_panel=_PANEL,
            autocompletion=complete.client_settings,
        ),
    ] = None,
    output: Annotated[
        OutputFormat | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FORMAT",
            help="table, wide, json(l), yaml, name.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Give up after 10 (s), 500ms, 2m.", rich_help_panel=_PANEL),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Skip confirmation.", rich_help_panel=_PANEL)] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print results only, no messages.", rich_help_panel=_PANEL)
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            help="Print more; -vv adds tracebacks.",
            rich_help_panel=_PANEL,
            show_default=False,
            metavar=" ",
        ),
    ] = 0,
) -> None:
    """The signature that all commands share. Never called."""


def _readable(hint: Any, **changes: Any) -> Any:
    """The same annotation with a metavar that people understand, where typer would show the type's name.

    A flag takes no value. ``changes``: other fields of the option to set.
    """
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


_SHOWN_PARAMETERS = _common_parameters()
_HIDDEN_PARAMETERS = _common_parameters(hidden=True)


def add_command(
    app: typer.Typer, name: str, *, hidden: bool = False, panel: str | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Decorator: ``function(invocation, …)`` becomes the command ``name`` of ``app``, with the common options.

    ``panel``: the heading under which the help of ``app`` lists it.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        command = _with_common_options(function)
        app.command(name, hidden=hidden, epilog=_EPILOG, rich_help_panel=panel)(command)
        return function

    return register


def add_group(app: typer.Typer, name: str, help_text: str, *, panel: str) -> typer.Typer:
    """A group of commands under ``name``, and under its plural as an alias that help does not list.

    ``panel``: the heading under which the help of ``app`` lists it.
    """
    group = typer.Typer(help=help_text, no_args_is_help=True, add_completion=False, epilog=_EPILOG)
    accept_common_options(group, hidden=True)
    app.add_typer(group, name=name, rich_help_panel=panel)
    app.add_typer(group, name=f"{name}s", hidden=True)
    return group


def accept_common_options(group: typer.Typer, *, hidden: bool, more: Sequence[inspect.Parameter] = ()) -> None:
    """Lets the common options stand between the group's name and its command's. ``more``: options whose own callback
    does all there is to do."""

    def gather(ctx: typer.Context, **given: Any) -> None:
        names = {parameter.name for parameter in more}
        _remember(ctx, {name: value for name, value in given.items() if name not in names})

    _set_signature(gather, [*(_HIDDEN_PARAMETERS if hidden else _SHOWN_PARAMETERS), *more])
    group.callback()(gather)


def _with_common_options(function: Callable[..., None]) -> Callable[..., None]:
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

    del command.__wrapped__  # typer would take the signature of the function behind it
    _set_signature(command, [*own, *_HIDDEN_PARAMETERS])
    return command


def _remember(ctx: typer.Context, given: dict[str, Any]) -> GivenOptions:
    given["setting"] = tuple(given.get("setting") or ())
    nearer = GivenOptions(**given)
    ctx.obj = ctx.obj.then(nearer) if isinstance(ctx.obj, GivenOptions) else nearer
    merged: GivenOptions = ctx.obj
    return merged


def _set_signature(function: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    # All parameters are keyword-only, so those without a default may come after others.
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
