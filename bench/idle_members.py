"""A process full of members that wait for a partition: ``python -m bench.idle_members BOOTSTRAP TOPIC COUNT``.

Prints ``ready`` when all have joined, and ends when its standard input does. Half of their cost here are their own
clients' threads; what counts is the broker's part.
"""

from __future__ import annotations

import os
import sys
import threading

from pyspark_log import Consumer


def main(bootstrap: str, topic: str, count: int) -> None:
    joined = threading.Semaphore(0)
    slots = threading.Semaphore(8)

    def wait() -> None:
        with slots:
            consumer = Consumer(topic, bootstrap_servers=bootstrap, group_id="idle", max_poll_interval_ms=3_600_000)
        joined.release()
        consumer.poll(3_000)

    for _ in range(count):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range(count):
        if not joined.acquire(timeout=240):
            sys.exit("not all members joined within 240 s")
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
