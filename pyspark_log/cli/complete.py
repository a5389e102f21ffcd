"""What Tab completes: topics, partitions, groups and brokers, as the cluster has them, and names of settings.

Rule: completion is quick and silent. A shell that waits for Tab gets nothing after `_LIMIT_S`, or where the cluster
cannot be reached; it never gets an error. Settings are those of `broker_runtime.contract.settings`, without a cluster.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from broker_runtime.contract.errors import PylogError

if TYPE_CHECKING:
    from pyspark_log import Admin

_LIMIT_S = 1.0
_SCOPE_OF_COMMAND: dict[str | None, tuple[Any, ...]] = {"produce": ("producer",), "consume": ("consumer",)}


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics: ``fli`` becomes ``flights``."""
    return _beginning_with(incomplete, _ask(ctx, lambda admin: admin.list_topics()))


def partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Partitions: ``fli`` becomes ``flights:``, and ``flights:`` becomes ``flights:0``, ``flights:1`` …"""
    if ":" in incomplete:
        return _partitions_of_topic(ctx, incomplete)
    return [f"{name}:" for name in topics(ctx, incomplete)]


def topics_or_partitions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics, and behind a colon their partitions; behind a comma more of them (``flights:0,2``)."""
    return _partitions_of_topic(ctx, incomplete) if ":" in incomplete else topics(ctx, incomplete)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of consumer groups."""
    return _beginning_with(incomplete, _ask(ctx, lambda admin: [group.group_id for group in admin.list_groups()]))


def transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids."""
    found = _ask(ctx, lambda admin: [each.transactional_id for each in admin.list_transactions()])
    return _beginning_with(incomplete, found)


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of brokers; behind a comma more of them (``2,3``)."""
    chosen, comma, _ = incomplete.rpartition(",")
    taken = chosen.split(",")
    ids = _ask(ctx, lambda admin: [str(each) for each in admin.describe_cluster().brokers])
    return _beginning_with(incomplete, (f"{chosen}{comma}{each}" for each in ids if each not in taken))


def topic_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """NAME=VALUE of a topic: ``ret`` becomes ``retention.ms=``, ``flush.mode=`` becomes ``flush.mode=ack`` …"""
    return _settings(("topic",), incomplete)


def topic_setting_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of a topic's settings."""
    return [text.removesuffix("=") for text in _settings(("topic",), incomplete)]


def quotas(ctx: typer.Context, incomplete: str) -> list[str]:
    """NAME= of a limit: ``prod`` becomes ``producer_byte_rate=``."""
    from broker_runtime.contract.quotas import LIMITS

    return _beginning_with(incomplete, (f"{name}=" for name in LIMITS))


def client_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """NAME=VALUE of the client that the command uses; where there is no command yet, of any client."""
    command = getattr(ctx, "command", None)
    any_client = ("producer", "consumer", "admin")
    scopes = any_client if hasattr(command, "commands") else _SCOPE_OF_COMMAND.get(ctx.info_name, ("admin",))
    return _settings(scopes, incomplete)


def _partitions_of_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    topic = incomplete.partition(":")[0]
    before = re.split(r"[^:,]*\Z", incomplete, maxsplit=1)[0]
    taken = incomplete[len(topic) + 1 :].split(",")[:-1]
    numbers = _ask(ctx, lambda admin: [str(each.partition) for each in admin.describe_topic(topic).partitions])
    return _beginning_with(incomplete, (f"{before}{number}" for number in numbers if number not in taken))


def _settings(scopes: Iterable[Any], incomplete: str) -> list[str]:
    from broker_runtime.contract.settings import settings_of
    from broker_runtime.contract.settings.kinds import Kind

    known = {
        name: setting
        for scope in scopes
        for name, setting in settings_of(scope).items()
        if setting.kind is not Kind.SECRET  # which no argument may have
    }
    name, equals, _ = incomplete.partition("=")
    if equals:
        choices = known[name].choices if name in known else ()
        return _beginning_with(incomplete, (f"{name}={choice}" for choice in choices))
    return sorted(_beginning_with(incomplete, (f"{name}=" for name in known)))


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _ask(ctx: typer.Context, names: Callable[[Admin], list[str]]) -> list[str]:
    """What the cluster answers, with the brokers that the line names; nothing where it does not answer in time."""
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
            return sorted(names(admin), key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name))
    return []
