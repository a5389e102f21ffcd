"""What this broker follows of one leader on one disk: a thread that asks, a session, and the machine that decides.

    FollowerFetcher.next_request → FetchExchange.fetch → FollowerFetcher.handle → …

Rules: only the thread touches the session, save for `cancel`. Without anything to ask it says that it lives, each
second; without anything to follow it holds no connection. A connection that breaks, or is refused, is told to
``on_broken``, an answer that is an error is not: that leader lives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import BrokerOverloadedError, BrokerUnavailableError, NetworkError, PylogError
from broker_runtime.contract.events import event
from broker_runtime.contract.fetch_exchange import FetchExchange
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, PEER_SILENCE_LIMIT_S
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchHello, FetchRequest
from broker_runtime.contract.threads import is_out_of_threads, may_start
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.following.peers import broker_client_id
from broker_runtime.replication import Partition

_SHORTEST_PAUSE_S: Final = 0.01
_INTERRUPT_AFTER_S: Final = 0.05  # a request that waits longer than this has no answer on its way
_INTERRUPT_GAP_S: Final = 0.25  # a new session costs all partitions: those that come one by one share it
_IDLE_LIMIT_S: Final = 10.0
_WAIT_WHILE_MORE_COMES_MS: Final = 100
_HEARTBEAT: Final = FetchRequest(request_id=-1, heartbeat=True)

_logger = logging.getLogger(__name__)


class LeaderLink:
    """One leader's. `follow`, `unfollow`, `watch` and `end` are any thread's and never block."""

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
        more_comes: Callable[[], bool] = lambda: False,
    ) -> None:
        """``may_retire``: asked by the thread when there was nothing to follow for a while; True: it ends.
        ``more_comes``: whether other partitions are soon to be followed: no request waits long for data then, so that
        the next one tells of them."""
        self.fetcher = fetcher
        self._address_of = address_of
        self._broker_epoch = broker_epoch
        self._broker_secret = broker_secret
        self._on_broken = on_broken
        self._may_retire = may_retire
        self._on_failure = on_failure
        self._more_comes = more_comes
        self._is_ended = False
        self._wake = threading.Event()
        self._exchange: FetchExchange | None = None
        self._exchange_epoch = -1
        self._address: Address | None = None  # where the leader was last looked for; None: it is not registered
        self._said_s = 0.0
        self._asked_since_s: float | None = None  # since when a request is out
        self._interrupted_s = 0.0  # when one was ended for what it left out
        self._has_news = False
        self._is_interrupted = False
        self._flushing: threading.Thread | None = None  # while a request is out
        self._thread = threading.Thread(target=self._run, name=f"follow-{fetcher.leader_id}", daemon=True)

    def may_begin(self) -> bool:
        """Starts the thread; False: the system has none to give at present. Call it again then, later."""
        return may_start(self._thread)

    # --- any thread ---------------------------------------------------------------------------------------------

    def follow(self, partition: Partition, leader_epoch: int) -> None:
        """As `FollowerFetcher.follow`; a request that is out and waits for other partitions' data is ended for it."""
        self.fetcher.follow(partition, leader_epoch)
        if not self.fetcher.is_asked_for(TopicPartition(partition.topic, partition.partition), leader_epoch):
            self._has_news = True
        self._wake.set()

    def unfollow(self, at: TopicPartition) -> None:
        """As `FollowerFetcher.unfollow`."""
        self.fetcher.unfollow(at)

    @property
    def has_news(self) -> bool:
        """Whether `watch` should look soon."""
        return self._has_news

    def watch(self, now_s: float) -> None:
        """Ends a wait for a leader that says nothing any more, and one that holds up what came to be followed since."""
        exchange, since_s = self._exchange, self._asked_since_s
        if exchange is None:
            return
        if exchange.silent_for_s > PEER_SILENCE_LIMIT_S:
            exchange.cancel()
        elif (
            self._has_news
            and since_s is not None
            and now_s - since_s > _INTERRUPT_AFTER_S
            and now_s - self._interrupted_s > _INTERRUPT_GAP_S
        ):
            self._interrupted_s = now_s
            self._is_interrupted = True
            exchange.cancel()

    def end(self) -> None:
        """Ends the thread soon, whatever it waits for."""
        self._is_ended = True
        exchange = self._exchange
        if exchange is not None:
            exchange.cancel()
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end; False: it still runs."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_ended:
                if self.fetcher.is_idle:
                    self._close()
                    if not self._wake.wait(_IDLE_LIMIT_S) and self._may_retire(self):
                        self._is_ended = True
                    self._wake.clear()
                else:
                    self._step_in_short_supply()
        finally:
            self._close()
            if not self._is_ended:
                # Only a defect; it goes to the log with its traceback.
                event(
                    _logger, "end loop", level=logging.CRITICAL, thread=self._thread.name, broker=self.fetcher.leader_id
                )
                self._on_failure()

    def _step_in_short_supply(self) -> None:
        """`_step`, and a wait where a thread that it needs cannot be started, or there is no memory."""
        try:
            self._step()
        except RuntimeError as error:
            if not is_out_of_threads(error):
                raise
            self._address = None  # the leader has no part in it
            self._fail(BrokerUnavailableError(f"no thread for a session with broker {self.fetcher.leader_id}"))
        except MemoryError as error:
            self._address = None  # likewise
            leader_id = self.fetcher.leader_id
            self._fail(BrokerOverloadedError(f"no memory for the session with broker {leader_id}: {error}"))

    def _step(self) -> None:
        self._has_news = False
        epoch, now_ms = self._broker_epoch(), _monotonic_ms()
        try:
            if epoch < 0 or self.fetcher.pause_ms(now_ms):
                self._rest()
                return
            exchange = self._session(epoch)
            wait_ms = _WAIT_WHILE_MORE_COMES_MS if self._more_comes() else None
            request = self.fetcher.next_request(epoch, now_ms, longest_wait_ms=wait_ms)
            if request is None:
                self._rest()
                return
            self._said_s = time.monotonic()
            # One that waits shortly needs not be ended for what it left out: that would cost the session.
            self._asked_since_s = self._said_s if wait_ms is None else None
            try:
                response, buffers = exchange.fetch(request, meanwhile=self._begin_flush)
            finally:
                self._asked_since_s = None
                self._end_flush()
        except PylogError as error:
            self._fail(error)
            return
        self.fetcher.handle(response, buffers, _monotonic_ms())

    def _begin_flush(self) -> None:
        """The answer is received while the disk works: nothing of the fetcher is used until `_end_flush`."""
        if self.fetcher.has_unflushed:
            flushing = threading.Thread(target=self._flush, name=f"{self._thread.name}-flush", daemon=True)
            if may_start(flushing):  # else `handle` flushes
                self._flushing = flushing

    def _end_flush(self) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.join()  # as long as an fdatasync takes, as if it were made here

    def _flush(self) -> None:
        self.fetcher.flush_while_asking(_monotonic_ms())

    def _rest(self) -> None:
        self._flush()
        if self._exchange is not None and time.monotonic() - self._said_s >= HEARTBEAT_INTERVAL_S:
            self._said_s = time.monotonic()
            self._exchange.fetch(_HEARTBEAT)
        pause_s = self.fetcher.pause_ms(_monotonic_ms()) / 1000
        self._wake.wait(min(max(pause_s, _SHORTEST_PAUSE_S), HEARTBEAT_INTERVAL_S))
        self._wake.clear()

    def _session(self, epoch: int) -> FetchExchange:
        """The open session, or a new one if there is none, or none of this registration."""
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
        )
        self._exchange, self._exchange_epoch = exchange, epoch
        self.fetcher.begin_session()
        if self._is_ended:  # `end` may have looked before there was something to cancel
            exchange.cancel()
        return exchange

    def _fail(self, error: PylogError) -> None:
        was_interrupted = self._is_interrupted
        self._close()
        if was_interrupted or self._is_ended:
            return
        self.fetcher.failed(error, _monotonic_ms())
        if self._address is not None and isinstance(error, (BrokerUnavailableError, NetworkError)):
            self._on_broken(self.fetcher.leader_id)

    def _close(self) -> None:
        exchange, self._exchange = self._exchange, None
        self._is_interrupted = False
        if exchange is not None:
            exchange.close()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
