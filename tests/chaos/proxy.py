"""A forwarding proxy that can cut and slow down the network between processes of this machine.

Every broker advertises the address of a proxy, and reaches ZooKeeper through one; so every connection of the cluster
passes here. The source of a connection is found by the owner of its socket (``/proc``, so Linux only). A cut behaves
like a lost network: bytes stop, nothing is reset, and new connections hang; when it heals, they continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from broker_runtime.ports import choose_port

_CHUNK_BYTES = 256 << 10
_CALL_LIMIT_S = 10.0
_T = TypeVar("_T")


@dataclass(eq=False)
class _Direction:
    """One direction of one link: open or cut, and how much its bytes are delayed."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        self.is_open.set()


@dataclass(eq=False)
class _Link:
    """All connections of one source to one target."""

    to_target: _Direction = field(default_factory=_Direction)
    to_source: _Direction = field(default_factory=_Direction)


@dataclass(eq=False)
class _Proxy:
    """One listening port, in front of one port of the target."""

    target: str
    target_port: int
    port: int
    source: str | None  # None: any source
    server: asyncio.Server | None = None


class Network:
    """All proxies, on one thread of their own. Thread-safe. Close it at the end."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """``processes``: the pids of the named processes; all others are ``"client"``."""
        self._processes = processes
        self.first_answers: dict[tuple[str, str], bytes] = {}  # of the last connection from a source to a target
        self._links: dict[tuple[str, str], _Link] = {}
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._proxies: list[_Proxy] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def add(self, target: str, port: int, *, source: str | None = None) -> int:
        """A new proxy in front of ``127.0.0.1:port``, which is called ``target`` from now on; returns its port.

        ``source``: who alone uses it; None: who connects is found by the socket, which takes its time.
        """
        return self._call(self._add(target, port, source))

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """From now on nothing passes from ``source`` to ``target`` (``one_way``), nor back."""
        self._call(self._set(source, target, is_open=False, one_way=one_way))

    def heal(self, source: str, target: str) -> None:
        """Everything passes again, held-back bytes first."""
        self._call(self._set(source, target, is_open=True, one_way=False))

    def delay(self, source: str, target: str, delay_s: float) -> None:
        """Delays bytes by that much, both ways."""
        self._call(self._slow(source, target, delay_s))

    def refuse(self, target: str, is_refusing: bool) -> None:
        """``target``'s proxies stop listening, like the port of a dead process, or listen again."""
        self._call(self._refuse(target, is_refusing))

    def heal_all(self) -> None:
        """No link is cut or slow any more."""
        for source, target in list(self._links):
            self.heal(source, target)
            self.delay(source, target, 0.0)

    def close(self) -> None:
        """Ends all proxies and their connections."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_LIMIT_S)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_CALL_LIMIT_S)

    # --- on the proxies' thread -------------------------------------------------------------------------------

    async def _add(self, target: str, port: int, source: str | None) -> int:
        proxy = _Proxy(target, port, choose_port(), source)
        self._proxies.append(proxy)
        await self._listen(proxy)
        return proxy.port

    async def _listen(self, proxy: _Proxy) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                # Only `close` cancels it: that is no error of the connection's.
                with contextlib.suppress(asyncio.CancelledError):
                    await self._forward(proxy, reader, writer)
            finally:
                self._tasks.discard(task)

        proxy.server = await asyncio.start_server(serve, "127.0.0.1", proxy.port, limit=_CHUNK_BYTES)

    async def _refuse(self, target: str, is_refusing: bool) -> None:
        for proxy in self._proxies:
            if proxy.target != target:
                continue
            if is_refusing and proxy.server is not None:
                proxy.server.close()
                proxy.server = None
            elif not is_refusing and proxy.server is None:
                await self._listen(proxy)

    async def _set(self, source: str, target: str, *, is_open: bool, one_way: bool) -> None:
        link = self._link(source, target)
        for direction in (link.to_target,) if one_way else (link.to_target, link.to_source):
            (direction.is_open.set if is_open else direction.is_open.clear)()

    async def _slow(self, source: str, target: str, delay_s: float) -> None:
        link = self._link(source, target)
        link.to_target.delay_s = link.to_source.delay_s = delay_s

    async def _end(self) -> None:
        for proxy in self._proxies:
            if proxy.server is not None:
                proxy.server.close()
        if self._looking is not None:
            await self._looking
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _source(self, peer_port: int) -> str:
        """Who has connected from this port. All who wait are found in one look: there may be storms of them."""
        found = self._asked[peer_port] = self._loop.create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await found

    async def _look(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            owners = await asyncio.to_thread(_owners, set(asked), self._processes())
            for port, found in asked.items():
                if not found.done():
                    found.set_result(owners.get(port, "client"))

    def _note_first(self, source: str, target: str) -> Callable[[bytes], None]:
        def note(data: bytes) -> None:
            self.first_answers[source, target] = data

        return note

    def _link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link())

    async def _forward(self, proxy: _Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer_port: int = writer.get_extra_info("peername")[1]
        source = proxy.source or await self._source(peer_port)
        link = self._link(source, proxy.target)
        onward: asyncio.StreamWriter | None = None
        try:
            await link.to_target.is_open.wait()
            answers, onward = await asyncio.open_connection("127.0.0.1", proxy.target_port, limit=_CHUNK_BYTES)
            ways = [
                asyncio.create_task(_pump(reader, onward, link.to_target)),
                asyncio.create_task(_pump(answers, writer, link.to_source, self._note_first(source, proxy.target))),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # a refused port: this end is closed too, as the source would have seen
        finally:
            for each in (writer, onward):
                if each is not None:
                    each.transport.abort()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    direction: _Direction,
    note_first: Callable[[bytes], None] | None = None,
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            if note_first is not None:
                note_first(data)
                note_first = None
            if direction.delay_s:
                await asyncio.sleep(direction.delay_s)
            await direction.is_open.wait()
            writer.write(data)
            await writer.drain()


def _owners(ports: Collection[int], processes: Mapping[str, int]) -> dict[int, str]:
    """Which of the processes have established sockets with these local ports."""
    sockets = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split(None, 10)
                port = int(fields[1].rpartition(":")[2], 16)
                if port in ports and fields[9] != "0":
                    sockets[f"socket:[{fields[9]}]"] = port
    found = {}
    for name, pid in processes.items():
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - hundreds, often
                with contextlib.suppress(OSError):
                    port_of = sockets.get(os.readlink(f"/proc/{pid}/fd/{descriptor}"))  # noqa: PTH115 - not a path
                    if port_of is not None:
                        found[port_of] = name
    return found
