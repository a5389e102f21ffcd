"""The objects with which a broker begins, decides and ends transactions, created and connected here, and the steps of
its two loops.

Rule: as in `broker_services`, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import BrokerUnavailableError
from broker_runtime.contract.settings import Address, BrokerSettings
from broker_runtime.contract.transactions import FinishTransactionsRequest, FinishTransactionsResponse
from broker_runtime.contract.waiting import Worker
from broker_runtime.following.peers import Peers
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.caller import Caller
from broker_runtime.services.groups import GroupService
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.services.transactions import TransactionService
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.transactions.ending import LOOK_S, TransactionEnding
from broker_runtime.transactions.finishing import TransactionFinishing
from broker_runtime.zookeeper.session import ZooKeeperClient

_ASK_LIMIT_S: Final = 15.0


class BrokerTransactions:
    """The transactions of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        client: ZooKeeperClient,
        member: ClusterMember,
        registry: PartitionRegistry,
        peers: Peers,
        producer_ids: ProducerIdService,
        groups: GroupService,
        steady_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        believed_ms: Callable[[], int],
    ) -> None:
        """``steady_ms``: a clock that never jumps. ``believed_ms``: the time of `BelievedClock`."""
        coordinator = TransactionCoordinator(client, steady_ms=steady_ms, wall_ms=wall_ms)
        self._ending = TransactionEnding(registry, coordinator, broker_id=settings.broker_id, wall_ms=wall_ms)
        own = Caller(client_id=f"broker-{settings.broker_id}", address="")

        def ask_leader(broker_id: int, request: FinishTransactionsRequest) -> FinishTransactionsResponse:
            if broker_id == settings.broker_id:
                return self.service.finish_transactions(own, request)
            broker = member.state.brokers.get(broker_id)
            if broker is None:
                raise BrokerUnavailableError(f"broker {broker_id} is not registered")
            return peers.call(
                Address(broker.host, broker.port),
                "finish_transactions",
                request,
                FinishTransactionsResponse,
                timeout_s=_ASK_LIMIT_S,
            )

        self._finishing = TransactionFinishing(
            coordinator,
            lambda: member.state,
            ask_leader,
            broker_id=settings.broker_id,
            steady_ms=steady_ms,
            believed_ms=believed_ms,
        )
        self.service = TransactionService(
            registry,
            coordinator=coordinator,
            ending=self._ending,
            finishing=self._finishing,
            producer_ids=producer_ids,
            groups=groups,
            longest_ms=settings.transaction_max_timeout_ms,
            wall_ms=wall_ms,
        )
        self.wake = self._finishing.wake

    def step(self) -> None:
        """Finishes decisions. Blocks until there is something to do, or until `wake`."""
        self._finishing.wait()
        self._finishing.step()

    def step_ending(self, worker: Worker) -> None:
        """Rests on the thread of ``worker`` for a moment, then ends what is over in this broker's partitions."""
        if not worker.rest(LOOK_S):
            self._ending.step()
