"""What a process of a broker has in memory that coordinates groups and transactions: the real objects, as a broker
connects them, on events instead of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_runtime.broker_groups import BrokerGroups
from broker_runtime.broker_transactions import BrokerTransactions
from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.settings import Address
from broker_runtime.contract.transactions import FinishTransactionsRequest, FinishTransactionsResponse
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.transactions.ending import LOOK_S
from tests.callers import CLIENT
from tests.clocks import ReadClock
from tests.simulation.partitions.broker.life import Life
from tests.simulation.partitions.broker.node import Node
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.simulator.zookeeper import SimClient
from tests.simulation.transactions.calls import NoAnswerError, ask


class TransactionalLife(Life):
    """See the module."""

    def __init__(self, node: Node, client: SimClient) -> None:
        super().__init__(node, client)
        self._node = node
        clock = ReadClock(lambda: node.scheduler.now_us / SECOND)

        def steady_ms() -> int:
            return node.scheduler.now_us // MS

        self.producer_ids = ProducerIdService(client, clock=clock)
        self.groups = BrokerGroups(
            node.settings,
            client=client,
            member=self.member,
            refuses=node.probe,
            steady_ms=steady_ms,
            wall_ms=node.now_ms,
            believed_ms=node.now_ms,
        )
        self.transactions = BrokerTransactions(
            node.settings,
            client=client,
            member=self.member,
            registry=self.registry,
            peers=_Peers(node),
            producer_ids=self.producer_ids,
            groups=self.groups.service,
            steady_ms=steady_ms,
            wall_ms=node.now_ms,
            believed_ms=node.now_ms,
        )
        self.serving.produce_service = ProduceService(
            self.registry,
            require_may_begin=self.transactions.service.require_may_begin,
            forget_if_anew=self.transactions.service.forget_if_anew,
            now_ms=node.now_ms,
            clock=clock,
        )

    def serve(self, node: Node) -> None:
        self._loop("groups", lambda: int(self.groups.step() * SECOND))
        self._loop("finishing", self._after(self.transactions.step, 0))
        self._loop("ending", self._after(self.transactions._ending.step, int(LOOK_S * SECOND)))
        self._loop("producer ids", self._after(self.producer_ids.keep_ready, SECOND))

    def _loop(self, thread: str, step: Callable[[], int]) -> None:
        """``step`` returns the pause after it."""

        def run() -> None:
            self._node.scheduler.after(step() + MS, self.actor, run, thread=thread)

        self._node.scheduler.after(self._node.scheduler.between(0, 50 * MS), self.actor, run, thread=thread)

    @staticmethod
    def _after(step: Callable[[], None], pause_us: int) -> Callable[[], int]:
        def run() -> int:
            step()
            return pause_us

        return run


class _Peers:
    """Other brokers, over the simulated network."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def call(
        self,
        address: Address,
        action: str,
        request: FinishTransactionsRequest,
        response: type[FinishTransactionsResponse],
        *,
        timeout_s: float,
    ) -> Any:
        """As `following.peers.Peers.call`, for the one action that there is between brokers here."""
        assert action == "finish_transactions"
        node = self._node

        def handle(life: Life, reply: Callable[[object], None]) -> None:
            assert isinstance(life, TransactionalLife)
            reply(life.transactions.service.finish_transactions(CLIENT, request))

        try:
            return ask(node.peers, node.scheduler, node.actor, address.port, handle, timeout_us=int(timeout_s * SECOND))
        except NoAnswerError as error:
            raise NetworkError(str(error)) from None
