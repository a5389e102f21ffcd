"""Whether a broker still leads, asked of ZooKeeper: before it says that records which a client knows of are not there.

A broker learns of its successor some milliseconds after the election, and one that stood still learns of it when it
continues. Until then its log ends earlier than what the successor has committed and others have read. A reader that
comes from there would be told that its offset does not exist, and would begin again at the log's first record.

Rule: only such answers are checked, as a check costs a write to ZooKeeper. One check serves all who asked before it
began, whatever their partitions; there is one at a time, and a pause between two. Nobody waits longer than
`ANSWER_LIMIT_S` (unless the system has no thread for the check, which the caller then makes itself); and while a check
takes longer than that, nobody waits at all: a fetch has other partitions, too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from broker_runtime.contract.errors import (
    CorruptRecordError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    PylogError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.threads import run_within
from broker_runtime.contract.waiting import Deadline
from broker_runtime.replication import Partition
from broker_runtime.zookeeper.guarded import barrier
from broker_runtime.zookeeper.session import ZooKeeperClient
from broker_runtime.zookeeper.znodes import PartitionState, from_json, partition_state_path

ANSWER_LIMIT_S: Final = 1.0
"""Less than a client waits for a sign of life before it asks what has become of the broker."""
_PAUSE_S: Final = 0.05
_NAME: Final = "check leadership"


class Denied(NamedTuple):
    """An answer to be checked: as leader of ``partition`` in ``leader_epoch`` this broker found that an offset does not
    exist."""

    partition: Partition
    leader_epoch: int
    error: OffsetOutOfRangeError


class _Check:
    """``states``: what ZooKeeper has, by path, without what cannot be read; None: it did not answer."""

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        self.states: Mapping[str, PartitionState | None] | None = None
        self.is_over = False
        self.deadline = Deadline(None)


class LeadershipCheck:
    """The checks for the partitions of one broker. Thread-safe."""

    def __init__(self, client: ZooKeeperClient, broker_id: int) -> None:
        self._client = client
        self._broker_id = broker_id
        self._changed = threading.Condition()
        self._running: _Check | None = None
        self._next: _Check | None = None  # for all who ask while that one runs
        self._pause = Deadline(0.0)

    def verified(self, denied: Sequence[Denied]) -> list[PylogError]:
        """The error to answer each with: its own if this broker led still after that, else one that makes the client
        ask again, or ask another. Blocks up to `ANSWER_LIMIT_S`."""
        paths = [partition_state_path(each.partition.topic, each.partition.partition) for each in denied]
        states = self._states(paths) if paths and self._client.is_connected else None
        return [self._answer(each, path, states or {}) for each, path in zip(denied, paths, strict=True)]

    # --- private ----------------------------------------------------------------------------------------------

    def _answer(self, denied: Denied, path: str, states: Mapping[str, PartitionState | None]) -> PylogError:
        partition, leader_epoch, error = denied
        if path not in states:
            return OffsetNotAvailableError(
                f"{error.message}; but whether broker {self._broker_id} still leads {partition} is not known at present"
            )
        state = states[path]
        if state is None or (state.leader, state.leader_epoch) != (self._broker_id, leader_epoch):
            return NotLeaderOrFollowerError(f"{partition} is not led by broker {self._broker_id} any more")
        return error

    def _states(self, paths: Sequence[str]) -> Mapping[str, PartitionState | None] | None:
        """By a check that begins after this was called; None: not known in time."""
        deadline = Deadline(ANSWER_LIMIT_S)
        with self._changed:
            if self._next is None:
                self._next = _Check()
            mine = self._next
            mine.paths.update(dict.fromkeys(paths))
        while True:
            with self._changed:
                if mine.is_over:
                    return mine.states
                running = self._running
                if deadline.expired or (running is not None and running.deadline.expired):
                    return None
                if running is not None:
                    self._changed.wait(min(deadline.remaining_s(), running.deadline.remaining_s()))
                    continue
                if not self._pause.expired:
                    self._changed.wait(min(deadline.remaining_s(), self._pause.remaining_s()))
                    continue
                self._running, self._next = mine, None
                mine.deadline = Deadline(ANSWER_LIMIT_S)
            defect = run_within(deadline.remaining_s(), {_NAME: partial(self._run, mine)}).get(_NAME)
            if defect is not None:
                raise defect

    def _run(self, check: _Check) -> None:
        try:
            check.states = self._look(list(check.paths))
        except ZooKeeperUnavailableError:
            pass  # nobody knows
        finally:
            with self._changed:
                check.is_over = True
                self._running = None
                self._pause = Deadline(_PAUSE_S)
                self._changed.notify_all()

    def _look(self, paths: Sequence[str]) -> Mapping[str, PartitionState | None]:
        barrier(self._client)
        states: dict[str, PartitionState | None] = {}
        for path, node in zip(paths, self._client.find_all(paths, are_small=True), strict=True):
            try:
                states[path] = None if node is None else from_json(node.data, PartitionState, path)
            except CorruptRecordError:
                continue
        return states
