"""The memory that gRPC holds for messages that are still arriving: measured, and bounded by cutting connections.

gRPC collects a message of any length before it hands it over, and nothing in Flight limits that. But the kernel knows
how many bytes came on a connection, and the broker knows how many of them were in messages that it has taken:

    the process's memory has grown? ─ yes ─▶ each connection: bytes that came, less those that were taken
                 │                            more than any message of ours has ─▶ cut
                 no                           a third of the limit untaken ─▶ cut those that show little else
                 │                            the process near its limit ─▶ cut those with the most to blame
                 │                            half of that third, or near ─▶ crowded: less credit
                 ▼                            near, or cut calls still ending ─▶ no new connections
    credits are renewed: often while something comes, and seldom while nothing does

A check may come late, when others have the processors, and half a gibibyte may come in a second. So each connection
receives on a credit that the kernel enforces (`ReceiveCredits`): what may come before the next check, whenever that is.
Near: the process's memory plus the untaken bytes of all connections, as each message is copied once when it is whole.
A few bytes may hold many: ten begin a call, for which gRPC keeps 8 KiB. So where memory grows within seconds by many
times the bytes that came and were no content, those who sent most of these are cut (`_held_by_each`).
To blame: untaken bytes beyond those taken recently. Taken: read, and no longer held by the stream that read them.

Rule: costs two small reads every `_STEP_S` while nothing comes, and a check every `_REST_S`, or less often where one
takes long. A check keeps the interpreter's lock, and other threads do what may block. Only connections to this broker's
port are cut. Does nothing where the system has no such counters (not Linux).
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from broker_runtime.contract.events import event
from broker_runtime.contract.settings import Address
from broker_runtime.contract.settings.definitions import MAX_MESSAGE_BYTES_LIMIT
from broker_runtime.contract.waiting import CLOCK, Clock, Worker
from broker_runtime.server import connections
from broker_runtime.server.connections import PeerAddress, Traffic
from broker_runtime.server.receive_credits import ReceiveCredits

MAX_UNTAKEN_BYTES: Final = 2 * MAX_MESSAGE_BYTES_LIMIT
"""The largest frame, with its envelope and what gRPC reads ahead, is well below."""
_STEP_S: Final = 0.05
_CHECKING_STEP_S: Final = 0.01
_REST_S: Final = 0.15  # a peer whose credit has ended sends again after 0.2 s
_REST_CHECKS: Final = 50  # the time of so many checks passes between two while nothing comes,
_BUSY_CHECKS: Final = 10  # and of so many while something does; but one may have waited for a processor:
_LONGEST_REST_S, _LONGEST_PAUSE_S = 0.5, 0.25
_LATE_S: Final = 0.5  # between two steps: honest peers have to wait for credits
_NEW_AFTER_S: Final = 0.005  # the least time between two checks for streams that begin
_HELP_AFTER_S, _HELP_IN_FLOODS_AFTER_S = 0.1, 0.02
_ORDER_WORKERS: Final = 4
_NO_ORDER_S: Final = 60.0
_JOIN_LIMIT_S: Final = 1.0
_UNTAKEN_PART: Final = 3  # such a part of the limit may be untaken, of all connections that have little else to show
_HELD_PART: Final = 8  # or such a part, if they hold more than themselves: when calls are cut, threads end them
_CROWDED_PART: Final = 6  # where such a part of the limit is untaken, new connections are to send little
_CREDIT_PART: Final = 0.6  # of the room: credits, which may be exceeded by a quarter, and copies of whole messages
_LEAST_CREDIT_BYTES: Final = 64 << 20  # of all connections: a part of the margin
_CROWDED_CALM_S: Final = 1.0  # that ends when it was not needed for so long
_GROWTH_BYTES: Final = 64 << 20  # less is no reason for a check
_QUIET_S: Final = 0.5  # when little came for so long, the growth has another cause
_QUIET_BYTES: Final = 4 << 20  # of one connection
_QUIET_BYTES_OF_ALL: Final = 32 << 20
# Bytes of memory that one untaken byte holds, if it holds more than itself: ten begin a call, if its headers repeat.
_LEAST_HELD, _MOST_HELD = 16, 1024
_LEAST_SUSPECT_BYTES: Final = 128 << 10  # less holds too little
_ACTION_HOLDS: Final = 64  # bytes of memory that one byte of a large request needs while it is served;
_ACTIONS_PART: Final = 3  # of all of them, such a part of the limit
_LATELY_S: Final = 4.0
_AT_LAST_EVERY_S: Final = 0.5
_EMPTY_HALF_S: Final = 2.0  # by then half of the empty bytes is forgotten: ordinary calls have headers, too
_ACKNOWLEDGED_PART: Final = 256  # of what a client is sent: its windows' updates
_MOST_DIVIDED: Final = 64  # so much less credit is given for it
_WHY_HELD: Final = "memory"
# Whatever else a client sends, such as acknowledgements and refused calls: at most as much as it is sent, and
_EXCUSED_BYTES_PER_S: Final = 64 << 10
# of a connection that is seen for the first time, so many bytes and such a part of what it was sent:
_EXCUSED_BYTES: Final = 1 << 20
_EXCUSED_PART: Final = 64
_GIVE_BACK_EVERY_S: Final = 0.3
_PAUSE_S: Final = 1.0  # where memory is short and no connection is the cause
_MARGIN_BYTES: Final = 256 << 20  # what may come between two checks
_LEAST_BYTES: Final = 64 << 10  # a connection that has sent less is not the cause, unless nothing was taken of it in
_NOTHING_TAKEN_S: Final = 2.0
_CONNECTION_BYTES: Final = 32 << 10  # what it takes, whatever comes on it
_FREED_WITHIN_S: Final = 0.1  # the memory of a connection that was cut,
_CALLS_FREED_WITHIN_S: Final = 3.0  # and that of its calls, each of which a thread of gRPC's has to end
_STATM: Final = Path("/proc/self/statm")
_STATM_BYTES: Final = 256

_system: Final = ctypes.PyDLL(None)
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """A connection at the last check."""

    since_s: float
    received_bytes: int
    acknowledged_bytes: int  # of those sent to it
    taken_bytes: int
    accounted_bytes: int  # of those received: taken, or excused
    cookie: int
    excused_bytes: int = 0  # of those accounted
    of_late_bytes: float = 0.0  # taken, halved every second: shows that a client is at its ordinary work
    content_bytes: int = 0  # of messages
    empty_bytes: float = 0.0  # received without being content, of late
    all_empty_bytes: int = 0  # and since it was seen first

    @property
    def untaken_bytes(self) -> int:
        return self.received_bytes - self.accounted_bytes

    @property
    def blame_bytes(self) -> float:
        """Those with the most are cut first."""
        return self.untaken_bytes - self.of_late_bytes


class MemoryWatch:
    """`start` once, `stop` once. `step` is the thread's, or a test's."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        taken_bytes: Callable[[], Mapping[PeerAddress, int]],
        content_bytes: Callable[[], Mapping[PeerAddress, int]] | None = None,
        acted_bytes: Callable[[], int] = lambda: 0,
        is_flooded: Callable[[], bool] = lambda: False,
        memory_bytes: Callable[[], int | None] | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """``taken_bytes``: of messages taken from each peer, as far as that is known; an absent peer has 0.
        ``content_bytes``: likewise, and no more than was sent (None: as ``taken_bytes``).
        ``acted_bytes``: of the requests of all actions that have begun.
        ``is_flooded``: whether calls hold many threads, so that the next checks may come late."""
        self._limit_bytes = limit_bytes
        self._taken_bytes = taken_bytes
        self._content_bytes = taken_bytes if content_bytes is None else content_bytes
        self._acted_bytes = acted_bytes
        self._is_flooded = is_flooded
        self._memory_bytes = memory_bytes or ResidentMemory()
        self._clock = clock
        self._known_bytes = 0
        self._calm_bytes: int | None = None  # the least since connections were checked last
        self._checked_s = 0.0
        self._check_took_s = 0.0
        self._progress: tuple[int, int] | None = None  # at the last check: memory, and bytes taken
        self._stepped_s: float | None = None
        self._has_ended = False
        self._stepping = threading.Lock()
        self._is_helped = False  # the step is made for a thread that is late
        # To be logged, with the untaken bytes: writing may wait.
        self._cut_now: deque[tuple[PeerAddress, int]] = deque()
        self._cut: list[tuple[float, int]] = []  # when, and how many bytes, recently
        self._may_check_s = 0.0
        self._gave_back_s = 0.0
        self._noise_s = 0.0  # when more than a little was untaken, or there was no check
        self._is_checking = False
        self._seen: dict[PeerAddress, _Seen] = {}
        self._credits = ReceiveCredits()
        self._crowded_s = -_CROWDED_CALM_S  # when much was untaken last
        self._lately: deque[tuple[float, int, int]] = deque()  # at each check: when, memory, and bytes of actions
        self._grown_bytes = 0  # memory, within `_LATELY_S`
        self._cut_at_last_s = -_AT_LAST_EVERY_S  # when `_to_cut_at_last` was asked
        self._is_held = False  # no new connections are accepted at present
        self._cut_s = -_CALLS_FREED_WITHIN_S  # when a connection was cut last
        self._gone: dict[PeerAddress, int] = {}  # of connections that ended: what was taken of those
        self._ports: connections.Ports = frozenset()
        # Retried: there was no descriptor or memory left to check with, and there may be soon.
        retried = (OSError, MemoryError)
        self._worker = Worker(
            "memory-watch", self._watch, on_defect=self._give_up, retried=retried, again_s=_CHECKING_STEP_S
        )
        self._ending: dict[PeerAddress, int] = {}  # descriptors of connections that are cut now
        # What may block for long while the check must continue: a cut waits for the thread that reads that connection.
        self._orders: SimpleQueue[Callable[[], object]] = SimpleQueue()
        # An order that fails for want of a descriptor or memory is given again by the next check.
        self._order_workers = [
            Worker(f"memory-watch-{number}", self._carry_out_order, retried=retried, again_s=0.0)
            for number in range(_ORDER_WORKERS)
        ]

    def start(self, ports: connections.Ports) -> None:
        """Begins to watch the connections to ``ports``. Where nothing listens yet, `bound_new` follows when it does."""
        self._ports = ports
        self.bound_new()
        for worker in (self._worker, *self._order_workers):
            worker.start()

    def bound_new(self) -> None:
        """Bounds connections from their first byte on, which the socket that listens has to be told."""
        with self._stepping:
            self._credits.start(self._ports)
            for address, each in connections.traffic(self._ports).items():
                # It was made before that, so its beginning may be unknown for good. Its peer connects again.
                connections.reset_now(each.descriptor, self._ports, address)

    def bound_renewed(self, ports: connections.Ports, known: Collection[int]) -> None:
        """As `bound_new`, for ports at which another socket listens now. ``known``: the cookies of the connections from
        before, which go on."""
        with self._stepping:
            connections.bound_new(ports, True)
            for address, each in connections.traffic(ports).items():
                if each.cookie not in known:
                    connections.reset_now(each.descriptor, ports, address)

    def stop(self) -> None:
        """Ends the threads; waits up to a second for the one that checks."""
        self._has_ended = True
        for worker in (self._worker, *self._order_workers):
            worker.stop()
        for _ in self._order_workers:  # not before all of them are to stop: each takes one, and none a second
            self._orders.put(lambda: None)
        self._worker.join(_JOIN_LIMIT_S)
        self._credits.stop()
        self._hold_new(False)

    def step(self) -> int:
        """One check; returns how many connections it cut."""
        with self._stepping:
            return self._step()

    def step_if_late(self) -> None:
        """For calls that begin: one check, if the watch's own thread is late with it. That one may have to wait long
        for the interpreter's lock where thousands of calls want it; who calls this has it."""
        after_s = _HELP_IN_FLOODS_AFTER_S if self._is_flooded() else _HELP_AFTER_S
        if self._stepped_s is not None and self._clock.now_s() - self._stepped_s >= after_s:
            self._help(self._step)

    def renew_credits_for_stream(self) -> None:
        """For streams of records that begin: their connection, if it is new, gets its credit now. Until then it may
        send 2 to 4 MiB; what comes beyond is dropped, and comes again after 0.2 s.

        Does nothing soon after a check, and nothing while memory is watched closely, when checks come often.
        """
        since_s = self._clock.now_s() - self._checked_s
        if not self._is_checking and since_s >= max(_NEW_AFTER_S, _BUSY_CHECKS * self._check_took_s):
            self._help(self._renew)

    def _help(self, step: Callable[[], object]) -> None:
        """Makes a step on a call's thread, unless one is under way."""
        if self._has_ended or not self._stepping.acquire(blocking=False):
            return
        self._is_helped = True
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the call goes on, and the watch's own thread meets it, too
            event(_logger, "check memory for a call", level=logging.ERROR, error=error)
        finally:
            self._is_helped = False
            self._stepping.release()

    def _renew(self) -> None:
        memory_bytes = self._memory_bytes()
        self._check_connections(
            self._known_bytes if memory_bytes is None else memory_bytes, self._clock.now_s(), may_cut=False
        )

    def _step(self) -> int:
        now_s = self._stepped_s = self._clock.now_s()
        known_bytes = self._memory_bytes()
        # Unknown for a moment where no descriptor is left to ask with; credits are to be renewed all the same.
        memory_bytes = self._known_bytes = self._known_bytes if known_bytes is None else known_bytes
        is_tight = memory_bytes > self._limit_bytes - _MARGIN_BYTES and now_s >= self._may_check_s
        self._calm_bytes = memory_bytes if self._calm_bytes is None else min(self._calm_bytes, memory_bytes)
        has_grown = memory_bytes - self._calm_bytes > _GROWTH_BYTES
        self._is_checking = is_tight or has_grown or self._is_crowded(now_s) or self._is_flooded()
        if not self._is_checking:
            if now_s >= self._may_check_s:
                self._noise_s = now_s
            self._hold_new(False)
            if self._must_renew(memory_bytes, now_s):
                self._check_connections(memory_bytes, now_s, may_cut=False)
            return 0
        cut, is_quiet = self._check_connections(memory_bytes, now_s)
        if (is_tight or not self._are_freed(now_s)) and now_s - self._gave_back_s > _GIVE_BACK_EVERY_S:
            self._gave_back_s = now_s
            self._order(_give_back)  # freed memory must not count as used, or others are cut for it
        if not is_quiet:
            self._noise_s = now_s
        elif now_s - self._noise_s > _QUIET_S:
            self._calm_bytes = memory_bytes  # connections are not the cause of the growth
            if is_tight:
                self._may_check_s = now_s + _PAUSE_S
                self._excuse_nothing()
        return cut

    def _is_crowded(self, now_s: float) -> bool:
        return now_s - self._crowded_s < _CROWDED_CALM_S

    def _must_renew(self, memory_bytes: int, now_s: float) -> bool:
        """Whether some connection may have used much of its credit, or may be new, since the last check."""
        if self._progress is None:
            return True
        passed_s = now_s - self._checked_s
        if passed_s >= min(max(_REST_S, _REST_CHECKS * self._check_took_s), _LONGEST_REST_S):
            return True
        before_bytes, taken_before_bytes = self._progress
        came_bytes = max(0, memory_bytes - before_bytes) + abs(sum(self._taken_bytes().values()) - taken_before_bytes)
        pause_s = min(_BUSY_CHECKS * self._check_took_s, _LONGEST_PAUSE_S)
        return came_bytes > self._credits.least_bytes // 4 and passed_s >= pause_s

    def _check_connections(self, memory_bytes: int, now_s: float, *, may_cut: bool = True) -> tuple[int, bool]:
        """Renews credits, and cuts the connections that are to be cut; returns how many, and whether little is
        untaken."""
        found = connections.traffic(self._ports, ends_twins=True)
        taken = self._taken_bytes()  # after `found`: in the other order, bytes taken meanwhile would count as untaken
        self._progress = (memory_bytes, sum(taken.values()))
        self._update(found, taken, self._content_bytes(), now_s)
        self._cut = [(cut_s, size_bytes) for cut_s, size_bytes in self._cut if now_s - cut_s < _FREED_WITHIN_S]
        freed_bytes = sum(size_bytes for _, size_bytes in self._cut)
        untaken = [seen.untaken_bytes for seen in self._seen.values()]
        held = self._held_by_each(memory_bytes, now_s)
        held_bytes = max(sum(untaken), int(held * self._suspect_bytes()))
        excess_bytes = memory_bytes + sum(untaken) - freed_bytes - (self._limit_bytes - _MARGIN_BYTES)
        surplus_bytes = held_bytes - freed_bytes - self._limit_bytes // (_UNTAKEN_PART if held == 1 else _HELD_PART)
        is_filling = held > 1 and surplus_bytes > 0
        to_free_bytes = surplus_bytes + (self._limit_bytes // _HELD_PART // 2 if is_filling else 0)  # not one by one
        cut = self._to_cut(excess_bytes, to_free_bytes, held, now_s, may_cut=may_cut)
        if may_cut and not cut and memory_bytes > self._limit_bytes - _MARGIN_BYTES // 2:
            cut = self._to_cut_at_last(now_s)
        if cut:
            self._cut_s = now_s
        is_over = held == 1 and self._are_freed(now_s)
        is_quiet = sum(untaken) < _QUIET_BYTES_OF_ALL and max(untaken, default=0) < _QUIET_BYTES and is_over
        is_near = memory_bytes > self._limit_bytes - _MARGIN_BYTES and not is_quiet
        if is_near or held_bytes > self._limit_bytes // _CROWDED_PART:
            self._crowded_s = now_s
        # More would come beside what is not free yet.
        is_emptying = not self._are_freed(now_s) and self._grown_bytes > self._limit_bytes // _HELD_PART
        self._hold_new(is_near or is_filling or is_emptying)
        for address, size_bytes in cut:
            self._ending[address] = found[address].descriptor
            if self._is_helped:
                self._end(address, connections.reset_now)  # whoever carries out orders is late, too
            else:
                self._order(partial(self._end, address, connections.reset))
            self._credits.take_nothing(address, found[address].descriptor)
            self._forget(address)
            self._cut.append((now_s, int(held * size_bytes)))
        of_late = {address: seen.of_late_bytes for address, seen in self._seen.items()}
        room_bytes = max(-excess_bytes * _CREDIT_PART, _LEAST_CREDIT_BYTES) / min(held, _MOST_DIVIDED)
        self._credits.renew(
            found,
            of_late,
            int(room_bytes),
            is_crowded=self._is_crowded(now_s),
            suspects=self._suspects() if held > 1 or is_emptying or self._is_flooded() else (),
        )
        self._check_took_s = self._clock.now_s() - now_s
        self._cut_now.extend(cut)
        return len(cut), is_quiet

    def _to_cut(
        self, excess_bytes: int, surplus_bytes: int, held: float, now_s: float, *, may_cut: bool
    ) -> list[tuple[PeerAddress, int]]:
        """Which connections are to be cut, with their untaken bytes. ``excess_bytes``: what is missing until the
        process is no longer near its limit; ``surplus_bytes``: what is untaken beyond what may be; ``held``: by each
        untaken byte. ``may_cut`` False: only those with more than a message."""

        def suspicion_bytes(seen: _Seen) -> float:
            return seen.blame_bytes if held == 1 else seen.empty_bytes

        by_blame = sorted(self._seen.items(), key=lambda item: suspicion_bytes(item[1]), reverse=True)
        least_bytes = _LEAST_BYTES / min(held, _LEAST_HELD)
        cut: list[tuple[PeerAddress, int]] = []
        for address, seen in by_blame:
            size_bytes = seen.untaken_bytes
            weight_bytes = max(size_bytes, int(seen.empty_bytes))
            is_never_taken = not seen.taken_bytes and now_s - seen.since_s > _NOTHING_TAKEN_S
            is_cause = (size_bytes if is_never_taken else weight_bytes) > (0 if is_never_taken else least_bytes)
            is_suspect = seen.blame_bytes > 0 if held == 1 else seen.empty_bytes > least_bytes
            is_needed = excess_bytes > 0 or (surplus_bytes > 0 and is_suspect)
            if not (may_cut and is_needed and is_cause) and size_bytes <= MAX_UNTAKEN_BYTES:
                continue
            cut.append((address, size_bytes))
            excess_bytes -= int(max(2, held) * weight_bytes) + _CONNECTION_BYTES
            surplus_bytes -= int(held * weight_bytes)
        return cut

    def _suspects(self) -> list[PeerAddress]:
        """Connections of which nothing was taken lately, and on which more came than content. (A producer that paused
        is none: what is refused comes again ever more slowly.)"""
        return [
            address
            for address, seen in self._seen.items()
            if seen.of_late_bytes < 1 and seen.content_bytes <= seen.all_empty_bytes
        ]

    def _are_freed(self, now_s: float) -> bool:
        """Whether connections that were cut hold nothing any more."""
        return now_s - self._cut_s >= _CALLS_FREED_WITHIN_S

    def _to_cut_at_last(self, now_s: float) -> list[tuple[PeerAddress, int]]:
        """As `_to_cut`, where nobody is to blame and the limit is at hand: those that have sent most without content,
        as calls may have been begun slowly. Half of them, as many have sent some: ordinary calls have headers."""
        if now_s - self._cut_at_last_s < _AT_LAST_EVERY_S:
            return []
        self._cut_at_last_s = now_s
        suspects = [each for each in self._seen.items() if each[1].all_empty_bytes > _LEAST_BYTES]
        suspects.sort(key=lambda item: item[1].all_empty_bytes, reverse=True)
        return [(address, seen.untaken_bytes) for address, seen in suspects[: (len(suspects) + 1) // 2]]

    def _held_by_each(self, memory_bytes: int, now_s: float) -> float:
        """How many bytes of memory each suspect byte holds, 1 or more, where memory has grown of late by more than
        those, and they can be the cause."""
        acted_bytes, suspect_bytes = self._acted_bytes(), self._suspect_bytes()
        if suspect_bytes < _LEAST_SUSPECT_BYTES and self._are_freed(now_s):
            self._lately.clear()
        self._lately.append((now_s, memory_bytes, acted_bytes))
        while now_s - self._lately[0][0] > _LATELY_S:
            self._lately.popleft()
        _, least_bytes, acted_before_bytes = min(self._lately, key=lambda each: each[1])
        for_actions_bytes = min(_ACTION_HOLDS * (acted_bytes - acted_before_bytes), self._limit_bytes // _ACTIONS_PART)
        grown_bytes = self._grown_bytes = memory_bytes - least_bytes - for_actions_bytes
        if suspect_bytes < _LEAST_SUSPECT_BYTES or grown_bytes < max(_GROWTH_BYTES, _LEAST_HELD * suspect_bytes):
            return 1.0
        return grown_bytes / suspect_bytes if grown_bytes < _MOST_HELD * suspect_bytes else 1.0

    def _suspect_bytes(self) -> float:
        """Bytes that came of late and are no content: of headers, or of messages that are not whole."""
        return sum(seen.empty_bytes for seen in self._seen.values())

    def _hold_new(self, is_held: bool) -> None:
        if is_held != self._is_held:
            self._is_held = is_held
            connections.hold_new(self._ports, is_held, why=_WHY_HELD)

    def _order(self, work: Callable[[], object]) -> None:
        if self._worker.is_running:
            self._orders.put(work)
        else:  # a test's step
            work()

    def _update(
        self,
        found: Mapping[PeerAddress, Traffic],
        taken: Mapping[PeerAddress, int],
        content: Mapping[PeerAddress, int],
        now_s: float,
    ) -> None:
        """Updates what came on each connection, and how much of it is accounted for."""
        passed_s = now_s - self._checked_s
        self._checked_s = now_s
        for address in self._seen.keys() - found.keys():
            if self._seen[address].empty_bytes > _LEAST_BYTES:
                self._cut_s = (
                    now_s  # by another watch, or by its peer: the calls that it began have to end all the same
                )
            self._forget(address)
        self._gone = {address: taken_bytes for address, taken_bytes in self._gone.items() if address in taken}
        for address, (_, received_bytes, acknowledged_bytes, cookie) in found.items():
            if address in self._ending:
                continue
            before, taken_bytes = self._seen.get(address), taken.get(address, 0)
            content_bytes = content.get(address, 0)
            if before is not None and (received_bytes < before.received_bytes or cookie != before.cookie):
                self._forget(address)  # another one, from the same port
                before = None
            if before is None:
                taken_before = self._gone.get(address, 0)
                may_excuse_bytes = min(acknowledged_bytes, _EXCUSED_BYTES) + acknowledged_bytes // _EXCUSED_PART
                before = _Seen(now_s, 0, 0, min(taken_before, taken_bytes), 0, cookie)
                before.content_bytes = content_bytes if taken_before else 0
            else:
                # A client that is sent nothing has nothing to acknowledge.
                answered_bytes = acknowledged_bytes - before.acknowledged_bytes
                may_excuse_bytes = min(int(passed_s * _EXCUSED_BYTES_PER_S), answered_bytes)
            # No message accounts for more than it can have been sent in, or an endless one could hide behind it.
            more_bytes = max(0, taken_bytes - before.taken_bytes)
            accounted_bytes = min(received_bytes, before.accounted_bytes + more_bytes)
            excused_bytes = min(received_bytes - accounted_bytes, may_excuse_bytes)
            empty_bytes = received_bytes - before.received_bytes - (content_bytes - before.content_bytes)
            empty_bytes -= (acknowledged_bytes - before.acknowledged_bytes) // _ACKNOWLEDGED_PART
            self._seen[address] = _Seen(
                before.since_s,
                received_bytes,
                acknowledged_bytes,
                taken_bytes,
                accounted_bytes + excused_bytes,
                cookie,
                before.excused_bytes + excused_bytes,
                before.of_late_bytes * 0.5**passed_s + more_bytes,
                content_bytes,
                max(0.0, before.empty_bytes * 0.5 ** (passed_s / _EMPTY_HALF_S) + empty_bytes),
                before.all_empty_bytes + empty_bytes,
            )

    def _forget(self, address: PeerAddress) -> None:
        """The connection has ended. What was taken of it does not account for what comes on the next one."""
        self._gone[address] = self._seen.pop(address).taken_bytes

    def _excuse_nothing(self) -> None:
        """From the next check on, all bytes that came and were not taken count."""
        for seen in self._seen.values():
            seen.accounted_bytes -= seen.excused_bytes
            seen.excused_bytes = 0

    def _give_up(self, defect: BaseException) -> None:
        """A broker without a watch serves on: no connection is left with a credit that nobody renews."""
        self._has_ended = True
        self._hold_new(False)
        self._credits.lift(connections.traffic(self._ports))

    def _carry_out_order(self) -> None:
        try:
            order = self._orders.get(timeout=_NO_ORDER_S)
        except Empty:
            return
        order()

    def _end(self, address: PeerAddress, reset: Callable[[int, connections.Ports, PeerAddress], object]) -> None:
        try:
            reset(self._ending[address], self._ports, address)
        finally:
            del self._ending[address]

    def _watch(self) -> float:
        before_s, now_s = self._stepped_s, self._clock.now_s()
        if before_s is not None and (passed_s := now_s - before_s) > _LATE_S:
            event(_logger, "check memory late", level=logging.WARNING, after_s=round(passed_s, 3))
        try:
            self.step()
        finally:
            while self._cut_now:
                address, size_bytes = self._cut_now.popleft()
                peer = Address(*address)
                event(_logger, "cut connection", level=logging.WARNING, address=peer, untaken_bytes=size_bytes)
        return _CHECKING_STEP_S if self._is_checking else _STEP_S


class ResidentMemory:
    """This process's memory, in bytes, at each call; None where the system does not say, or has no descriptor left.

    The first call opens the file, and it stays open: so none is needed when there is none left. Not for a fork, which
    would be told of its parent's memory. Keeps the interpreter's lock while it reads.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._text = ctypes.create_string_buffer(_STATM_BYTES)

    def __call__(self) -> int | None:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
            weakref.finalize(self, os.close, self._descriptor).atexit = False  # the thread may still be at work then
        size_bytes = _system.pread(self._descriptor, self._text, _STATM_BYTES, ctypes.c_long(0))
        return int(self._text.raw[:size_bytes].split()[1]) * self._page_bytes if size_bytes > 0 else None


def _give_back() -> None:
    """Makes the C library return the freed memory that it keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
