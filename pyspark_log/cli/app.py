"""The tree of commands, and the way out: what ends outside a command still ends with the right status."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer

from pyspark_log.cli import (
    broker,
    cluster,
    consume,
    doctor,
    group,
    log,
    partition,
    produce,
    shell,
    topic,
    up,
    zookeeper,
)
from pyspark_log.cli.exit_status import DONE, FAILED, INTERRUPTED, NOBODY_READS, give_up_stdout, say_defect, say_error
from pyspark_log.cli.options import accept_common_options, add_group
from pyspark_log.cli.output import prepare_streams

_HELP = """A partitioned log made for PySpark.

Start a cluster on this machine with [bold]pylog up[/bold], make a topic with [bold]pylog topic create[/bold],
then [bold]pylog produce[/bold] and [bold]pylog consume[/bold].

Exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 unreachable, 5 unhealthy or lag over the limit, 130 interrupted,
143 terminated.
Options win over PYLOG_… in the environment, those over ~/.config/pylog/config.toml.
"""


def build() -> typer.Typer:
    """The whole `pylog`."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    accept_common_options(app)
    up.add_to(app)
    doctor.add_to(app)
    topic.add_to(add_group(app, "topic", "Create, list, describe, change and delete topics."))
    partition.add_to(add_group(app, "partition", "Move partitions between brokers, and choose their leaders."))
    group.add_to(add_group(app, "group", "List, describe, reset and delete consumer groups."))
    produce.add_to(app)
    consume.add_to(app)
    log.add_to(add_group(app, "log", "Look into a log directory, without a broker."))
    cluster.add_to(add_group(app, "cluster", "Look at the cluster's brokers and health, and take brokers out."))
    broker.add_to(add_group(app, "broker", "Run a broker."))
    zookeeper.add_to(add_group(app, "zookeeper", "Run the bundled ZooKeeper."))
    shell.add_to(app)
    return app


def run() -> None:
    """Runs `pylog` with the process's arguments and ends the process."""
    try:
        _run()
    except SystemExit as ended:
        _end(ended.code)
    _end(DONE)


def _end(code: str | int | None) -> NoReturn:
    # Python is not taken down: a thread of Arrow or gRPC that wants to call into it meanwhile (to let go of a file that
    # it read ahead) would abort the process, SIGABRT instead of the status. What is to be ended, commands have ended.
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
        command = typer.main.get_command(build())
        _help_plainly(command)
        command(["version"] if sys.argv[1:] == ["--version"] else None, prog_name="pylog")
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
    except Exception as error:  # noqa: BLE001 - the last edge: what no command was there to translate
        say_defect(error)
        sys.exit(FAILED)


def _help_plainly(command: Any) -> None:
    """Help shows arguments as `TOPIC`, without the braces that some versions of typer add, and `--help` itself, as all
    flags, without the name of a type."""
    for parameter in command.params:
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


def _flush_stdout(*, has_failed: bool) -> None:
    # Python's own flush comes after the exit status is decided and would print its complaint.
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
