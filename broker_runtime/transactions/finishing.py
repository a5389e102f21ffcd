"""Has the leaders of a decision's partitions end what is over, until all of them have; then the decision is finished.

Rules: nobody waits for this but the sixth decision of one transactional id (`MOST_UNFINISHED`), and batch writes, which
return when they can be read. Whoever decided begins at once. That a decision is finished is written with the id's next
decision where one is to follow soon (or after a moment without one), else at once. What a broker that died has left is
found by whichever broker is the controller, a few times a minute. Telling a leader twice changes nothing. That a
partition does not exist, or has nothing to be told, is believed only of what ZooKeeper has now: a decision that is
finished too early is forgotten, and the next one would abort what it has committed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import PartitionKey, portions
from broker_runtime.contract.transactions import FinishTransactionsRequest, FinishTransactionsResponse
from broker_runtime.contract.waiting import Signal
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.transactions.transactional_id import MOST_UNFINISHED, is_forgotten, last_batch
from broker_runtime.zookeeper.cluster_state import ClusterState
from broker_runtime.zookeeper.session import ZNodeError
from broker_runtime.zookeeper.znodes import DecisionRecord, TransactionRecord

PAUSE_S: Final = 0.25
SWEEP_S: Final = 15.0
WRITE_AFTER_S: Final = 0.2
"""How long it is left unwritten that a decision is finished: the id's next decision may be written together with it."""
_MANY_UNFINISHED: Final = MOST_UNFINISHED - 2
"""With so many in a record nothing waits: another broker may be the one that decides next."""
MOST_WAITING: Final = 10_000
"""Transactional ids that wait to be finished by this broker; what is more is left to the next sweep."""
_SWEPT_AT_ONCE: Final = 500

_logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """An id with decisions to be finished. ``record``: None: to be read. ``write_after_s``: see `WRITE_AFTER_S`."""

    record: TransactionRecord | None
    write_after_s: float


_UNREAD: Final = _Waiting(None, 0.0)


class AskLeader(Protocol):
    """Asks a broker, this one included, to end what is over. Raises `PylogError`."""

    def __call__(self, broker_id: int, request: FinishTransactionsRequest) -> FinishTransactionsResponse:
        """Blocks, in bounds."""


class TransactionFinishing:
    """See the module. `add` from any thread; the rest on one."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        cluster: Callable[[], ClusterState],
        ask_leader: AskLeader,
        *,
        broker_id: int,
        steady_ms: Callable[[], int],
        believed_ms: Callable[[], int],
    ) -> None:
        """``cluster``: as this broker knows it. ``believed_ms``: the time of `BelievedClock`, by which ids are
        forgotten."""
        self._coordinator = coordinator
        self._cluster = cluster
        self._ask_leader = ask_leader
        self._broker_id = broker_id
        self._steady_ms = steady_ms
        self._believed_ms = believed_ms
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._unwritten: dict[str, int] = {}  # ids with finished decisions, and when that is to be written (ms)
        self._signal = Signal()
        self._sweep_at_ms = steady_ms() + int(SWEEP_S * 1000)

    def add(self, name: str, record: TransactionRecord, *, is_followed: bool) -> None:
        """There is a decision of this id to be finished. ``record``: as it was written. ``is_followed``: another
        decision is to come soon."""
        with self._lock:
            known = self._waiting.get(name, _UNREAD).record
            is_older = known is not None and (record.epoch, last_batch(record)) < (known.epoch, last_batch(known))
            if not is_older and (name in self._waiting or len(self._waiting) < MOST_WAITING):
                self._waiting[name] = _Waiting(record, WRITE_AFTER_S if is_followed else 0.0)
        self._signal.set()

    def wake(self) -> None:
        """Ends a `wait`."""
        self._signal.set()

    def wait(self) -> None:
        """Blocks until there is something to finish, or it is time to look again."""
        self._signal.wait(PAUSE_S if self._waiting or self._unwritten else SWEEP_S / 3)

    def step(self) -> None:
        """Finishes what can be finished. Blocks, in bounds. Raises nothing: what fails is tried again."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for name, each in waiting.items():
            try:
                if not self._finish(name, each.record or self._coordinator.read(name), each.write_after_s):
                    self._again(name)
            except (PylogError, ZNodeError) as error:
                event(_logger, "finish transactions", level=logging.WARNING, transactional_id=name, error=error)
                self._again(name)
        for name in [name for name, due_ms in self._unwritten.items() if self._steady_ms() >= due_ms]:
            try:
                self._coordinator.finish(name)
            except (PylogError, ZNodeError) as error:
                event(_logger, "finish transactions", level=logging.WARNING, transactional_id=name, error=error)
            else:
                del self._unwritten[name]
        if self._steady_ms() >= self._sweep_at_ms:
            self._sweep_at_ms = self._steady_ms() + int(SWEEP_S * 1000)
            try:
                self._sweep()
            except (PylogError, ZNodeError) as error:
                event(_logger, "look for unfinished transactions", level=logging.WARNING, error=error)

    # --- private ----------------------------------------------------------------------------------------------

    def _again(self, name: str) -> None:
        with self._lock:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.setdefault(name, _UNREAD)

    def _finish(self, name: str, record: TransactionRecord | None, write_after_s: float) -> bool:
        """Whether nothing of the id is unfinished any more."""
        if record is None:
            return True
        ended = [decision for decision in record.unfinished if self._have_all_ended(name, record, decision)]
        if ended:
            self._coordinator.note_ended(name, ended)
            delay_s = write_after_s if len(record.unfinished) < _MANY_UNFINISHED else 0.0
            due_ms = self._steady_ms() + int(delay_s * 1000)
            self._unwritten[name] = min(due_ms, self._unwritten.get(name, due_ms))
        return len(ended) == len(record.unfinished)

    def _have_all_ended(self, name: str, record: TransactionRecord, decision: DecisionRecord) -> bool:
        have_all = True
        for leader, partitions in self._by_leader(decision).items():
            if leader is None:
                have_all = False
                continue
            for some in portions(partitions):
                request = FinishTransactionsRequest(
                    transactional_id=name, epoch=record.epoch, batch_id=decision.batch_id, partitions=some
                )
                try:
                    have_all = all(self._ask_leader(leader, request).are_finished) and have_all
                except PylogError as error:
                    event(
                        _logger,
                        "finish transactions",
                        level=logging.WARNING,
                        transactional_id=name,
                        leader=leader,
                        error=error,
                    )
                    have_all = False
        return have_all

    def _by_leader(self, decision: DecisionRecord) -> Mapping[int | None, list[PartitionKey]]:
        """The decision's partitions by their leaders (None: not known), without those that do not exist."""
        cluster = self._cluster()
        found: dict[int | None, list[PartitionKey]] = {}
        for each in decision.partitions:
            known = cluster.topics.get(each.topic)
            states = () if known is None or known.record.topic_id != each.topic_id else known.partitions
            # This broker may not have heard yet of a topic, or of partitions, that the producer has written to.
            count = (
                len(states)
                if max(each.partitions, default=-1) < len(states)
                else self._count_now(each.topic, each.topic_id)
            )
            for number in each.partitions:
                if number >= count:
                    continue
                present = states[number] if number < len(states) else None
                leader = None if present is None else present.state.leader
                key = PartitionKey(topic=each.topic, partition=number, topic_id=each.topic_id)
                found.setdefault(leader, []).append(key)
        return found

    def _count_now(self, name: str, topic_id: bytes) -> int:
        """How many partitions the topic has in ZooKeeper; 0: it is gone."""
        record = self._coordinator.current_topic(name)
        return 0 if record is None or record.topic_id != topic_id else len(record.assignment)

    def _sweep(self) -> None:
        """The controller looks at all ids: for what others left unfinished, and for what is out of use."""
        controller = self._cluster().controller
        if controller is None or controller.broker_id != self._broker_id:
            return
        names = self._coordinator.names()
        for start in range(0, len(names), _SWEPT_AT_ONCE):
            some = names[start : start + _SWEPT_AT_ONCE]
            for name, record in self._coordinator.read_sound(some).items():
                if record is None:
                    continue
                if record.unfinished:
                    self._again(name)
                elif is_forgotten(record, self._believed_ms()):
                    self._coordinator.forget(name, now_ms=self._believed_ms())
