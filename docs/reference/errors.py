"""The tree of errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from broker_runtime.contract import errors
from broker_runtime.contract.errors import PylogError
from docs.reference.markdown import sections, table
from pyspark_log.cli.exit_status import status_of


def page() -> str:
    """The page."""
    tree = inspect.getdoc(errors) or ""
    drawing = tree[tree.index("PylogError") : tree.index("In a producer's transaction")]
    return sections(
        "# Errors",
        "Every error is a class of `pyspark_log.errors` with `code` (Kafka's name where it has one), `retriable` and a "
        "message that names what is wrong and what is allowed or to be done. All pickle, and in Spark the same text is "
        "in the query's exception. [Errors you may meet](../guides/troubleshooting.md) says what to do about the most "
        "common ones.",
        table(
            ("error", "code", "retriable", "exit status of `pylog`", "what it means"),
            (_row(error) for error in every_error(PylogError)),
        ),
        "## The tree",
        f"```text\n{inspect.cleandoc(drawing)}\n```",
    )


def every_error(error: type[PylogError]) -> Iterator[type[PylogError]]:
    """The error and all below it, each once, in the order of their definition."""
    yield error
    for kind in error.__subclasses__():
        if kind.__module__ == PylogError.__module__:  # not those that a program defines for itself
            yield from every_error(kind)


def _row(error: type[PylogError]) -> tuple[str, ...]:
    return (
        f"`{error.__name__}`",
        f"`{error.code}`",
        "yes" if error.retriable else "no",
        str(status_of(error("…"))),
        (inspect.getdoc(error) or "").split("\n\n")[0],
    )
