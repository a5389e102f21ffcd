"""`pylog txn …`: transactional ids, what is open, and aborting it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_runtime.contract.errors import InvalidTxnStateError
from pyspark_log.cli import complete
from pyspark_log.cli.exit_status import NOT_FOUND, say_error
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.model import TransactionListing

_ID = typer.Argument(
    help="A producer's transactional.id, or a Spark query's id.",
    metavar="ID",
    show_default=False,
    autocompletion=complete.transactional_ids,
)
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}

_ID_COLUMNS = [
    Column("transactional_id", "ID"),
    Column("batch_id", "BATCH"),
    Column("outcome", "OUTCOME"),
    Column("rows", "ROWS"),
    Column("decided_at", "DECIDED"),
    Column("unfinished", "UNFINISHED"),
    Column("epoch", "EPOCH", wide_only=True),
    Column("run_id", "RUN", wide_only=True),
    Column("timeout_ms", "TIMEOUT-MS", wide_only=True),
]
_OPEN_COLUMNS = [
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION"),
    Column("first_offset", "FIRST OFFSET"),
    Column("batch_id", "BATCH"),
    Column("open_s", "OPEN-S"),
    Column("producer_id", "PRODUCER", wide_only=True),
    Column("attempt", "ATTEMPT", wide_only=True),
    Column("run_id", "RUN", wide_only=True),
]


def add_to(group: typer.Typer) -> None:
    """Adds the commands."""
    for name, function in (("list", list_ids), ("describe", describe), ("abort", abort)):
        add_command(group, name)(function)
    add_command(group, "ls", hidden=True)(list_ids)


def list_ids(invocation: Invocation) -> None:
    """List transactional ids and the last batch that was decided of each."""
    with invocation.admin() as admin:
        found = admin.list_transactions()
    if not found and invocation.output in _TABLES:
        invocation.say(
            "No transactional ids yet. A Spark query that writes has one, and a producer with transactional.id."
        )
        return
    print_rows([_row(each) for each in found], _ID_COLUMNS, invocation.output, name="transactional_id")


def describe(invocation: Invocation, transactional_id: Annotated[str, _ID]) -> None:
    """Show what is open of a transactional id, where, and for how long.

    Readers of committed records wait in front of the first offset.
    """
    with invocation.admin() as admin:
        listing = next((each for each in admin.list_transactions() if each.transactional_id == transactional_id), None)
        found, silent = admin.list_open_transactions(transactional_id)
    if listing is None and not found:
        raise _not_found(transactional_id)
    rows = [{**asdict(each), "open_s": each.open_ms // 1000} for each in found]
    if invocation.output in _TABLES:
        if listing is not None:
            last = "nothing decided yet" if listing.batch_id < 0 else f"batch {listing.batch_id} {listing.outcome}"
            invocation.say(f"Transactional id {transactional_id}: {last}, {counted(len(rows), 'open transaction')}")
        if rows:
            print_rows(rows, _OPEN_COLUMNS, invocation.output, name="topic")
    elif invocation.output in {OutputFormat.NAME, OutputFormat.JSONL}:
        named = [{"name": f"{row['topic']}:{row['partition']}", **row} for row in rows]
        print_rows(named, _OPEN_COLUMNS, invocation.output, name="name")
    else:
        whole = {**({} if listing is None else _row(listing)), "transactional_id": transactional_id, "open": rows}
        print_rows([whole], _ID_COLUMNS, invocation.output, name="transactional_id", one=True)
    if silent:
        say_error(f"brokers that did not answer, and may have more: {', '.join(map(str, silent))}")


def abort(invocation: Invocation, transactional_id: Annotated[str, _ID]) -> None:
    """Abort what is open of a transactional id. Asks for confirmation unless -y.

    Whoever has the id now cannot commit any more (PRODUCER_FENCED). What was decided stays.
    """
    with invocation.admin() as admin:
        invocation.confirm_name(
            f"This aborts what is open of {transactional_id}, and its producer or query fails.",
            transactional_id,
            what="its id",
        )
        try:
            admin.abort_transactions(transactional_id)
        except InvalidTxnStateError:
            raise _not_found(transactional_id) from None
    invocation.say(f"Aborted what was open of {transactional_id}.")


def _not_found(transactional_id: str) -> typer.Exit:
    """Says so, in the words of Kafka's error, which no request of this protocol has."""
    say_error(
        f"[TRANSACTIONAL_ID_NOT_FOUND] no transactional id {transactional_id!r}. "
        "List those that are known: pylog txn list"
    )
    return typer.Exit(NOT_FOUND)


def _row(listing: TransactionListing) -> dict[str, Any]:
    decided = datetime.fromtimestamp(listing.decided_at_ms / 1000, UTC) if listing.decided_at_ms >= 0 else None
    return {
        "transactional_id": listing.transactional_id,
        "batch_id": None if listing.batch_id < 0 else listing.batch_id,
        "outcome": listing.outcome,
        "rows": listing.rows,
        "decided_at": None if decided is None else decided.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "unfinished": len(listing.unfinished),
        "epoch": listing.epoch,
        "run_id": listing.run_id,
        "timeout_ms": listing.timeout_ms,
    }
