"""What a simulated broker answers: the real services. A produce request waits in them, on a thread of its own; of
fetches there is a list of who waits.

Rule: a fetch that has to wait is looked at again when the partition wakes it, and at its deadline. A produce
request is answered by its own time limit, or it is a defect. Every answer is noted in the history at the moment it
leaves the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import ListOffsetsRequest, ListOffsetsResponse
from broker_runtime.contract.streams import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from broker_runtime.contract.waiting import Signal
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.offsets import LogOffsetService
from broker_runtime.services.produce import PendingProduce, ProduceService
from tests.callers import CLIENT
from tests.clocks import ReadClock
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND, Event, Scheduler
from tests.simulation.simulator.stacks import OWN_THREAD, SpinError

FETCH_BYTES = 1 << 20
_COMPLETE_S = 2.0
_OVERTIME_US = 10 * SECOND
_AT_ONCE_US = 200 * MS
_BOUNDED = 13


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetch's answer as it travels."""

    response: FetchResponse
    cells: tuple[pa.Buffer, ...]

    @property
    def has_news(self) -> bool:
        """Whether it is worth answering before the time is over."""
        return any(each.row >= 0 or each.error is not None for each in self.response.partitions)


class LookingFetchService(FetchService):
    """The real one, whose looks are asked for one by one: nobody waits inside."""

    def look(self, request: FetchRequest, rotation: int) -> Fetched:
        """What there is now for a consumer."""
        start = rotation % len(request.partitions)
        wanted = request.partitions[start:] + request.partitions[:start]
        answer = self._load(CLIENT, request, self._read(CLIENT, request, wanted), lambda: None)
        answer.close()
        return Fetched(answer.response, tuple(answer.cells))


class Observer(Protocol):
    """Is called with what a broker answers."""

    def acknowledged(self, broker_id: int, request: ProduceRequest, frame: pa.Buffer, answer: ProduceResponse) -> None:
        """A produce request was answered without an error."""

    def served(self, broker_id: int, request: FetchRequest, answer: Fetched) -> None:
        """A consumer's fetch was answered."""

    def situation(self, name: str) -> None:
        """A situation arose."""

    def offsets_listed(self, broker_id: int, request: ListOffsetsRequest, answer: ListOffsetsResponse) -> None:
        """A request for offsets was answered."""


class RequestWaiter(Signal):
    """A waiter that says which request to look at again."""

    __slots__ = ("number", "woken")

    def __init__(self, number: int, woken: list[RequestWaiter]) -> None:
        super().__init__()
        self.number = number
        self.woken = woken

    def set(self) -> None:
        if self not in self.woken:
            self.woken.append(self)


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that is not answered yet."""

    look_again: Callable[[], bool]  # whether it is answered now
    waiter: RequestWaiter
    deadline_us: int
    partitions: list[Partition] = field(default_factory=list)
    is_looked_at: bool = False  # by a thread that waits meanwhile
    must_look_again: bool = False


@dataclass(slots=True, eq=False)
class Completing:
    """A produce request that waits until it is acknowledged, on a thread of its own."""

    pending: PendingProduce
    is_deposed: bool = False  # the leadership ended under which it was appended

    @property
    def is_led(self) -> bool:
        """Whether the leadership goes on under which it was appended."""
        partition, appended = self.pending.partition, self.pending.appended
        return partition is None or appended is None or partition._is_led_as_for(appended)


class Serving:
    """One life of one broker, as clients and followers see it."""

    def __init__(
        self,
        actor: str,
        broker_id: int,
        scheduler: Scheduler,
        registry: PartitionRegistry,
        observer: Observer,
        now_ms: Callable[[], int],
        stalled_until_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """``stalled_until_us``: when the last stalled fsync ended, or will."""
        self._actor = actor
        self._broker_id = broker_id
        self._scheduler = scheduler
        self._registry = registry
        self._observer = observer
        self._stalled_until_us = stalled_until_us
        clock = ReadClock(lambda: scheduler.now_us / 1e6)
        self.produce_service = ProduceService(registry, now_ms=now_ms, clock=clock)
        self.fetch_service = LookingFetchService(
            registry, max_bytes=FETCH_BYTES, budget=ByteBudget(64 << 20), clock=clock
        )
        self.offset_service = LogOffsetService(registry)
        self.acknowledging: dict[tuple[str, int], int] = {}
        """Partition → how many threads wait for an acknowledgement."""
        self._completing: dict[Event, Completing] = {}
        self._syncing: set[Event] = set()  # of those that wait
        self._held_up_until_us: dict[str, int] = {}
        """Directory → when an fsync there ends that somebody else does than a request that waits for it."""
        self._woken: list[RequestWaiter] = []
        self._waiting: dict[int, Waiting] = {}
        self._waiters = 0

    # --- requests -------------------------------------------------------------------------------------------------

    def produce(self, request: ProduceRequest, frame: pa.Buffer, reply: Callable[[ProduceResponse], None]) -> None:
        """Appends now; answers when the append counts, a little later."""
        pending = self.produce_service.append(CLIENT, request, [frame])
        if pending.error is not None or pending.partition is None:
            self._complete(pending, request, frame, reply, 0)
            return
        # Another thread than the one that appends waits for the disk: others append, and fetch, in between.
        is_over: list[bool] = []

        def complete() -> None:
            event = self._scheduler.current_event
            self._completing[event] = Completing(pending)
            try:
                while not self._complete(pending, request, frame, reply, _COMPLETE_S):
                    pass
            finally:
                del self._completing[event]
            is_over.append(True)

        def look() -> None:
            if is_over:
                return
            # An fsync held the log's lock, which no limit ends; or the process stood still.
            stalled_until_us = max(self._stalled_until_us(), self._scheduler.paused_until_us(self._actor))
            if self._scheduler.now_us < stalled_until_us + _OVERTIME_US:
                self._scheduler.after(
                    stalled_until_us + _OVERTIME_US - self._scheduler.now_us, self._actor, look, thread=OWN_THREAD
                )
            else:
                raise ViolationError(
                    _BOUNDED, f"broker {self._broker_id}: {request.topic}-{request.partition}: a produce request waits "
                    f"for its acknowledgement {_OVERTIME_US / SECOND:.0f} s past its time limit",
                )  # fmt: skip

        self._scheduler.after(self._scheduler.between(0, 4 * MS), self._actor, complete, thread=OWN_THREAD)
        self._scheduler.after(request.timeout_ms * MS + _OVERTIME_US, self._actor, look, thread=OWN_THREAD)

    def fetch(self, request: FetchRequest, reply: Callable[[Fetched], None], *, rotation: int = 0) -> None:
        """Answers when there is something, else after the request's ``max_wait_ms``."""
        deadline_us = self._scheduler.now_us + request.max_wait_ms * MS

        def look() -> bool:
            fetched = self.fetch_service.look(request, rotation)
            if not fetched.has_news and self._scheduler.now_us < deadline_us:
                return False
            self._observer.served(self._broker_id, request, fetched)
            reply(fetched)
            return True

        if not look():
            partitions = []
            for each in request.partitions:
                try:
                    partitions.append(self._registry.find(each.topic, each.partition, each.topic_id))
                except PylogError:
                    continue
            self._wait(look, deadline_us, partitions)

    def list_offsets(self, request: ListOffsetsRequest, reply: Callable[[ListOffsetsResponse], None]) -> None:
        """Answers now."""
        answer = self.offset_service.list_offsets(CLIENT, request)
        self._observer.offsets_listed(self._broker_id, request, answer)
        reply(answer)

    # --- waiting --------------------------------------------------------------------------------------------------

    @contextmanager
    def fsync(self, directory: str, duration_us: int) -> Iterator[None]:
        """Inside, somebody fsyncs a file there ("": what all logs share). Who does so may hold locks; a request that
        waits for it does not."""
        event = self._scheduler.current_event
        if event not in self._completing:
            self._held_up_until_us[directory] = self._scheduler.now_us + duration_us
            yield
            return
        self._syncing.add(event)
        try:
            yield
        finally:
            self._syncing.discard(event)

    def after_event(self) -> None:
        """Lets those look again that were woken by what just happened."""
        for event, each in self._completing.items():
            if not each.is_deposed and not each.is_led:
                each.is_deposed = True
                self._look_soon(event, each, self._scheduler.now_us, 2)
        if not self._woken:
            return
        woken = sorted(self._woken, key=lambda waiter: waiter.number)
        self._woken.clear()
        for waiter in woken:
            self._scheduler.after(
                self._scheduler.between(0, MS),
                self._actor,
                lambda number=waiter.number: self._look_again(number),
                thread=OWN_THREAD,
            )

    def _look_soon(self, event: Event, each: Completing, deposed_us: int, looks: int) -> None:
        """Whether the request was answered, whose leadership has ended, or does the fsync itself."""

        def look() -> None:
            if self._completing.get(event) is not each or event in self._syncing:
                return
            partition = each.pending.partition
            held_up_us = max(self._held_up_until_us.get(name, 0) for name in (str(partition), ""))
            if looks > 1 or held_up_us >= deposed_us:
                self._look_soon(event, each, max(deposed_us, held_up_us + 1), max(looks - 1, 1))
                return
            raise ViolationError(
                _BOUNDED, f"broker {self._broker_id}: {partition}: a produce request still waits for its "
                "acknowledgement, and its leadership has ended",
            )  # fmt: skip

        self._scheduler.after(_AT_ONCE_US, self._actor, look, thread=OWN_THREAD)

    def _wait(self, look: Callable[[], bool], deadline_us: int, partitions: list[Partition]) -> None:
        self._waiters += 1
        waiting = Waiting(look, RequestWaiter(self._waiters, self._woken), deadline_us, partitions)
        for partition in partitions:
            partition.add_waiter(waiting.waiter)
        number = waiting.waiter.number
        self._waiting[number] = waiting
        self._scheduler.after(
            deadline_us - self._scheduler.now_us + 1,
            self._actor,
            lambda: self._look_again(number),
            thread=OWN_THREAD,
        )

    def _look_again(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        waiting.must_look_again = True
        while waiting.must_look_again and not waiting.is_looked_at:
            waiting.must_look_again = False
            waiting.is_looked_at = True
            is_answered = waiting.look_again()
            waiting.is_looked_at = False
            if is_answered:
                del self._waiting[number]
                for partition in waiting.partitions:
                    partition.remove_waiter(waiting.waiter)
                return

    def _complete(
        self,
        pending: PendingProduce,
        request: ProduceRequest,
        frame: pa.Buffer,
        reply: Callable[[ProduceResponse], None],
        wait_s: float,
    ) -> bool:
        at = (request.topic, request.partition)
        led = None if pending.partition is None else pending.partition._led
        if led is not None and led.leadership.in_sync != led.maximal:
            self._observer.situation("in-sync set may be larger than written, and a produce waits")
        if led is not None and led.certain_count < len(led.leadership.in_sync):
            self._observer.situation("in-sync set may be smaller than written, and a produce waits")
        self.acknowledging[at] = self.acknowledging.get(at, 0) + 1
        try:
            answer = self.produce_service.complete(CLIENT, pending, wait_s)
        except SpinError as error:
            raise ViolationError(
                _BOUNDED, f"broker {self._broker_id}: {request.topic}-{request.partition}: a request spins, and "
                "is not answered",
            ) from error  # fmt: skip
        self.acknowledging[at] -= 1
        if answer is None:
            return False
        if answer.error is None:
            self._observer.acknowledged(self._broker_id, request, frame, answer)
        reply(answer)
        return True
