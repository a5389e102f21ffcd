"""What one follower wants of this leader, told piece by piece: its fetch session (after Kafka's KIP-227).

A request tells only partitions of which there is news; the others are wanted as they were told before. So an exchange
costs what happened, not how many partitions there are: those where something did ring a bell of their own.

    told by the request ─┐
    rung since           ├─▶ looked at ─▶ enough? ─ no ─▶ wait for a bell ─▶ look at what rang …
    owed: had no room    ┘                  └─ yes, or time is over ─▶ answer: data, errors, marks of what was told

`fetch` does all of it; `take`, then `look` until it answers, is the same without a wait.

Rules: a partition is watched before it is looked at, so nothing is missed. What a follower told counts once, when it
comes. One thread uses a session; bells are rung by any, under any lock. `close` it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, MAX_SERVER_WAIT_S
from broker_runtime.contract.streams import FetchPartition, FetchRequest
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline, Signal
from broker_runtime.replication import FetchWaiter, Partition, PartitionRegistry
from broker_runtime.services.caller import BrokerCaller, Caller
from broker_runtime.services.fetch_look import FetchAnswer, Look, close_looks, is_enough

_Looks: TypeAlias = list[Look]


class LookAt(Protocol):
    """Looks at partitions; ``told``: of which of them the follower has just told something."""

    def __call__(
        self,
        caller: Caller,
        request: FetchRequest,
        wanted: Sequence[FetchPartition],
        *,
        told: Collection[TopicPartition],
    ) -> _Looks: ...


class Load(Protocol):
    """Makes the answer of what was found."""

    def __call__(
        self,
        caller: Caller,
        request: FetchRequest,
        looks: _Looks,
        still_waiting: Callable[[], None],
    ) -> FetchAnswer: ...


class FollowerSession:
    """See the module."""

    def __init__(
        self,
        caller: BrokerCaller,
        registry: PartitionRegistry,
        *,
        look: LookAt,
        load: Load,
        clock: Clock = CLOCK,
    ) -> None:
        self._caller = caller
        self._registry = registry
        self._look_at = look
        self._load = load
        self._clock = clock
        self._wanted: dict[TopicPartition, FetchPartition] = {}
        self._watches: dict[TopicPartition, tuple[Partition, _Watch]] = {}
        self._rung: deque[_Watch] = deque()
        self._signal = Signal()
        self._owed: dict[TopicPartition, None] = {}  # in the order in which they are due
        # Of the request that is not answered yet:
        self._request = FetchRequest(request_id=-1)
        self._told: Sequence[TopicPartition] = ()  # by it, and not counted yet
        self._seen: dict[TopicPartition, None] = {}  # what the answer is about
        self._is_new = False  # nobody looked yet

    def fetch(self, request: FetchRequest, still_waiting: Callable[[], None] = lambda: None) -> FetchAnswer:
        """As `FetchService.fetch` for a follower, with all partitions that it wants by now."""
        deadline = Deadline(min(request.max_wait_ms / 1000, MAX_SERVER_WAIT_S), clock=self._clock)
        heartbeat = Deadline(HEARTBEAT_INTERVAL_S, clock=self._clock)
        self.take(request)
        while (answer := self.look(is_due=deadline.expired, still_waiting=still_waiting)) is None:
            self._signal.wait(deadline.remaining_s(heartbeat.remaining_s()))
            if heartbeat.expired:
                still_waiting()
                heartbeat = Deadline(HEARTBEAT_INTERVAL_S, clock=self._clock)
        return answer

    def take(self, request: FetchRequest) -> None:
        """A request came; `look` answers it."""
        self._request, self._is_new = request, True
        self._told = self._note(request)
        self._seen = dict.fromkeys([*self._owed, *self._take_rung(), *self._told])

    def look(self, *, is_due: bool, still_waiting: Callable[[], None] = lambda: None) -> FetchAnswer | None:
        """The answer to the request, if there is enough for one or it ``is_due``; else None. Waits for room alone.

        To be called at once, whenever a bell rang (`is_rung`), and when the request's time is over.
        """
        rung = dict.fromkeys(self._take_rung())
        if not (self._is_new or rung or is_due):
            return None
        self._seen = {**rung, **self._seen}
        looked = self._seen if self._is_new or is_due else rung
        looks = self._look(looked, self._told)
        self._told, self._is_new = (), False
        try:
            if not is_due and not is_enough(looks, self._request.min_bytes):
                return None
            if looked is rung:
                close_looks(looks)
                looks = self._look(self._seen)
            return self._answer(looks, still_waiting)
        finally:
            close_looks(looks)

    @property
    def is_rung(self) -> bool:
        """Whether something happened in a partition since it was looked at."""
        return self._signal.is_set

    def close(self) -> None:
        """No bell rings for it any more."""
        for at in list(self._watches):
            self._unwatch(at)
        self._wanted.clear()

    # --- private ------------------------------------------------------------------------------------------------

    def _note(self, request: FetchRequest) -> list[TopicPartition]:
        """What the request tells anew."""
        told = {TopicPartition(each.topic, each.partition): each for each in request.partitions}
        if request.is_incremental:
            forgotten: Collection[TopicPartition] = [TopicPartition(*at) for at in request.forgotten]
        else:
            forgotten = self._wanted.keys() - told.keys()
        for at in forgotten:
            self._wanted.pop(at, None)
            self._owed.pop(at, None)
            self._unwatch(at)
        self._wanted.update(told)
        for at in told:
            self._owed.pop(at, None)
        return list(told)

    def _look(self, seen: Collection[TopicPartition], told: Collection[TopicPartition] = ()) -> _Looks:
        wanted = [each for at in seen if (each := self._wanted.get(at)) is not None]
        for each in wanted:
            self._watch(each)
        return self._look_at(self._caller, self._request, wanted, told=told)

    def _answer(self, looks: _Looks, still_waiting: Callable[[], None]) -> FetchAnswer:
        lacking = {
            TopicPartition(look.wanted.topic, look.wanted.partition): None
            for look in looks
            if look.error is None and look.diverging is None and look.wanted.offset < look.log_end
        }
        answer = self._load(self._caller, self._request, looks, still_waiting)
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
            return  # the look meets it as well
        known = self._watches.get(at)
        if known is not None and known[0] is partition:
            return
        self._unwatch(at)
        watch = _Watch(at, self._rung, self._signal)
        self._watches[at] = (partition, watch)
        partition.add_waiter(watch, at_append=True)

    def _unwatch(self, at: TopicPartition) -> None:
        known = self._watches.pop(at, None)
        if known is not None:
            known[0].remove_waiter(known[1])

    def _take_rung(self) -> list[TopicPartition]:
        if self._signal.is_set:
            self._signal.wait(0.0)  # which clears it
        rung: dict[TopicPartition, None] = {}
        while self._rung:
            watch = self._rung.popleft()
            watch.is_rung = False  # before anybody looks: what happens from here on rings again
            rung[watch.at] = None
        return list(rung)


class _Watch(FetchWaiter):
    """The bell of one partition in one session."""

    __slots__ = ("_common", "_rung", "at", "is_rung")

    def __init__(self, at: TopicPartition, rung: deque[_Watch], common: Signal) -> None:
        super().__init__()
        self.at = at
        self.is_rung = False
        self._rung = rung
        self._common = common

    def wake(self) -> None:
        if not self.is_rung:
            self.is_rung = True
            self._rung.append(self)
            self._common.set()
