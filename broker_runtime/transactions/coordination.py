"""Begins and decides transactions: each is one change of the znode of a transactional id.

Rules: any broker does it, and keeps nothing that matters. An answer whose change got no reply is never guessed: the
change is planned again from what is there, and finds its own decision. A group's offsets that become committed with a
batch are written in the transaction of the decision, so both are there or neither is.

What a broker reads may be older than what others have written: its server of the ensemble may lag. A change finds that
out as it is written. An answer that writes nothing (a refusal, a decision that was made before) is given only from what
was read behind a barrier, or where what was read is surely not older than what the asker knows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from broker_runtime.contract.errors import (
    ConcurrentTransactionsError,
    CorruptRecordError,
    InvalidTxnStateError,
    ProducerFencedError,
    PylogError,
)
from broker_runtime.contract.events import event
from broker_runtime.transactions import transactional_id as machine
from broker_runtime.zookeeper.guarded import Guard, Planned, barrier, change
from broker_runtime.zookeeper.session import (
    Create,
    Delete,
    NoNodeError,
    Operation,
    Set,
    ZNode,
    ZooKeeperClient,
    require_connection,
)
from broker_runtime.zookeeper.znodes import (
    TRANSACTIONS,
    DecidedPartitions,
    DecisionRecord,
    PartitionState,
    TopicRecord,
    TransactionRecord,
    from_json,
    partition_state_path,
    to_compact_json,
    topic_path,
    transaction_path,
)

_REMEMBERED: Final = 10_000
_LARGEST_RECORD: Final = 400 << 10
"""Bytes of a record with several unfinished decisions: what else may be written into it still fits into a znode."""
_FRESH_MS: Final = 500
"""How old a record may be by which a partition lets a transaction begin, or a change is planned. A transaction that
should not have begun holds readers back until it is ended, and changes no outcome; a change that was planned from an
old record is refused, as the znode has another version, and planned anew."""

_T = TypeVar("_T")
_New = TransactionRecord | None
_logger = logging.getLogger(__name__)


class _Known(NamedTuple):
    """``version``: of the znode; -1 where there is none."""

    record: TransactionRecord | None
    version: int
    read_at_ms: int


class LedIn(NamedTuple):
    """A partition, and the epoch in which a broker believes to lead it."""

    topic: str
    partition: int
    leader_epoch: int


class TransactionCoordinator:
    """See the module. Thread-safe; calls block on ZooKeeper, in bounds, and raise `ZooKeeperUnavailableError`."""

    def __init__(self, client: ZooKeeperClient, *, steady_ms: Callable[[], int], wall_ms: Callable[[], int]) -> None:
        """``steady_ms``: a clock that never jumps; ``wall_ms``: the time that records carry."""
        self._client = client
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._ended: dict[str, list[DecisionRecord]] = {}  # what `note_ended` was told and no record says yet

    def require_zookeeper(self) -> None:
        """For requests: see `require_connection`."""
        require_connection(self._client, "transactions")

    # --- attempts ---------------------------------------------------------------------------------------------

    def begin(
        self, name: str, *, run_id: str, batch_id: int, epoch: int = -1, timeout_ms: int, keep_ms: int
    ) -> machine.Begun:
        """An attempt begins. Raises as `machine.begin`."""

        def is_current(present: TransactionRecord | None) -> bool:
            # Nobody but this run decides, and it does not begin a batch before it has decided the one before.
            return present is not None and (present.epoch, machine.last_batch(present)) >= (epoch, batch_id - 1)

        def plan(present: TransactionRecord | None) -> tuple[machine.Begun, _New]:
            begun = machine.begin(
                present,
                name,
                run_id=run_id,
                batch_id=batch_id,
                epoch=epoch,
                timeout_ms=timeout_ms,
                keep_ms=keep_ms,
                now_ms=self._wall_ms(),
            )
            return begun, begun.record

        return self._change(name, plan, is_current=is_current)

    def require_may_begin(self, name: str, *, epoch: int, batch_id: int, producer_id: int) -> None:
        """Whether a transaction may begin in a partition of this broker. Raises as `machine.may_begin`."""
        known = self._recent(name)
        if known is not None and known.record is not None:
            # What refuses it may be older than the transaction, or than what was decided of it.
            with contextlib.suppress(ProducerFencedError, InvalidTxnStateError):
                machine.may_begin(known.record, name, epoch=epoch, batch_id=batch_id, producer_id=producer_id)
                return
        record = self.read(name, at_least=(epoch, -1))
        if record is None:
            raise InvalidTxnStateError(f"transactional id {name!r} has begun nothing, or has been forgotten")
        machine.may_begin(record, name, epoch=epoch, batch_id=batch_id, producer_id=producer_id)

    def is_anew(self, name: str, *, epoch: int, batch_id: int) -> bool:
        """Whether the id has been forgotten and has begun anew since it was in that epoch, with everything decided up
        to that batch: else what is read behind a barrier is not older."""
        barrier(self._client)
        record = self.read_all([name])[0]
        return record is not None and (record.epoch < epoch or machine.last_batch(record) < batch_id)

    # --- decisions --------------------------------------------------------------------------------------------

    def decide(
        self,
        name: str,
        *,
        run_id: str,
        epoch: int,
        created_at_ms: int = -1,
        batch_id: int,
        is_commit: bool,
        producer_ids: Sequence[tuple[int, int]],
        partitions: Sequence[DecidedPartitions],
        rows: int = 0,
        payload_bytes: int = 0,
        keeps_first: bool = False,
        beside: Callable[[], Sequence[Operation]] = tuple,
        guard: Guard | None = None,
    ) -> machine.Decided:
        """Decides a batch. ``beside`` plans what is written in the same transaction, if this is what decides it, under
        ``guard``. Raises as `machine.decide`, and `GuardFailedError`."""

        def plan(present: TransactionRecord | None) -> tuple[machine.Decided, _New]:
            decided = machine.decide(
                self._without_ended(name, present),
                name,
                run_id=run_id,
                epoch=epoch,
                created_at_ms=created_at_ms,
                batch_id=batch_id,
                is_commit=is_commit,
                producer_ids=producer_ids,
                partitions=partitions,
                rows=rows,
                payload_bytes=payload_bytes,
                keeps_first=keeps_first,
                now_ms=self._wall_ms(),
            )
            return decided, decided.record

        decided = self._change(name, plan, beside=beside, guard=guard)
        event(
            _logger,
            "decide transaction",
            transactional_id=name,
            epoch=epoch,
            batch=batch_id,
            is_commit=is_commit,
            producers=sum(last - first + 1 for first, last in producer_ids),
            is_replay=decided.is_replay,
        )
        return decided

    def abort_run(self, name: str, run_id: str = "") -> TransactionRecord | None:
        """See `machine.abort_run`. Returns the record as it is then; None: nothing is known of the id."""

        def plan(present: TransactionRecord | None) -> tuple[TransactionRecord | None, _New]:
            changed = machine.abort_run(present, run_id)
            return (present if changed is None else changed), changed

        record = self._change(name, plan)
        event(_logger, "abort transactions", transactional_id=name, run=run_id, epoch=record.epoch if record else -1)
        return record

    def abort_producers(self, name: str, producer_ids: Sequence[int], *, epoch: int) -> TransactionRecord:
        """These producer ids, which have been open for too long, will not be committed, unless that was decided. For an
        id of which nothing is known, everything up to ``epoch`` is aborted. Returns the record as it is then."""

        def plan(present: TransactionRecord | None) -> tuple[TransactionRecord, _New]:
            if present is None:
                changed = machine.unknown(epoch, self._wall_ms())
            else:
                changed = machine.abort_producers(present, producer_ids)
            return changed, changed

        record = self._change(name, plan)
        event(_logger, "abort transactions", transactional_id=name, producers=len(producer_ids), epoch=record.epoch)
        return record

    def note_ended(self, name: str, decisions: Iterable[DecisionRecord]) -> None:
        """All partitions know these decisions. This is written with the id's next decision or by `finish`, so that
        decisions in quick succession cost one write each."""
        with self._lock:
            noted = self._ended.setdefault(name, [])
            noted += (each for each in decisions if each not in noted)

    def finish(self, name: str) -> None:
        """Writes what `note_ended` was told, unless it is written."""

        def plan(present: TransactionRecord | None) -> tuple[None, _New]:
            return None, self._without_ended(name, present)

        if self._noted(name):
            self._change(name, plan)

    def forget(self, name: str, *, now_ms: int) -> bool:
        """Removes the id if it has been out of use for long by then. Returns whether it did."""
        path = transaction_path(name)

        def plan() -> Planned[bool]:
            node = self._client.find(path)
            if node is None or not machine.is_forgotten(from_json(node.data, TransactionRecord, path), now_ms):
                return Planned(False)
            return Planned(True, [Delete(path, node.version)])

        is_gone = change(self._client, plan, what=path)
        if is_gone:
            self._learn(name, None, -1)
            event(_logger, "forget transactional id", transactional_id=name)
        return is_gone

    # --- reading ----------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """What is read after this is not older than what was written before it, by whomever."""
        barrier(self._client)

    def names(self) -> list[str]:
        """All transactional ids, sorted."""
        try:
            return self._client.children(TRANSACTIONS)
        except NoNodeError:
            return []

    def read(self, name: str, *, at_least: tuple[int, int] | None = None) -> TransactionRecord | None:
        """The record; None: there is none. ``at_least``: an epoch and a batch id: if what is read is older, it is read
        again after everything that was under way."""
        record = self.read_all([name])[0]
        if at_least is not None and (record is None or (record.epoch, machine.last_batch(record)) < at_least):
            barrier(self._client)
            record = self.read_all([name])[0]
        return record

    def read_decided(self, name: str, *, epoch: int, batch_id: int) -> TransactionRecord | None:
        """The record, in which the batch of that epoch is decided; None: there is none. It may be as old as the
        decision, and is read only where that is not known yet."""
        known = self._recent(name)
        record = None if known is None else known.record
        if record is not None and (record.epoch, machine.last_batch(record)) >= (epoch, batch_id):
            return record
        return self.read(name, at_least=(epoch, batch_id))

    def read_all(self, names: Sequence[str]) -> list[TransactionRecord | None]:
        """As `read`, for many at once. Raises `CorruptRecordError` for the first that is damaged."""
        return [self._learned(name, node) for name, node in self._nodes(names)]

    def read_sound(self, names: Sequence[str]) -> dict[str, TransactionRecord | None]:
        """As `read_all`, without those that are damaged, which are logged."""
        found: dict[str, TransactionRecord | None] = {}
        for name, node in self._nodes(names):
            try:
                found[name] = self._learned(name, node)
            except CorruptRecordError as error:
                event(_logger, "read transactional id", level=logging.ERROR, transactional_id=name, error=error)
        return found

    def current_topic(self, topic: str) -> TopicRecord | None:
        """The topic, not older than when this was asked; None: there is none."""
        barrier(self._client)
        path = topic_path(topic)
        node = self._client.find(path)
        return None if node is None else from_json(node.data, TopicRecord, path)

    def are_led_by(self, broker_id: int, partitions: Sequence[LedIn]) -> list[bool]:
        """Whether the broker led each of them when this was asked."""
        barrier(self._client)
        paths = [partition_state_path(each.topic, each.partition) for each in partitions]
        are_led: list[bool] = []
        for each, path, node in zip(partitions, paths, self._client.find_all(paths, are_small=True), strict=True):
            state = None if node is None else from_json(node.data, PartitionState, path)
            is_led = state is not None and (state.leader, state.leader_epoch) == (broker_id, each.leader_epoch)
            are_led.append(is_led)
        return are_led

    # --- private ----------------------------------------------------------------------------------------------

    def _change(
        self,
        name: str,
        plan: Callable[[TransactionRecord | None], tuple[_T, _New]],
        *,
        is_current: Callable[[TransactionRecord | None], bool] = lambda present: False,
        beside: Callable[[], Sequence[Operation]] = tuple,
        guard: Guard | None = None,
    ) -> _T:
        """``plan(record)`` returns the result, and the record that is to be there (None: as it is). ``is_current``:
        whether a result that writes nothing may be given without a barrier (see the module)."""
        path = transaction_path(name)
        known, noted = self._usable(name), self._noted(name)
        written: TransactionRecord | None = None
        version = -1
        is_synced = is_certain = False

        def planned() -> Planned[_T]:
            nonlocal known, written, version, is_synced, is_certain
            while True:
                was_known, known = known, None  # what was known serves once: to plan what is written if it still holds
                if was_known is not None:
                    present, version = was_known.record, was_known.version
                else:
                    node = self._client.find(path)
                    present = None if node is None else from_json(node.data, TransactionRecord, path)
                    version = -1 if node is None else node.version
                try:
                    result, new = plan(present)
                except PylogError:
                    if is_synced:
                        raise
                else:
                    if is_synced or (new is not None and new != present):
                        break
                    if was_known is None and is_current(present):
                        break
                if was_known is None:
                    barrier(self._client)
                    is_synced = True
            written = present if new is None else new
            is_certain = is_synced or written != present
            if new is None or new == present:
                return Planned(result)
            data = to_compact_json(new, path)
            if len(data) > _LARGEST_RECORD and new.unfinished[:-1]:
                raise ConcurrentTransactionsError(
                    f"what is not finished of transactional id {name!r} and this decision make {len(data)} bytes, more "
                    f"than the {_LARGEST_RECORD} that ZooKeeper takes of an id. Try again"
                )
            own: Operation = Create(path, data) if present is None else Set(path, data, version)
            version += 1
            return Planned(result, [own, *beside()])

        result = change(self._client, planned, what=path, guard=guard)
        self._learn(name, written, version)
        if is_certain:
            self._forget_ended(name, noted, written)
        return result

    def _without_ended(self, name: str, record: TransactionRecord | None) -> TransactionRecord | None:
        for each in self._noted(name):
            # A batch of the same number may be another one, if the id was forgotten and has begun anew.
            if record is not None and each in record.unfinished:
                record = machine.finish(record, each.batch_id)
        return record

    def _noted(self, name: str) -> list[DecisionRecord]:
        with self._lock:
            return list(self._ended.get(name, ()))

    def _forget_ended(self, name: str, noted: Sequence[DecisionRecord], record: TransactionRecord | None) -> None:
        """Those of ``noted`` that are not unfinished in a record that is not older than they are."""
        unfinished = () if record is None else record.unfinished
        with self._lock:
            left = [each for each in self._ended.get(name, ()) if each in unfinished or each not in noted]
            if left:
                self._ended[name] = left
            else:
                self._ended.pop(name, None)

    def _nodes(self, names: Sequence[str]) -> Iterable[tuple[str, ZNode | None]]:
        return zip(names, self._client.find_all([transaction_path(name) for name in names]), strict=True)

    def _learned(self, name: str, node: ZNode | None) -> TransactionRecord | None:
        record = None if node is None else from_json(node.data, TransactionRecord, transaction_path(name))
        self._learn(name, record, -1 if node is None else node.version)
        return record

    def _recent(self, name: str) -> _Known | None:
        """The record as it was a moment ago, without a call; None: not known."""
        with self._lock:
            known = self._known.get(name)
        return None if known is None or self._steady_ms() - known.read_at_ms > _FRESH_MS else known

    def _usable(self, name: str) -> _Known | None:
        """As `_recent`, of a znode whose version tells whether it is still the same: it is not forgotten, to be
        created again and get the same version once more, by the time of the write."""
        known = self._recent(name)
        if known is None or known.record is None:
            return None
        is_in_use = self._wall_ms() - known.record.used_at_ms < known.record.keep_ms // 2
        return known if is_in_use and known.record.keep_ms > 4 * _FRESH_MS else None

    def _learn(self, name: str, record: TransactionRecord | None, version: int) -> None:
        with self._lock:
            self._known[name] = _Known(record, version, self._steady_ms())
            self._known.move_to_end(name)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
