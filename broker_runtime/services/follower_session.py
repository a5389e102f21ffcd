"""The fetch session of one follower: which partitions it fetches from this leader, reported incrementally (KIP-227).

A request reports only partitions of which the follower has something new; it wants the others as it last reported
them. So an exchange costs what has changed, not how many partitions there are: a partition in which something happens
marks itself as changed and sets the session's signal.

    reported by the request ─┐
    changed since            ├─▶ read ─▶ enough? ─ no ─▶ wait for the signal ─▶ read what has changed …
    owed: had no room        ┘             └─ yes, or time is over ─▶ answer: data, errors, high watermarks

`fetch` does all of it. `begin`, then `maybe_answer` until it answers, is the same without a wait.

Rules: a partition is watched before it is read, so no change is missed. What a follower reports counts once, when it
arrives. One thread uses a session; partitions set its signal from any thread, under any lock. `close` it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.streams import FetchPartition, FetchRequest
from broker_runtime.contract.waiting import CLOCK, Clock, Signal
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch_wait import FetchWait
from broker_runtime.services.partition_read import FetchAnswer, PartitionRead, close_reads, is_enough

FOLLOWER_FETCH = "follower"
"""A follower's fetch, as a request among the metrics, and its kind of stream."""
_Reads: TypeAlias = list[PartitionRead]


class ReadPartitions(Protocol):
    """Reads partitions; ``reported``: of which of them the follower has just reported something."""

    def __call__(
        self,
        caller: Caller,
        request: FetchRequest,
        wanted: Sequence[FetchPartition],
        *,
        reported: Collection[TopicPartition],
    ) -> _Reads: ...


class Load(Protocol):
    """Makes the answer from what was found."""

    def __call__(
        self,
        caller: Caller,
        request: FetchRequest,
        reads: _Reads,
        still_waiting: Callable[[], None],
    ) -> FetchAnswer: ...


class FollowerSession:
    """See the module."""

    def __init__(
        self,
        caller: BrokerCaller,
        registry: PartitionRegistry,
        *,
        read: ReadPartitions,
        load: Load,
        clock: Clock = CLOCK,
        meters: Meters = NO_METERS,
    ) -> None:
        self._caller = caller
        self._registry = registry
        self._read_partitions = read
        self._load = load
        self._clock = clock
        self._meters = meters
        self._wanted: dict[TopicPartition, FetchPartition] = {}
        self._watches: dict[TopicPartition, tuple[Partition, _Watch]] = {}
        self._changed: deque[_Watch] = deque()
        self._signal = Signal()
        self._owed: dict[TopicPartition, None] = {}  # in the order in which they are due
        # Of the request that is not answered yet:
        self._request = FetchRequest(request_id=-1)
        self._reported: Sequence[TopicPartition] = ()  # by it, and not counted yet
        self._seen: dict[TopicPartition, None] = {}  # what the answer is about
        self._is_new = False  # nothing was read for it yet

    def fetch(self, request: FetchRequest, still_waiting: Callable[[], None] = lambda: None) -> FetchAnswer:
        """As `FetchService.fetch` for a follower, with all partitions that it wants by now."""
        wait = FetchWait(request.max_wait_ms, still_waiting, self._clock)
        self.begin(request)
        while (answer := self.maybe_answer(is_due=wait.is_over, still_waiting=still_waiting)) is None:
            wait.until(self._signal.wait)
        wait.note(self._meters, FOLLOWER_FETCH)
        return answer

    def begin(self, request: FetchRequest) -> None:
        """A request came; `maybe_answer` answers it."""
        self._request, self._is_new = request, True
        self._reported = self._note(request)
        self._seen = dict.fromkeys([*self._owed, *self._take_changed(), *self._reported])

    def maybe_answer(self, *, is_due: bool, still_waiting: Callable[[], None] = lambda: None) -> FetchAnswer | None:
        """The answer to the request if there is enough for one or it ``is_due``, else None. Waits for nothing but room
        in the budget.

        To be called at once, whenever `has_changes`, and when the request's time is over.
        """
        changed = dict.fromkeys(self._take_changed())
        if not (self._is_new or changed or is_due):
            return None
        self._seen = {**changed, **self._seen}
        # At first the change alone: unless that is enough for an answer, nobody needs what did not change.
        to_read = self._seen if self._is_new or is_due or len(changed) == len(self._seen) else changed
        reads = self._read(to_read, self._reported)
        self._reported, self._is_new = (), False
        try:
            if not is_due and not is_enough(reads, self._request.min_bytes):
                return None
            if to_read is changed:
                close_reads(reads)
                reads = self._read(self._seen)
            return self._answer(reads, still_waiting)
        finally:
            close_reads(reads)

    @property
    def has_changes(self) -> bool:
        """Whether something happened in a partition since it was read."""
        return self._signal.is_set

    def close(self) -> None:
        """Watches no partition any more."""
        for at in list(self._watches):
            self._unwatch(at)
        self._wanted.clear()

    # --- private ------------------------------------------------------------------------------------------------

    def _note(self, request: FetchRequest) -> list[TopicPartition]:
        """The partitions that the request reports."""
        reported = {TopicPartition(each.topic, each.partition): each for each in request.partitions}
        if request.is_incremental:
            forgotten: Collection[TopicPartition] = [TopicPartition(*at) for at in request.forgotten]
        else:
            forgotten = self._wanted.keys() - reported.keys()
        for at in forgotten:
            self._wanted.pop(at, None)
            self._owed.pop(at, None)
            self._unwatch(at)
        self._wanted.update(reported)
        for at in reported:
            self._owed.pop(at, None)
        return list(reported)

    def _read(self, seen: Collection[TopicPartition], reported: Collection[TopicPartition] = ()) -> _Reads:
        wanted = [each for at in seen if (each := self._wanted.get(at)) is not None]
        for each in wanted:
            self._watch(each)
        return self._read_partitions(self._caller, self._request, wanted, reported=reported)

    def _answer(self, reads: _Reads, still_waiting: Callable[[], None]) -> FetchAnswer:
        lacking = {
            TopicPartition(read.wanted.topic, read.wanted.partition): None
            for read in reads
            if read.error is None and read.diverging is None and read.wanted.offset < read.log_end
        }
        answer = self._load(self._caller, self._request, reads, still_waiting)
        for each in answer.response.partitions:
            at = TopicPartition(each.topic, each.partition)
            self._owed.pop(at, None)
            if each.row >= 0 or each.error is not None or each.diverging_epoch >= 0:
                lacking.pop(at, None)
        self._owed.update(lacking)
        return answer

    def _watch(self, wanted: FetchPartition) -> None:
        at = TopicPartition(wanted.topic, wanted.partition)
        try:
            partition = self._registry.find(at.topic, at.partition, wanted.topic_id)
        except PylogError:
            return  # reading it meets the same error
        known = self._watches.get(at)
        if known is not None and known[0] is partition:
            return
        self._unwatch(at)
        watch = _Watch(at, self._changed, self._signal)
        self._watches[at] = (partition, watch)
        partition.add_waiter(watch, at_append=True)

    def _unwatch(self, at: TopicPartition) -> None:
        known = self._watches.pop(at, None)
        if known is not None:
            known[0].remove_waiter(known[1])

    def _take_changed(self) -> list[TopicPartition]:
        if self._signal.is_set:
            self._signal.wait(0.0)  # which clears it: before the changes are taken, or one that comes now would be lost
        changed: dict[TopicPartition, None] = {}
        while self._changed:
            watch = self._changed.popleft()
            watch.is_changed = False  # before the partition is read: what happens from here on counts again
            changed[watch.at] = None
        return list(changed)


class _Watch(Signal):
    """Of one partition in one session: marks it as changed, once, and sets the session's signal."""

    __slots__ = ("_changed", "_session_signal", "at", "is_changed")

    def __init__(self, at: TopicPartition, changed: deque[_Watch], session_signal: Signal) -> None:
        super().__init__()
        self.at = at
        self.is_changed = False
        self._changed = changed
        self._session_signal = session_signal

    def set(self) -> None:
        if not self.is_changed:
            self.is_changed = True
            self._changed.append(self)
            self._session_signal.set()
