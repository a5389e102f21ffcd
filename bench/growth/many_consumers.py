"""A process with consumers that wait: ``python -m bench.growth.many_consumers BOOTSTRAP TOPIC COUNT``.

Each has a thread in ``poll_batches``. Prints ``ready`` when all have polled once, then, for each record that all of
them have got, how many that are and when the last one had it (ns of CLOCK_MONOTONIC). Ends when its standard input
does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter

from pyspark_log import Consumer

_AT_ONCE = 10
"""So many consumers connect at the same time."""


def main(bootstrap: str, topic: str, count: int) -> None:
    polled = threading.Semaphore(0)
    lock = threading.Lock()
    have: Counter[int] = Counter()

    def wait() -> None:
        consumer = Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        seen, is_first = 0, True
        while True:
            got = sum(consumed.batch.num_rows for consumed in consumer.poll_batches(timeout=0.5 if is_first else 5))
            now_ns = time.monotonic_ns()
            for _ in range(got):
                seen += 1
                with lock:
                    have[seen] += 1
                    if have[seen] == count:
                        print(seen, now_ns, flush=True)
            if is_first:
                polled.release()
                is_first = False

    for number in range(count):
        threading.Thread(target=wait, daemon=True).start()
        if number >= _AT_ONCE and not polled.acquire(timeout=60):
            sys.exit("no consumer came to poll within 60 s")
    for _ in range(min(count, _AT_ONCE)):
        if not polled.acquire(timeout=60):
            sys.exit("not all consumers came to poll within 60 s")
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
