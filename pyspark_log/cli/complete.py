"""What Tab completes: names of topics and groups, as the cluster has them.

Rule: it is quick and silent. A shell that waits for Tab gets nothing after `_LIMIT_S`, and nothing where no broker is,
instead of an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from broker_runtime.contract.errors import PylogError

if TYPE_CHECKING:
    from pyspark_log import Admin

_LIMIT_S = 1.0


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of topics that begin so."""
    return _asked(ctx, incomplete, lambda admin: admin.list_topics())


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids of groups that begin so."""
    return _asked(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def _asked(ctx: typer.Context, incomplete: str, names: Callable[[Admin], list[str]]) -> list[str]:
    from pyspark_log.cli.invocation import Invocation
    from pyspark_log.cli.options import GivenOptions

    logging.disable()
    given = GivenOptions()
    place: typer.Context | None = ctx
    while place is not None:
        params = place.params
        given = GivenOptions(
            bootstrap_server=params.get("bootstrap_server"), setting=tuple(params.get("setting") or ())
        ).then(given)
        place = place.parent  # type: ignore[assignment]
    with contextlib.suppress(PylogError, OSError, ValueError):
        invocation = Invocation.resolve(given)
        with replace(invocation, timeout_s=_LIMIT_S, timeout_is_given=True).admin() as admin:
            return [name for name in sorted(names(admin)) if name.startswith(incomplete)]
    return []
