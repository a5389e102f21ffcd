"""The consuming process: ``python -m bench.timeline.consumer BOOTSTRAP TOPIC``.

Prints ``ready`` when it has its partition, then for each record its value and when `poll` had returned it (ns of
CLOCK_MONOTONIC). Ends when its standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from pyspark_log import Consumer


def main(bootstrap: str, topic: str) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout=0.5)
        print("ready", flush=True)
        while True:
            for record in consumer.poll(timeout=5):
                got_ns = time.monotonic_ns()
                print(int(record.value), got_ns, flush=True)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
