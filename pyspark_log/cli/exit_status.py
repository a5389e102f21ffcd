"""The exit status of each error, and how errors are printed, for all commands.

0 success · 1 failure · 2 usage · 3 not found · 4 unreachable · 5 unhealthy, or lag over the limit · 130 interrupted
141 standard output closed by its reader · 143 terminated
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

# The first row with a class of the error decides; an error in no row has FAILED.
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
    """The exit status from which a script can tell the kind of error."""
    for classes, status in _STATUS:
        if isinstance(error, classes):
            return status
    return FAILED


@contextmanager
def translated_errors(*, verbose: int) -> Iterator[None]:
    """Prints an error as one line and ends the command with its status.

    A defect shows its traceback with ``verbose`` 1 or ``PYLOG_DEBUG`` in the environment, an expected error with 2. An
    error that was caused by a signal counts as that signal.
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
        raise  # typer's own: a decided exit, or an error of usage
    except Exception as error:  # noqa: BLE001 - users get one line, not a traceback
        behind = error.__context__
        while behind is not None and not isinstance(behind, KeyboardInterrupt):
            behind = behind.__context__
        if behind is not None:
            raise typer.Exit(TERMINATED if isinstance(behind, TerminatedError) else INTERRUPTED) from None
        say_defect(error, verbose=verbose)
        raise typer.Exit(FAILED) from None


def say_defect(error: Exception, *, verbose: int = 0) -> None:
    """Prints an unexpected error as one line, with its traceback if that is wanted."""
    is_shown = verbose >= 1 or bool(os.environ.get("PYLOG_DEBUG"))
    if is_shown:
        traceback.print_exception(error)
    text = " ".join(str(error).split())[:500]
    hint = "" if is_shown else ". This is a bug in pylog; -v shows where"
    say_error(f"[UNEXPECTED_ERROR] {type(error).__name__}: {text}{hint}")


def say_error(text: str) -> None:
    """Prints an error to standard error; its code is red on a terminal unless NO_COLOR is set."""
    code, bracket, rest = text.partition("]")
    if bracket and text.startswith("[") and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = f"\033[31m{code}]\033[0m{rest}"
    sys.stderr.write(text + "\n")


def give_up_stdout() -> None:
    """Redirects standard output to /dev/null, so that Python's flush at exit does not complain after `| head`."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
