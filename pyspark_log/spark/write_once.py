"""``write_once``: a batch write inside ``foreachBatch`` that leaves its rows in the log once."""

from __future__ import annotations

from typing import Any


def write_once(df: Any, batch_id: int, *, app_id: str, **options: str) -> None:
    """Writes ``df`` to pylog unless batch ``batch_id`` of ``app_id`` has been written already.

    For ``foreachBatch``: Spark calls it again with the same batch after a failure. ``app_id``: names this write, and no
    other one of the query. ``options``: as for ``df.write.format("pylog")``, with ``_`` for ``.`` in names that begin
    with ``pylog_`` (``topic="t"``, ``pylog_bootstrap_servers="host:9192"``). Raises what the write raises: an earlier
    batch, or the same one with other contents, is an error.
    """
    named = {
        name.replace("_", ".") if name.startswith("pylog_") else name: str(value) for name, value in options.items()
    }
    writer = df.write.format("pylog").mode("append").options(**named)
    writer.option("txnAppId", app_id).option("txnVersion", str(batch_id)).save()
