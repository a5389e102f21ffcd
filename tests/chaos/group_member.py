"""``python -m tests.chaos.group_member``: one worker of a group, as a process that can be killed and frozen.

It commits after each record, and writes a line for each event at once and straight to the file, so that a kill loses no
line: ``<monotonic ns> <what> …``. All processes of the machine share that clock.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pyspark_log import Consumer, TopicPartition
from pyspark_log.errors import FencedError, PylogError, RetriableError, WakeupError


class Diary:
    """The lines of one worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def line(self, *words: object) -> None:
        """Writes one event, now."""
        os.write(self._file, " ".join(map(str, (time.monotonic_ns(), *words))).encode() + b"\n")

    def of(self, what: str) -> Callable[[list[TopicPartition]], None]:
        """A callback that records the partitions."""
        return lambda partitions: self.line(what, *(at.partition for at in partitions))


def main() -> None:
    """Works until SIGTERM, then leaves the group in order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--session-ms", type=int, required=True)
    parser.add_argument("--diary", type=Path, required=True)
    options = parser.parse_args()
    diary = Diary(options.diary)
    consumer = Consumer(
        bootstrap_servers=options.servers,
        group_id=options.group,
        client_id=options.name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        request_timeout_ms=20_000,
    )
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True
        consumer.wakeup()

    signal.signal(signal.SIGTERM, stop)
    is_subscribed = False
    while not is_stopping:
        try:
            if not is_subscribed:
                consumer.subscribe(
                    [options.topic],
                    on_assign=diary.of("assign"),
                    on_revoke=diary.of("revoke"),
                    on_lost=diary.of("lost"),
                )
                is_subscribed = True
            work(consumer, diary)
        except WakeupError:
            continue
        except PylogError as error:
            diary.line("error", type(error).__name__)
            time.sleep(0.2)
    try:
        consumer.close()
    except PylogError as error:
        diary.line("error", type(error).__name__)
    diary.line("end")


def work(consumer: Consumer, diary: Diary) -> None:
    """Processes records forever, each once it is committed. Raises what the consumer raises."""
    for record in consumer:
        diary.line("got", record.partition, record.offset, (record.value or b"").decode())
        try:
            consumer.commit(record)
        except (FencedError, RetriableError) as error:
            # The partition may be another member's now, or the commit's outcome is unknown: later events show it.
            diary.line("doubt", record.partition, record.offset, type(error).__name__)
        else:
            diary.line("done", record.partition, record.offset)


if __name__ == "__main__":
    main()
