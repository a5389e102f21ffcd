"""Several servers started at the same time: a process needs a second or two to come up, whether alone or not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol


class Startable(Protocol):
    """A server process. ``start`` blocks, for a bounded time, until it serves; ``kill`` ends it, and such a wait."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


def start_together(servers: Sequence[Startable]) -> None:
    """Starts all and returns when all serve. Raises the first error; then, and if interrupted, none of them runs."""
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
            # A start that had not made its process yet when it was killed makes it now.
            wait(starts)
            for server in servers:
                server.kill()
            raise
