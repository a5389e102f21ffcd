"""A client of one version of pylog, which goes on while brokers are replaced; `test_rolling_upgrade.py` starts it.

    upgrade_client.py produce|transact|consume SERVERS TOPIC NAME FILE    until standard input ends
    upgrade_client.py read SERVERS TOPIC NAME FILE                        what is there

Each line of FILE is a record: ``partition offset value``. A producer's were acknowledged (``transact``: committed), a
consumer's were delivered. Uses only what the previous version has, too.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from pyspark_log import Consumer, Producer, read

PAUSE_S = 0.2  # six clients and three brokers share two cores
BATCH = 10
QUIET_S = 3.0
LIMIT_S = 60


def main() -> None:
    kind, servers, topic, name, file = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with Path(file).open("w") as out:
        if kind == "read":
            for batch in read(topic, bootstrap_servers=servers):
                for row in batch.select(["partition", "offset", "value"]).to_pylist():
                    out.write(f"{row['partition']} {row['offset']} {row['value'].decode()}\n")
        elif kind == "consume":
            consume(servers, topic, name, out, ended)
        else:
            produce(servers, topic, name, out, ended, is_transactional=kind == "transact")


def produce(
    servers: str, topic: str, name: str, out: TextIO, ended: threading.Event, *, is_transactional: bool
) -> None:
    """Ends with an error if a record is refused: a client of a cluster that is upgraded notices nothing."""
    number = 0
    with Producer(servers, acks="all", **({"transactional_id": name} if is_transactional else {})) as producer:
        while not ended.is_set():
            if is_transactional:
                producer.begin_transaction()
            values = [f"{name}:{each}" for each in range(number, number + BATCH)]
            futures = [producer.send(topic, value.encode(), key=value.encode()) for value in values]
            producer.flush(LIMIT_S)
            stored = [future.result(LIMIT_S) for future in futures]
            if is_transactional:
                producer.commit_transaction()
            for value, at in zip(values, stored, strict=True):
                out.write(f"{at.partition} {at.offset} {value}\n")
            out.flush()
            number += BATCH
            time.sleep(PAUSE_S)


def consume(servers: str, topic: str, name: str, out: TextIO, ended: threading.Event) -> None:
    """Once it has been told to end, until nothing comes any more."""
    heard_s = time.monotonic()
    with Consumer(topic, bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest") as consumer:
        while not ended.is_set() or time.monotonic() - heard_s < QUIET_S:
            for record in consumer.poll(0.5):
                out.write(f"{record.partition} {record.offset} {record.value.decode()}\n")
                heard_s = time.monotonic()
            out.flush()


if __name__ == "__main__":
    main()
