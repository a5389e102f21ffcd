"""The watches over peers continue when the system has no resources left for a look."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from broker_runtime.server import connections, streams
from broker_runtime.server.connection_watch import ConnectionWatch
from broker_runtime.server.memory_watch import MemoryWatch
from broker_runtime.server.streams import StreamTable
from broker_runtime.server.thread_watch import ThreadWatch
from tests.waiting import LIMIT_S

_Watch = ConnectionWatch | MemoryWatch | StreamTable | ThreadWatch

_MADE: dict[str, Callable[[Callable[..., None]], _Watch]] = {
    "connections": lambda look: ConnectionWatch(9, streaming=list, open_files=look),
    "memory": lambda look: MemoryWatch(9, taken_bytes=dict, memory_bytes=look),
    "streams": lambda look: StreamTable(9, patience=look),
    "threads": lambda look: ThreadWatch(9, stream_count=lambda: 0, streaming=dict, threads=look),
}


@pytest.mark.parametrize("watched", list(_MADE))
@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError()], ids=["files", "memory"])
def test_watch_looks_again_after_a_look_failed_for_lack_of_resources(
    watched: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that took the last file or byte remains watched."""
    monkeypatch.setattr(streams, "_STEP_S", 0.01)
    monkeypatch.setattr(connections, "keep_descriptor", lambda: None)
    monkeypatch.setattr(connections, "traffic", lambda port: {})
    looks = 0
    has_looked_again = threading.Event()

    def look(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise error
        has_looked_again.set()

    watch = _MADE[watched](look)
    watch.start(frozenset({0}))
    try:
        assert has_looked_again.wait(LIMIT_S)
    finally:
        watch.stop()
