"""A process full of consumers that wait: ``python -m bench.idle_consumers BOOTSTRAP TOPIC COUNT``.

Each has a thread in ``poll_batches``. Prints ``ready`` when all have polled once, and ends when its standard input
does.
"""

from __future__ import annotations

import os
import sys
import threading

from pyspark_log import Consumer


def main(bootstrap: str, topic: str, count: int) -> None:
    polled = threading.Semaphore(0)

    def wait() -> None:
        consumer = Consumer(topic, bootstrap_servers=bootstrap)
        consumer.poll_batches(timeout=0.1)
        polled.release()
        while True:
            consumer.poll_batches(timeout=5)

    for _ in range(count):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range(count):
        if not polled.acquire(timeout=120):
            sys.exit("not all consumers came to poll within 120 s")
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
