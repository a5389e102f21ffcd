"""More calls than can be served: they are noticed by the threads they hold, refused, and their connections are cut.

gRPC starts a thread for each call that comes while all others are busy, and all of them wait for the interpreter's
lock: a client that pipelines calls, or abandons each one at once, causes thousands in a second, and so does the end of
a connection on which many had begun. Nothing in Flight limits that.

    threads beyond those of streams ─ a quarter of the limit ─▶ check: what has come on each connection
                                      the limit ─▶ new calls are refused, except those of other brokers, and until
                                                   three quarters of it are left no thread is started: gRPC refuses any
                                                   call that needs one (`refuse_threads`)
                                                   connections without a stream that sent more than a little: cut
                                                   if there were none for a while: the one with a stream that sent most
                                                   beyond what its streams took
                              half of it, for seconds ─▶ answers that nobody takes: `StreamTable.cut_silent` cuts all
                                                   connections without a stream (`patience`)

A call whose answer is not taken holds its thread in gRPC, where nobody sees which connection it belongs to, and a few
dozen calls on each of some connections are no flood by their bytes.

Rule: a check keeps the interpreter's lock from its beginning to the last cut. Any call that begins may have to make the
check: it has the lock already, while the watch's own thread may have to wait long for it. Costs one small read every
`_STEP_S`, or whenever a call begins, while there are few threads. Other brokers' connections are never cut. Does
nothing where the system has no such counters (not Linux).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker_runtime.contract.events import event
from broker_runtime.contract.settings import Address
from broker_runtime.contract.thread_limit import refuse_threads
from broker_runtime.contract.threads import thread_count
from broker_runtime.contract.waiting import CLOCK, Clock, Worker
from broker_runtime.server import connections
from broker_runtime.server.connections import PeerAddress, Traffic
from broker_runtime.server.openings import Patience

_STEP_S: Final = 0.05
_JOIN_LIMIT_S: Final = 1.0
_COUNT_EVERY_S: Final = 0.002
_CHECK_EVERY_S: Final = 0.01
_WINDOW_S: Final = 1.0  # what has come before does not count
_PATIENCE_S: Final = 1.0  # the streams of a connection excuse it for so long
_ANSWER_S: Final = 2.0  # a connection without a stream may hold threads for so long where they are short
_STUCK_S: Final = 12.0  # by then every such connection has been cut
# Each thread that waits for the interpreter's lock wakes at this interval to ask for it: thousands do nothing else. It
# must not be longer either: a wake-up may be lost (glibc before 2.41, bug 25847), and this is when the next one comes.
_MANY_SWITCH_S: Final = 0.1
_MANY_BYTES: Final = 128 << 10  # about 800 calls, in a second
_LEAST_BYTES: Final = 32 << 10  # about 200 calls; a connection that has sent less is not the cause
_ANSWERED_PART: Final = 16  # acknowledgements of what a client reads: at most such a part of it

_WHY_HELD: Final = "threads"
_NEW_BYTES: Final = 4 << 10  # of a connection that is new since the last check

_logger = logging.getLogger(__name__)


class Streaming(NamedTuple):
    """The streams of a connection."""

    taken_bytes: int  # what their messages can have been sent in
    is_broker: bool  # another broker's are among them


class ThreadWatch:
    """`start` once, `stop` once; `is_full` from any thread. `step` is the thread's, or a test's."""

    def __init__(
        self,
        limit: int,
        *,
        stream_count: Callable[[], int],
        streaming: Callable[[], Mapping[PeerAddress, Streaming]],
        threads: Callable[[], int | None] = thread_count,
        clock: Clock = CLOCK,
    ) -> None:
        """``limit``: of threads, not counting two for each of ``stream_count``. ``streaming``: the connections that
        have streams. Neither may block for long."""
        self._limit = limit
        self._stream_count = stream_count
        self._streaming = streaming
        self._threads = threads
        self._clock = clock
        self._counted_s = 0.0
        self._excess = 0  # threads that belonged to no stream, when they were counted last
        self._is_many = False
        self._is_refusing = False  # no thread can be started at present
        self._is_held = False  # no new connections are accepted at present
        self._switch_s = sys.getswitchinterval()
        self._checked_s = 0.0
        self._crowded_s: float | None = None  # since when there were more than half of the limit at each count
        self._helped_s = 0.0  # when there were few threads, or a connection was cut
        self._window_s = 0.0  # when `_before` was seen
        self._before: dict[PeerAddress, tuple[int, int, int]] = {}  # received, acknowledged, taken by its streams
        self._checking = threading.Lock()
        self._cut: deque[tuple[PeerAddress, int, int]] = deque()  # to be logged: writing may wait
        self._ports: connections.Ports = frozenset()
        # Retried: there was no descriptor or memory left to count with, and there may be soon.
        self._worker = Worker(
            "thread-watch",
            self._watch,
            on_defect=lambda defect: refuse_threads(False),  # or nobody would allow any
            retried=(OSError, MemoryError),
            again_s=_STEP_S,
        )

    def start(self, ports: connections.Ports) -> None:
        """Begins to watch the threads, and the connections to ``ports``."""
        self._ports = ports
        self._worker.start()

    def stop(self) -> None:
        """Ends the thread; waits up to a second for it."""
        self._worker.stop()
        self._worker.join(_JOIN_LIMIT_S)
        refuse_threads(False)

    def is_full(self) -> bool:
        """Whether a call that begins now is to be refused. Counts the threads first if it is time to."""
        if self._clock.now_s() - self._counted_s >= _COUNT_EVERY_S:
            self.step()
        return self._excess > self._limit

    @property
    def is_flooded(self) -> bool:
        """Whether there were many threads that belong to no stream, when they were counted last."""
        return self._is_many

    def patience(self) -> Patience | None:
        """What is to be done about connections that may hold threads for answers that they do not take; None: nothing.
        It needs no start and no lock."""
        crowded_s = self._crowded_s
        if crowded_s is None:
            return None
        is_stuck = self._clock.now_s() - crowded_s >= _STUCK_S
        return Patience(_ANSWER_S, actions_excuse=False, streams_excuse=not is_stuck)

    def step(self) -> int:
        """Counts the threads, and checks the connections if there are many; returns how many it cut."""
        now_s = self._counted_s = self._clock.now_s()
        threads = self._threads()
        if threads is None:
            return 0
        self._excess = threads - 2 * self._stream_count()
        if self._excess <= self._limit // 2:
            self._crowded_s = None
        elif self._crowded_s is None:
            self._crowded_s = now_s
        if not self._worker.is_stopping and self._is_refusing != (
            self._excess > (self._limit * 3 // 4 if self._is_refusing else self._limit)
        ):
            self._is_refusing = not self._is_refusing
            refuse_threads(self._is_refusing)
        is_many = self._excess > self._limit // 4
        if is_many != self._is_many:
            self._is_many = is_many
            sys.setswitchinterval(_MANY_SWITCH_S if is_many else self._switch_s)
        is_over = self._is_held and self._excess <= self._limit // 2
        if not is_many:
            self._helped_s = now_s
        is_time = is_many and bool(self._ports) and now_s - self._checked_s >= _CHECK_EVERY_S
        if not (is_over or is_time) or not self._checking.acquire(blocking=False):
            return 0
        try:
            if is_over:
                self._hold_new(False)
            if not is_time:
                return 0
            self._checked_s = now_s
            return self._check_connections(now_s)
        finally:
            self._checking.release()

    def _hold_new(self, is_held: bool) -> None:
        """Called during a check only. If it fails it is tried again."""
        if is_held != self._is_held:
            connections.hold_new(self._ports, is_held, why=_WHY_HELD)
            self._is_held = is_held

    def _check_connections(self, now_s: float) -> int:
        found, streaming = connections.traffic(self._ports), self._streaming()
        before, age_s = self._before, now_s - self._window_s
        if age_s > _WINDOW_S:
            self._window_s = now_s
            self._before = {address: self._state(each, streaming.get(address)) for address, each in found.items()}
        if age_s > 2 * _WINDOW_S:
            return 0  # the last check is too long ago: what came since then proves nothing
        are_few = self._excess <= self._limit // 2
        least_bytes, least_new_bytes = (_MANY_BYTES, _MANY_BYTES) if are_few else (_LEAST_BYTES, _NEW_BYTES)
        worst = sorted(
            (
                (_unexplained_bytes(self._state(each, streaming.get(at)), before.get(at)), at)
                for at, each in found.items()
            ),
            reverse=True,
        )
        causes = [
            (size, at)
            for size, at in worst
            if size > (least_bytes if at in before else least_new_bytes) and not _is_broker(streaming.get(at))
        ]
        cut = [(size, at) for size, at in causes if at not in streaming]
        if not cut and not are_few and now_s - self._helped_s > _PATIENCE_S:
            cut = causes[:1]
        for _, address in cut:
            connections.reset_now(found[address].descriptor, self._ports, address)
        if cut:
            self._helped_s = now_s
            self._cut.extend((address, size_bytes, self._excess) for size_bytes, address in cut)
            self._hold_new(True)  # the peer that was cut would be back at once
        return len(cut)

    @staticmethod
    def _state(each: Traffic, streaming: Streaming | None) -> tuple[int, int, int]:
        return each.received_bytes, each.acknowledged_bytes, 0 if streaming is None else streaming.taken_bytes

    def _watch(self) -> float:
        try:
            self.step()
            refuse_threads(self._is_refusing)  # again: two calls may have said so in the wrong order
        finally:
            while self._cut:
                address, size_bytes, threads = self._cut.popleft()
                event(
                    _logger,
                    "cut connection",
                    level=logging.WARNING,
                    address=Address(*address),
                    call_bytes=size_bytes,
                    threads=threads,
                )
        return _STEP_S


def _is_broker(streaming: Streaming | None) -> bool:
    return streaming is not None and streaming.is_broker


def _unexplained_bytes(now: tuple[int, int, int], before: tuple[int, int, int] | None) -> int:
    """What came on a connection and was not a message of a stream."""
    if before is None or now[0] < before[0]:  # a new one, or another one from the same port
        before = (0, 0, 0)
    received_bytes, acknowledged_bytes, taken_bytes = (new - old for new, old in zip(now, before, strict=True))
    return received_bytes - max(0, taken_bytes) - acknowledged_bytes // _ANSWERED_PART
