"""Spark queries, as far as brokers know of them, and transactions.

A query that reads under a ``pylog.group.id`` is the only member of that group. A query that writes has a transactional
id, its query id by default, and each of its micro-batches is a transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import (
    GroupListing,
    MemberDescription,
    OpenTransactionDescription,
    TransactionListing,
)
from pyspark_log.console.visit import Done, Page, Visit, ask, portion

_MOST_QUERIES: Final = 50
_RUN_OF_SPARK: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")  # a producer's has no dashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A query that reads. ``member`` None: unknown, or it has just left. ``lag`` None: not known."""

    group_id: str
    member: MemberDescription | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A query that writes. ``opened``: what is open of its next micro-batch."""

    listing: TransactionListing
    opened: tuple[OpenTransactionDescription, ...]


def queries(visit: Visit) -> Page:
    """The queries that read, and those that write."""
    admin = visit.connection.admin
    listed = [each for each in admin.list_groups() if each.kind == "spark"]
    listings = ask(admin.list_transactions)
    opened = ask(admin.list_open_transactions)
    writers = [
        Writer(
            listing=each,
            opened=tuple(one for one in (opened.value or ((), ()))[0] if one.transactional_id == each.transactional_id),
        )
        for each in listings.value or ()
        if _RUN_OF_SPARK.match(each.run_id)
    ]
    writers.sort(key=lambda each: -each.listing.decided_at_ms)
    return Page(
        template="queries.html",
        title="Spark queries",
        section="/queries",
        every_s=3,
        values={
            "readers": [_reader(visit, each) for each in listed[:_MOST_QUERIES]],
            "more_readers": max(0, len(listed) - _MOST_QUERIES),
            "writers": writers[:_MOST_QUERIES],
            "more_writers": max(0, len(writers) - _MOST_QUERIES),
            "why": listings.why,
        },
    )


def _reader(visit: Visit, listing: GroupListing) -> Reader:
    admin = visit.connection.admin
    told = ask(lambda: admin.describe_group(listing.group_id))
    offsets = ask(lambda: admin.list_group_offsets(listing.group_id))
    members = told.value.members if told.value is not None else ()
    return Reader(
        group_id=listing.group_id,
        member=members[0] if members else None,
        lag=None if offsets.value is None else sum(max(0, each.lag) for each in offsets.value.values()),
    )


def transactions(visit: Visit) -> Page:
    """What is open, and all transactional ids."""
    admin = visit.connection.admin
    opened, silent = admin.list_open_transactions()
    listings = admin.list_transactions()
    wanted = visit.query.get("q", "").strip().lower()
    rows = [each for each in listings if wanted in each.transactional_id.lower()]
    limits = {each.transactional_id: each.timeout_ms for each in listings}
    return Page(
        template="transactions.html",
        title="Transactions",
        section="/transactions",
        every_s=3,
        values={
            "opened": opened, "silent": silent, "limits": limits, "wanted": visit.query.get("q", "").strip(),
            "shown": portion(rows, visit.number("page", 1, least=1)), "total": len(listings),
        },
    )  # fmt: skip


def abort(visit: Visit) -> Done:
    """Aborts what is open of a transactional id."""
    transactional_id = visit.form.get("id", "")
    if not transactional_id:
        raise OptionError("enter the transactional id to abort")
    if visit.form.get("confirm") != "yes":
        raise OptionError("tick the box to confirm: its producer or query can no longer commit the transaction")
    visit.connection.admin.abort_transactions(transactional_id)
    return Done("/transactions", f"Aborted the open transaction of {transactional_id}.")
