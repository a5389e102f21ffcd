"""Commits that wait for a consumer's own thread: in order, the newest offset of a partition over older ones, bounded.

Rule: all that waits goes out as one commit, so however many wait, they cost one write. Each has a future of its own,
and the futures are finished in the order in which the commits were asked for (as the callbacks of Kafka's commitAsync
are called). Never blocks for anything but the one commit it was told to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from broker_runtime.contract.errors import ClientStateError, PylogError, RetriableError
from broker_runtime.contract.model import TopicPartition

MAX_WAITING: Final = 10_000
"""So many commits wait at most: about 15 MB of futures."""

Offsets = Mapping[TopicPartition, int]


class _Waiting(NamedTuple):
    offsets: Offsets
    future: Future[None]


class CommitQueue:
    """What `add` takes, `write` commits. Thread-safe; one thread at a time may `write`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the list, never held over a commit or a callback
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offsets: Offsets) -> Future[None]:
        """Queues a commit. Raises `ClientStateError` when `MAX_WAITING` wait already."""
        future: Future[None] = Future()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise ClientStateError(
                    f"{len(self._waiting)} commits wait for the broker already, and no more may: wait for one's future "
                    "now and then, or commit less often"
                )
            self._waiting.append(_Waiting(dict(offsets), future))
        return future

    def write(self, commit: Callable[[Offsets], None]) -> None:
        """Does all that waits now. Blocks as ``commit`` does; what that raises is in the futures.

        A commit that is refused for one of its partitions spoils no other's: then each is done by itself, in order.
        """
        with self._lock:
            taken, self._waiting = self._waiting, []
        waiting = [one for one in taken if one.future.set_running_or_notify_cancel()]
        if not waiting:
            return
        try:
            _write_all(waiting, commit)
        except Exception as error:  # a defect: whoever waits for a future is told, too
            for one in waiting:
                if not one.future.done():
                    one.future.set_exception(error)
            raise

    def abandon(self, error: PylogError) -> None:
        """Nobody will write any more: all that waits fails with ``error``."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        for one in taken:
            if one.future.set_running_or_notify_cancel():
                one.future.set_exception(error)


def _write_all(waiting: Sequence[_Waiting], commit: Callable[[Offsets], None]) -> None:
    newest: dict[TopicPartition, int] = {}
    for one in waiting:
        newest.update(one.offsets)
    error = _tried(commit, newest)
    alone = error is not None and not isinstance(error, RetriableError) and len(waiting) > 1
    for one in waiting:
        if alone:
            error = _tried(commit, one.offsets)
            alone = not isinstance(error, RetriableError)  # nobody answers: those after it need not wait for that
        if error is None:
            one.future.set_result(None)
        else:
            one.future.set_exception(error)


def _tried(commit: Callable[[Offsets], None], offsets: Offsets) -> PylogError | None:
    try:
        commit(offsets)
    except PylogError as error:
        return error
    return None
