"""What the console shows of a real query: its group, lag and host where it reads; its id and micro-batches where it
writes."""

from __future__ import annotations

import re
import uuid
from html import unescape

import httpx2 as httpx

from pyspark_log.console.serving import ConsoleServer
from tests.spark.queries import LIMIT_S, stream_of
from tests.waiting import wait_until

ROWS = 40


def test_query_is_seen_by_its_group_and_by_its_id(spark, options, pylog_cluster, new_topic, send, checkpoint) -> None:
    """While it runs, and what it wrote also afterwards."""
    source, target, group = new_topic("in"), new_topic("out"), f"g-{uuid.uuid4().hex[:8]}"
    send(source, range(ROWS))
    console = ConsoleServer({"bootstrap.servers": pylog_cluster.bootstrap_servers}, port=0)
    console.start()
    try:
        with httpx.Client(base_url=console.address, timeout=LIMIT_S, trust_env=False) as client:

            def row_of(name: str) -> list[str]:
                """The cells of the table's row that begins with that name; none while there is no such row."""
                page = client.get("/queries")
                assert page.status_code == 200
                rows = re.findall(r"<tr>(.*?)</tr>", page.text, re.DOTALL)
                cells = [[unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in _cells(row)] for row in rows]
                return next((found for found in cells if found and found[0] == name), [])

            frame = stream_of(
                spark, {**options, "subscribe": source, "startingOffsets": "earliest", "pylog.group.id": group}
            )
            writing = frame.select("value").writeStream.format("pylog").options(**options).option("topic", target)
            query = writing.option("checkpointLocation", checkpoint).start()
            try:
                wait_until(
                    lambda: row_of(group)[2:4] == ["0", source] and "stable" in row_of(group)[1],
                    "the query has read all, as the one member of its group",
                    LIMIT_S,
                )
                assert row_of(group)[4], "where it runs"
                name = str(query.id)
                wait_until(lambda: "commit" in "".join(row_of(name)[1:2]), "the query has written", LIMIT_S)
                assert row_of(name)[2:4] == ["0", str(ROWS)]
            finally:
                query.stop()
            assert row_of(str(query.id))[3] == str(ROWS)
    finally:
        console.close()


def _cells(row: str) -> list[str]:
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
