"""Which error ends the command with which status, and how it is told: one place for all commands.

0 done · 1 failed · 2 usage · 3 not found · 4 unreachable · 5 unhealthy, or lag over the limit · 130 interrupted
141 nobody reads on · 143 terminated
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from broker_runtime.contract import errors
from pyspark_log.local.foreground import TerminatedError

DONE, FAILED, USAGE, NOT_FOUND, UNREACHABLE, UNHEALTHY = range(6)
INTERRUPTED = 128 + signal.SIGINT
NOBODY_READS = 128 + signal.SIGPIPE
TERMINATED = 128 + signal.SIGTERM

# The first row with a class that fits decides; what fits none has FAILED.
_STATUS: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((errors.UnknownTopicOrPartitionError, errors.GroupIdNotFoundError), NOT_FOUND),
    (
        (
            errors.BrokerUnavailableError,
            errors.NetworkError,
            errors.RequestTimedOutError,
            errors.NotAPylogBrokerError,
            errors.DeliveryTimeoutError,
            errors.ZooKeeperUnavailableError,
            errors.TooManyStreamsError,
            errors.BrokerOverloadedError,
            errors.CoordinatorNotAvailableError,
        ),
        UNREACHABLE,
    ),
    (
        (
            errors.InvalidConfigError,
            errors.InvalidTopicError,
            errors.InvalidPartitionsError,
            errors.InvalidReplicationFactorError,
            errors.InvalidReplicaAssignmentError,
            errors.InvalidSchemaError,
            errors.InvalidGroupIdError,
            errors.OptionError,
            errors.NotSupportedError,
        ),
        USAGE,
    ),
)


def status_of(error: errors.PylogError) -> int:
    """The exit status that tells a script what kind of error it was."""
    for classes, status in _STATUS:
        if isinstance(error, classes):
            return status
    return FAILED


@contextmanager
def translated_errors(*, verbose: int) -> Iterator[None]:
    """Ends the command with one line instead of letting an error through.

    A defect shows its traceback with ``verbose`` 1 or ``PYLOG_DEBUG`` in the environment, an expected error from 2 on.
    What comes of a signal that was raised in the middle of something is that signal.
    """
    try:
        yield
    except errors.PylogError as error:
        if verbose >= 2:
            traceback.print_exc()
        say_error(str(error))
        raise typer.Exit(status_of(error)) from None
    except TerminatedError:
        raise typer.Exit(TERMINATED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        give_up_stdout()
        raise typer.Exit(NOBODY_READS) from None
    except OSError as error:
        if verbose >= 2:
            traceback.print_exc()
        say_error(f"[IO_ERROR] {error.filename or 'input or output'}: {error.strerror or error}")
        raise typer.Exit(FAILED) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise  # typer's own: an end that was decided, and errors of usage
    except Exception as error:  # noqa: BLE001 - the commands' edge: a user gets a line, not a traceback
        behind = error.__context__
        while behind is not None and not isinstance(behind, KeyboardInterrupt):
            behind = behind.__context__
        if behind is not None:
            raise typer.Exit(TERMINATED if isinstance(behind, TerminatedError) else INTERRUPTED) from None
        say_defect(error, verbose=verbose)
        raise typer.Exit(FAILED) from None


def say_defect(error: Exception, *, verbose: int = 0) -> None:
    """An error that nobody expected, as one line; with its traceback where that is wanted."""
    is_shown = verbose >= 1 or bool(os.environ.get("PYLOG_DEBUG"))
    if is_shown:
        traceback.print_exception(error)
    text = " ".join(str(error).split())[:500]
    hint = "" if is_shown else ". This is a defect of pylog; -v shows where"
    say_error(f"[UNEXPECTED_ERROR] {type(error).__name__}: {text}{hint}")


def say_error(text: str) -> None:
    """One error on standard error; red on a terminal unless NO_COLOR."""
    code, bracket, rest = text.partition("]")
    if bracket and text.startswith("[") and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = f"\033[31m{code}]\033[0m{rest}"
    sys.stderr.write(text + "\n")


def give_up_stdout() -> None:
    """Points standard output at nothing, so that Python's own flush at exit does not complain about `| head`."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
