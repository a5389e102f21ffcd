"""Consumers of a group that read by themselves: in a thread, or in a process that can be killed or frozen.

Run as a program: ``readers.py <bootstrap> <topic> <group> <settings as JSON>`` prints events, one a line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyspark_log import Consumer, TopicPartition

LIMIT_S = 60.0

Event = tuple[str, list[list[int]]]
"""``assign``, ``revoke``, ``lost`` with partitions; or ``records`` with partitions and offsets, preceded by
``handed``: when poll returned them (monotonic, in ns).
"""


def read(
    consumer: Consumer, topics: Sequence[str], note: Callable[[Event], object], goes_on: Callable[[], bool]
) -> None:
    """Subscribes and polls."""

    def partitions(what: str) -> Callable[[list[TopicPartition]], object]:
        return lambda at: note((what, [[each.partition] for each in at]))

    consumer.subscribe(
        topics, on_assign=partitions("assign"), on_revoke=partitions("revoke"), on_lost=partitions("lost")
    )
    note(("subscribed", []))
    while goes_on():
        records, handed_ns = consumer.poll(0.05), time.monotonic_ns()
        if records:
            note(("handed", [[handed_ns]]))
            note(("records", [[record.partition, record.offset] for record in records]))


class _Noted:
    """The events of a reader so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def records(self) -> list[tuple[int, int]]:
        """Partition and offset of every record that poll returned."""
        return [
            (partition, offset)
            for what, all_of in list(self.events)
            if what == "records"
            for partition, offset in all_of
        ]

    @property
    def held(self) -> set[int]:
        """The partitions held, according to the callbacks."""
        held: set[int] = set()
        for what, partitions in list(self.events):
            numbers = {each[0] for each in partitions}
            if what == "assign":
                held |= numbers
            elif what in ("revoke", "lost"):
                held -= numbers
        return held

    @property
    def callbacks(self) -> list[Event]:
        """All events but the records."""
        return [event for event in list(self.events) if event[0] in ("assign", "revoke", "lost")]

    def first_since(self, count: int, since_ns: int) -> Event | None:
        """The first event after ``count`` others, ignoring records that poll had returned by ``since_ns`` but were
        noted later.
        """
        handed_ns = 0
        for what, values in self.events[count:]:
            if what == "handed":
                handed_ns = values[0][0]
            elif what != "records" or handed_ns >= since_ns:
                return what, values
        return None


class Reader(_Noted):
    """A consumer in a thread of its own. Leaving the ``with`` closes it."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: Any) -> None:
        super().__init__()
        self._topics = topics
        self._is_ended = False
        self.error: Exception | None = None
        self.consumer = Consumer(
            bootstrap_servers=bootstrap, group_id=group, **{"auto_offset_reset": "earliest", **settings}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.consumer:
                read(self.consumer, self._topics, self.events.append, lambda: not self._is_ended)
        except Exception as error:  # noqa: BLE001 - the test that made it looks
            self.error = error

    def close(self) -> None:
        self._is_ended = True
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReaderProcess(_Noted):
    """A consumer in a process of its own. Leaving the ``with`` kills it."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        super().__init__()
        self._process = subprocess.Popen(
            [sys.executable, __file__, bootstrap, topic, group, json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, partitions = json.loads(line)
            self.events.append((what, partitions))

    def send(self, sign: signal.Signals) -> None:
        self._process.send_signal(sign)

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._listener.join(LIMIT_S)


def main() -> None:
    """One reader, until it is killed."""
    bootstrap, topic, group, settings = sys.argv[1:]
    consumer = Consumer(
        bootstrap_servers=bootstrap, group_id=group, **{"auto_offset_reset": "earliest", **json.loads(settings)}
    )
    read(consumer, [topic], lambda event: print(json.dumps(event), flush=True), lambda: True)


if __name__ == "__main__":
    main()
