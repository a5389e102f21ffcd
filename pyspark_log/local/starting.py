"""Starts several servers at the same time, because each needs a second or two."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol


class Startable(Protocol):
    """A server process. ``start`` blocks for a limited time until it serves; ``kill`` ends the process and the wait."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


def start_together(servers: Sequence[Startable]) -> None:
    """Starts all servers and returns when all serve. Raises the first error. After an error, and when interrupted, none
    of them is left running."""
    if len(servers) == 1:
        servers[0].start()
        return
    with ThreadPoolExecutor(max_workers=max(1, len(servers)), thread_name_prefix="start") as pool:
        starts = [pool.submit(server.start) for server in servers]
        try:
            ended, _ = wait(starts, return_when=FIRST_EXCEPTION)
            for start in ended:
                start.result()
        except BaseException:
            for start in starts:
                start.cancel()
            for server in servers:
                server.kill()
            # A start that had not created its process yet when it was killed creates it now.
            wait(starts)
            for server in servers:
                server.kill()
            raise
