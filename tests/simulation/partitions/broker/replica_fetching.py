"""A simulated broker as the follower of others: the real `FollowerFetcher`s, and in place of their threads, events.

One exchange at a time per leader, as over one stream: a request that is not answered in time breaks the connection, and
what comes late comes to nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_runtime.contract.errors import BrokerUnavailableError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.streams import FetchHello
from broker_runtime.following.follower import FollowerFetcher
from broker_runtime.replication import Leadership, Partition
from tests.simulation.partitions.broker.serving import FETCH_BYTES, Fetched
from tests.simulation.simulator.scheduler import MS, SECOND, Scheduler

MAX_WAIT_MS = 500
_ANSWER_LIMIT_US = 3 * SECOND
_PARTITION_BYTES = 64 << 10
_IDLE_US = 1_000 * MS


@dataclass(slots=True, eq=False)
class _Exchange:
    """With one leader."""

    fetcher: FollowerFetcher
    is_out: bool = False  # a request waits for its answer
    is_due: bool = False  # the next turn is asked for
    session: str | None = None  # the connection; None: there is none
    broker_epoch: int = -1  # that the session is opened with
    is_open: bool = False  # the hello was sent


class ReplicaFetching:
    """Keeps `FollowerPlan` for one life of a broker. ``ask`` see `Node.ask_leader`: it
    carries a request to the leader; ``on_broken`` is called for a leader that cannot be reached."""

    def __init__(
        self,
        actor: str,
        broker_id: int,
        scheduler: Scheduler,
        *,
        broker_epoch: Callable[[], int],
        broker_secret: Callable[[], str],
        ask: Callable[..., None],
        on_broken: Callable[[int], None],
        on_diverging: Callable[[bool], None] = lambda is_by_epoch_alone: None,
    ) -> None:
        self._actor = actor
        self._broker_id = broker_id
        self._scheduler = scheduler
        self._broker_epoch = broker_epoch
        self._broker_secret = broker_secret
        self._ask = ask
        self._on_broken = on_broken
        self._on_diverging = on_diverging
        self._exchanges: dict[int, _Exchange] = {}
        self._sessions = 0

    # --- FollowerPlan ---------------------------------------------------------------------------------------------

    def follow(self, partition: Partition, leadership: Leadership) -> None:
        leader = leadership.leader
        assert leader is not None
        assert leader != self._broker_id
        at = TopicPartition(partition.topic, partition.partition)
        for leader_id, exchange in self._exchanges.items():
            if leader_id != leader:
                exchange.fetcher.unfollow(at)
        if leader not in self._exchanges:
            self._exchanges[leader] = _Exchange(
                FollowerFetcher(
                    self._broker_id,
                    leader,
                    max_bytes=FETCH_BYTES,
                    partition_max_bytes=_PARTITION_BYTES,
                    max_wait_ms=MAX_WAIT_MS,
                )
            )
        self._exchanges[leader].fetcher.follow(partition, leadership.leader_epoch)
        self._soon(leader, self._scheduler.between(0, 5 * MS))

    def unfollow(self, at: TopicPartition) -> None:
        for exchange in self._exchanges.values():
            exchange.fetcher.unfollow(at)

    # --- the loop of one leader -----------------------------------------------------------------------------------

    def _soon(self, leader: int, delay_us: int) -> None:
        exchange = self._exchanges[leader]
        if exchange.is_due or exchange.is_out:
            return
        exchange.is_due = True

        def turn() -> None:
            exchange.is_due = False
            self._turn(leader, exchange)

        self._scheduler.after(delay_us, self._actor, turn, thread=f"fetch {leader}")

    def _turn(self, leader: int, exchange: _Exchange) -> None:
        fetcher = exchange.fetcher
        if exchange.is_out or fetcher.is_idle:
            return
        broker_epoch, now_ms = self._broker_epoch(), self._now_ms()
        if exchange.session is None or exchange.broker_epoch != broker_epoch:
            self._sessions += 1
            exchange.session, exchange.broker_epoch, exchange.is_open = str(self._sessions), broker_epoch, False
            fetcher.begin_session()
        request = fetcher.next_request(broker_epoch, now_ms)
        if request is None:
            self._soon(leader, max(fetcher.pause_ms(now_ms) * MS, 20 * MS))
            return
        exchange.is_out = True
        hello = None
        if not exchange.is_open:
            secret = self._broker_secret()
            hello = FetchHello(replica_id=self._broker_id, broker_epoch=broker_epoch, secret=secret)
        exchange.is_open = True

        def answered(answer: object) -> None:
            assert isinstance(answer, Fetched)
            exchange.is_out = False
            for each in answer.response.partitions:
                followed = fetcher._followed.get(TopicPartition(each.topic, each.partition))
                if followed is not None and each.diverging_epoch >= 0 and followed.replica.log.is_loaded:
                    self._on_diverging(each.diverging_end >= followed.replica.log.log_end_offset)
            fetcher.handle(answer.response, answer.cells, self._now_ms())
            self._soon(leader, self._scheduler.between(0, MS))

        def failed(reason: str) -> None:
            exchange.is_out, exchange.session = False, None
            fetcher.failed(BrokerUnavailableError(f"broker {leader}: {reason}"), self._now_ms())
            self._on_broken(leader)
            self._soon(leader, max(fetcher.pause_ms(self._now_ms()) * MS, 20 * MS))

        session = f"{self._actor}/{self._scheduler.life_of(self._actor)}/{exchange.session}"
        self._ask(leader, request, session, hello, answered, failed, _ANSWER_LIMIT_US)

    def _now_ms(self) -> int:
        return self._scheduler.now_us // MS
