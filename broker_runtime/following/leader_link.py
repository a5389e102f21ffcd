"""What this broker follows of one leader on one disk: a thread that asks, a session, and the machine that decides.

    FollowerFetcher.next_request → FetchExchange.fetch → FollowerFetcher.handle → …

Rules: only the thread touches the session, apart from cancelling it. While there is nothing to ask for, the thread
sends a heartbeat each second; while nothing is followed, it holds no connection. A connection that breaks or is refused
is reported to ``on_broken``. An answer that is an error is not: that leader is alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import BrokerOverloadedError, BrokerUnavailableError, NetworkError, PylogError
from broker_runtime.contract.fetch_exchange import FetchExchange
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, PEER_SILENCE_LIMIT_S
from broker_runtime.contract.security import UNPROTECTED, Access
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchRequest
from broker_runtime.contract.threads import is_out_of_threads, may_start
from broker_runtime.contract.waiting import Deadline, Worker
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.following.peers import broker_client_id
from broker_runtime.replication import Partition

_SHORTEST_PAUSE_S: Final = 0.01
_INTERRUPT_AFTER_S: Final = 0.05  # a request that has waited longer than this has no answer on its way
_INTERRUPT_GAP_S: Final = 0.25  # a new session reports every partition: those added one by one share it
_IDLE_LIMIT_S: Final = 10.0
_WAIT_WHILE_LOADING_MS: Final = 100
_HEARTBEAT: Final = FetchRequest(request_id=-1, heartbeat=True)


class LeaderLink:
    """One leader's. `follow`, `unfollow`, `watch` and `stop` are safe on any thread and never block."""

    def __init__(
        self,
        fetcher: FollowerFetcher,
        *,
        address_of: Callable[[int], Address | None],
        broker_epoch: Callable[[], int],
        broker_secret: Callable[[], str] = lambda: "",
        on_broken: Callable[[int], None],
        may_retire: Callable[[LeaderLink], bool],
        on_failure: Callable[[], None],
        is_loading: Callable[[], bool] = lambda: False,
        access: Access = UNPROTECTED,
    ) -> None:
        """``may_retire``: called on the thread when nothing has been followed for a while; True: the thread ends.
        ``on_failure``: a defect ended the thread. ``is_loading``: whether more partitions will be followed soon; no
        request waits long for data then, so that the next one can report them. ``access``: how leaders are reached."""
        self.fetcher = fetcher
        self._address_of = address_of
        self._broker_epoch = broker_epoch
        self._broker_secret = broker_secret
        self._on_broken = on_broken
        self._may_retire = may_retire
        self._is_loading = is_loading
        self._access = access
        self._exchange: FetchExchange | None = None
        self._exchange_epoch = -1
        self._address: Address | None = None  # where the leader was last looked for; None: it is not registered
        self._idle_limit: Deadline | None = None  # since when nothing is followed
        self._heartbeat_due = Deadline(0.0)
        self._answer_due: Deadline | None = None  # of the request that is out, if `watch` may interrupt it
        self._interrupt_gap = Deadline(0.0)
        self._has_unasked = False
        self._is_interrupted = False
        self._flushing: threading.Thread | None = None  # while a request is out
        self._worker = Worker(
            f"follow-{fetcher.leader_id}",
            self._step,
            on_defect=lambda error: on_failure(),
            interrupt=self._cancel,
            at_end=self._close,
        )

    def may_start(self) -> bool:
        """Starts the thread; False: the system has none to give at present, and this may be called again later."""
        return self._worker.may_start()

    # --- any thread ---------------------------------------------------------------------------------------------

    def follow(self, partition: Partition, leader_epoch: int) -> None:
        """As `FollowerFetcher.follow`. `watch` then interrupts a request that waits for other partitions' data."""
        self.fetcher.follow(partition, leader_epoch)
        if not self.fetcher.is_asked_for(TopicPartition(partition.topic, partition.partition), leader_epoch):
            self._has_unasked = True
        self._worker.wake()

    def unfollow(self, at: TopicPartition) -> None:
        """As `FollowerFetcher.unfollow`."""
        self.fetcher.unfollow(at)

    @property
    def has_unasked(self) -> bool:
        """Whether something is followed that the request which is out does not ask for: `watch` should be called
        soon."""
        return self._has_unasked

    def watch(self) -> None:
        """Cancels the wait for a leader that has gone silent, and one that holds up newly followed partitions."""
        exchange, answer_due = self._exchange, self._answer_due
        if exchange is None:
            return
        if exchange.silent_for_s > PEER_SILENCE_LIMIT_S:
            exchange.cancel()
        elif self._has_unasked and answer_due is not None and answer_due.expired and self._interrupt_gap.expired:
            self._interrupt_gap = Deadline(_INTERRUPT_GAP_S)
            self._is_interrupted = True
            exchange.cancel()

    def stop(self) -> None:
        """Ends the thread soon, whatever it waits for."""
        self._worker.stop()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end; False: it still runs."""
        return self._worker.join(timeout_s)

    # --- the thread ---------------------------------------------------------------------------------------------

    def _step(self) -> float | None:
        if not self.fetcher.is_idle:
            self._idle_limit = None
            return self._step_in_short_supply()
        self._close()
        if self._idle_limit is None:
            self._idle_limit = Deadline(_IDLE_LIMIT_S)
        elif self._idle_limit.expired:
            self._idle_limit = None
            if self._may_retire(self):
                self._worker.stop()
            return None
        return self._idle_limit.remaining_s()

    def _step_in_short_supply(self) -> float | None:
        """`_exchange_once`; a lack of threads or memory is taken for a failed try."""
        try:
            return self._exchange_once()
        except RuntimeError as error:
            if not is_out_of_threads(error):
                raise
            self._address = None  # not the leader's fault
            self._fail(BrokerUnavailableError(f"no thread for a session with broker {self.fetcher.leader_id}"))
        except MemoryError as error:
            self._address = None  # likewise
            leader_id = self.fetcher.leader_id
            self._fail(BrokerOverloadedError(f"no memory for the session with broker {leader_id}: {error}"))
        return None

    def _exchange_once(self) -> float | None:
        """One request and its answer; the seconds to pause if there was nothing to ask."""
        self._has_unasked = False
        epoch, now_ms = self._broker_epoch(), _monotonic_ms()
        try:
            if epoch < 0 or self.fetcher.pause_ms(now_ms):
                return self._pause_s()
            exchange = self._session(epoch)
            wait_ms = _WAIT_WHILE_LOADING_MS if self._is_loading() else None
            request = self.fetcher.next_request(epoch, now_ms, longest_wait_ms=wait_ms)
            if request is None:
                return self._pause_s()
            self._heartbeat_due = Deadline(HEARTBEAT_INTERVAL_S)
            # A request that waits only briefly is not interrupted: that would cost the session.
            self._answer_due = Deadline(_INTERRUPT_AFTER_S) if wait_ms is None else None
            try:
                response, buffers = exchange.fetch(request, meanwhile=self._begin_flush)
            finally:
                self._answer_due = None
                self._end_flush()
        except PylogError as error:
            self._fail(error)
            return None
        self.fetcher.handle(response, buffers, _monotonic_ms())
        return None

    def _begin_flush(self) -> None:
        """The answer is received while the disk works: nothing else uses the fetcher until `_end_flush`."""
        if self.fetcher.has_unflushed:
            flushing = threading.Thread(target=self._flush, name=f"{self._worker.name}-flush", daemon=True)
            if may_start(flushing):  # otherwise `handle` flushes
                self._flushing = flushing

    def _end_flush(self) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.join()  # as long as an fdatasync takes, as if it were made here

    def _flush(self) -> None:
        self.fetcher.flush_while_asking(_monotonic_ms())

    def _pause_s(self) -> float:
        """How long there is nothing to ask for; makes use of it."""
        self._flush()
        if self._exchange is not None and self._heartbeat_due.expired:
            self._heartbeat_due = Deadline(HEARTBEAT_INTERVAL_S)
            self._exchange.fetch(_HEARTBEAT)
        pause_s = self.fetcher.pause_ms(_monotonic_ms()) / 1000
        return min(max(pause_s, _SHORTEST_PAUSE_S), HEARTBEAT_INTERVAL_S)

    def _session(self, epoch: int) -> FetchExchange:
        """The open session; a new one if there is none, or it is of an earlier registration."""
        if self._exchange is not None and self._exchange_epoch == epoch:
            return self._exchange
        self._close()
        leader_id = self.fetcher.leader_id
        self._address = address = self._address_of(leader_id)
        if address is None:
            raise BrokerUnavailableError(f"broker {leader_id} is not registered at present")
        broker_id = self.fetcher.broker_id
        exchange = FetchExchange(
            address,
            FetchHello(
                client_id=broker_client_id(broker_id),
                replica_id=broker_id,
                broker_epoch=epoch,
                secret=self._broker_secret(),
            ),
            access=self._access,
        )
        self._exchange, self._exchange_epoch = exchange, epoch
        self.fetcher.begin_session()
        if self._worker.is_stopping:  # `stop` may have looked before there was something to cancel
            exchange.cancel()
        return exchange

    def _fail(self, error: PylogError) -> None:
        was_interrupted = self._is_interrupted
        self._close()
        if was_interrupted or self._worker.is_stopping:
            return
        self.fetcher.failed(error, _monotonic_ms())
        if self._address is not None and isinstance(error, (BrokerUnavailableError, NetworkError)):
            self._on_broken(self.fetcher.leader_id)

    def _cancel(self) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.cancel()

    def _close(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._is_interrupted = False
        if exchange is not None:
            exchange.close()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
