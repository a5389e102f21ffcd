"""Each page of the console, with 1,000 topics: from the request to its last byte.

One broker; each topic has two partitions and a record, and there are fifty groups. Every look is at a console that was
just started and has shown one small page, because a console keeps what took a cluster long to tell: a page is measured
as who comes first sees it. Promised is that none takes 300 ms, the median over the rounds.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from bench.harness import Figure, below
from bench.workspace import Workspace

TOPICS = 1_000
GROUPS = 50
PAGES = (
    "/", "/topics", "/topics?q=7&sort=size&page=2", "/topics/topic-0000", "/topics/topic-0000/records", "/groups",
    "/groups/group-00", "/groups/group-00/reset?to=latest", "/queries", "/transactions", "/brokers", "/brokers/1",
    "/moves", "/access",
)  # fmt: skip
CONNECTS = "/access"  # it asks a broker, and for nothing that another page shows
LIMIT_MS = 300.0
_ANSWER_LIMIT_S = 60.0


def run(workspace: Workspace) -> Iterator[Figure]:
    from pyspark_log import Admin
    from pyspark_log.console.serving import ConsoleServer

    topics = workspace.scaled(TOPICS)
    with workspace.cluster_of("console", brokers=1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        _fill(cluster, admin, topics)

        def first_look_ms(page: str) -> float:
            server = ConsoleServer({"bootstrap.servers": cluster.bootstrap_servers}, port=0)
            server.start()
            try:
                _page_ms(server.address, CONNECTS)
                return _page_ms(server.address, page)
            finally:
                server.close()

        for page in PAGES:
            times = [first_look_ms(page) for _ in range(workspace.rounds + 1)][1:]
            median = statistics.median(times)
            print(f"  {page}: {median:.0f} ms", file=sys.stderr, flush=True)
            yield Figure(
                name=f"console, {page}, {topics:,} topics",
                unit="ms",
                ours=median,
                judged=median,
                spread=(min(times), max(times)),
                promises=(below(LIMIT_MS, "ms"),),
            )


def _fill(cluster: Any, admin: Any, topics: int) -> None:
    from pyspark_log import Producer, TopicPartition

    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(topics):
            name = f"topic-{number:04}"
            admin.create_topic(name, partitions=2)
            producer.send(name, b"a record")
        producer.flush(timeout=120)
    for number in range(GROUPS):
        admin.alter_group_offsets(f"group-{number:02}", {TopicPartition(f"topic-{number:04}", 0): 0})


def _page_ms(address: str, page: str) -> float:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=_ANSWER_LIMIT_S)
    try:
        started = time.perf_counter()
        connection.request("GET", page)
        answer = connection.getresponse()
        answer.read()
        took_s = time.perf_counter() - started
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{page}: status {answer.status}")
    return took_s * 1000
