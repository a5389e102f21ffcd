"""The tree of commands, and how the process ends: with the right status, also for errors outside a command."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from pyspark_log.cli import broker, cluster, console, doctor, group, log, partition, shell, topic, txn, up, zookeeper
from pyspark_log.cli.access import acl, quota, user
from pyspark_log.cli.exit_status import DONE, FAILED, INTERRUPTED, NOBODY_READS, give_up_stdout, say_defect, say_error
from pyspark_log.cli.invocation import usage_error
from pyspark_log.cli.options import accept_common_options, add_group
from pyspark_log.cli.output import prepare_streams
from pyspark_log.cli.records import consume, produce

_HELP = """A partitioned log made for PySpark.

First steps: [bold]pylog up[/bold] in one terminal; in another [bold]pylog topic create hello[/bold],
[bold]pylog produce hello[/bold] and [bold]pylog consume hello[/bold].
"""
_EPILOG = (
    "An option wins over PYLOG_… in the environment, which wins over ~/.config/pylog/config.toml. Exit status: "
    "0 success, 1 failure, 2 usage, 3 not found, 4 unreachable, 5 unhealthy or lag over the limit, 130 interrupted, "
    "143 terminated."
)
_START, _RECORDS, _MANAGE, _SERVERS, _SHELL = (
    "Getting started", "Records", "Topics, groups and cluster", "Servers and their files", "This program",
)  # fmt: skip


def build() -> typer.Typer:
    """The whole `pylog`."""
    app = typer.Typer(
        help=_HELP,
        epilog=_EPILOG,
        cls=_InOrder,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    accept_common_options(app, hidden=False, more=[shell.VERSION_OPTION])
    up.add_to(app, panel=_START)
    doctor.add_to(app, panel=_START)
    console.add_to(app, panel=_START)
    produce.add_to(app, panel=_RECORDS)
    consume.add_to(app, panel=_RECORDS)
    topic.add_to(add_group(app, "topic", "Create, list, describe, alter and delete topics.", panel=_MANAGE))
    partition.add_to(add_group(app, "partition", "Move partitions and elect leaders.", panel=_MANAGE))
    group.add_to(add_group(app, "group", "List, describe, reset and delete consumer groups.", panel=_MANAGE))
    txn.add_to(add_group(app, "txn", "List, describe and abort transactions.", panel=_MANAGE))
    cluster.add_to(add_group(app, "cluster", "Show brokers and health, decommission a broker.", panel=_MANAGE))
    user.add_to(add_group(app, "user", "Add, list and delete users, change passwords.", panel=_MANAGE))
    acl.add_to(add_group(app, "acl", "Say who may do what.", panel=_MANAGE))
    quota.add_to(add_group(app, "quota", "Limit how much clients may take.", panel=_MANAGE))
    broker.add_to(add_group(app, "broker", "Run one broker.", panel=_SERVERS))
    zookeeper.add_to(add_group(app, "zookeeper", "Run the bundled ZooKeeper.", panel=_SERVERS))
    log.add_to(add_group(app, "log", "Inspect, verify and repair log files, without a broker.", panel=_SERVERS))
    shell.add_to(app, panel=_SHELL)
    return app


class _InOrder(TyperGroup):
    """Lists the commands heading by heading, where typer would list all commands before all groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        headings = (_START, _RECORDS, _MANAGE, _SERVERS, _SHELL)
        shown = [name for name, command in self.commands.items() if _heading(command) in headings]
        rest = [name for name in self.commands if name not in shown]
        return sorted(shown, key=lambda name: headings.index(_heading(self.commands[name]))) + rest


def _heading(command: Any) -> str:
    return str(getattr(command, "rich_help_panel", ""))


@functools.cache
def pylog_command() -> Any:
    """The whole `pylog`, as it is called."""
    built = typer.main.get_command(build())
    _help_plainly(built)
    return built


def run() -> None:
    """Runs `pylog` with the process's arguments and ends the process."""
    try:
        _run()
    except SystemExit as ended:
        _end(ended.code)
    _end(DONE)


def _end(code: str | int | None) -> NoReturn:
    # The interpreter is not shut down: a thread of Arrow or gRPC that calls into it meanwhile (to release a file that
    # it read ahead) would abort the process with SIGABRT. Commands have already closed what must be closed.
    atexit._run_exitfuncs()
    if isinstance(code, str):
        say_error(code)
        code = FAILED
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(DONE if code is None else code)


def _run() -> None:
    prepare_streams()
    try:
        pylog_command()(prog_name="pylog")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        give_up_stdout()
        sys.exit(NOBODY_READS)
    except SystemExit as ended:
        _flush_stdout(has_failed=ended.code not in {0, None})
        raise ended from None
    except OSError as error:
        give_up_stdout()
        say_error(f"[IO_ERROR] {error.filename or 'standard output'}: {error.strerror or error}")
        sys.exit(FAILED)
    except Exception as error:  # noqa: BLE001 - an error outside every command
        say_defect(error)
        sys.exit(FAILED)


def _help_plainly(command: Any) -> None:
    """Makes help plain: arguments as `TOPIC`, without the braces that some versions of typer add; flags, `--help`
    among them, without the name of a type; and without typer's options for completion, which are refused."""
    for parameter in command.params:
        if parameter.name in {"install_completion", "show_completion"}:
            parameter.hidden = True
            parameter.callback = _refuse_completion
        _ask_for_numbers_plainly(parameter)
        if parameter.param_type_name == "argument":
            shown = parameter.metavar or parameter.name.upper()
            usage = shown if parameter.required or shown.startswith("[") else f"[{shown}]"
            parameter.display_type_rich = lambda ctx: None
            parameter._usage_display_name = lambda usage=usage: usage
        elif getattr(parameter, "is_flag", False) and not parameter.metavar:
            parameter.metavar = " "
    help_option_of = command.get_help_option

    def get_help_option(ctx: Any) -> Any:
        option = help_option_of(ctx)
        if option is not None:
            option.metavar = " "
        return option

    command.get_help_option = get_help_option
    for each in getattr(command, "commands", {}).values():
        _help_plainly(each)


def _ask_for_numbers_plainly(parameter: Any) -> None:
    """Text where a number is wanted is refused in the words of this command line, whatever typer's own are."""
    process = parameter.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        try:
            return process(ctx, value)
        except typer.BadParameter as error:
            if "valid integer" not in error.message:
                raise
            raise usage_error(f"must be a number, not {value!r}") from None  # typer puts the name before it

    parameter.process_value = process_value


def _refuse_completion(ctx: Any, parameter: Any, value: object) -> None:
    """typer's script for bash, which these options install or show, breaks words at the colon of ``flights:0``."""
    if value and not ctx.resilient_parsing:
        raise usage_error('use `pylog completion`. For bash, put this into ~/.bashrc:\neval "$(pylog completion bash)"')


def _flush_stdout(*, has_failed: bool) -> None:
    # Python's own flush comes after the exit status is decided, and would print a traceback.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_stdout()
        sys.exit(NOBODY_READS)
    except OSError as error:
        give_up_stdout()
        if not has_failed:
            say_error(f"[IO_ERROR] standard output: {error.strerror or error}")
            sys.exit(FAILED)
