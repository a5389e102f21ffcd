"""A broker's counts and its HTTP listener; without ``http.listener`` there is neither."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics

from broker_runtime.contract.errors import BrokerUnavailableError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import DescribeLagRequest, DescribeLagResponse
from broker_runtime.contract.settings import Address, BrokerSettings
from broker_runtime.following.peers import Peers
from broker_runtime.groups.positions import Positions
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.metrics.counts import Counts
from broker_runtime.metrics.group_lag import GroupLag
from broker_runtime.metrics.http_listener import HttpListener
from broker_runtime.metrics.log_sizes import LogSizes
from broker_runtime.metrics.state import BrokerState, Collectable
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.caller import Caller
from broker_runtime.services.lag import LagService

_logger = logging.getLogger(__name__)

_LAG_LIMIT_S: Final = 5.0


class BrokerMetrics:
    """Of one broker, from before it joins its cluster until after it has left."""

    def __init__(self, at: Address | None, *, not_ready: Callable[[], str | None]) -> None:
        """``at``: ``http.listener``. ``not_ready``: see `HttpListener`. Listens at once: a broker that is long in
        starting says so. Raises `SetupError` if the address cannot be used."""
        self.meters: Meters = NO_METERS
        self.sizes = LogSizes()
        self._listener: HttpListener | None = None
        if at is None:
            return
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each counter, which nobody reads
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self.meters = self._counts = Counts(self._registry)
        self._listener = HttpListener(at, self._registry, not_ready=not_ready)
        self._listener.start()
        event(_logger, "serve http", address=self._listener.address)

    @property
    def is_on(self) -> bool:
        """Whether anybody may read the metrics."""
        return self._listener is not None

    @property
    def address(self) -> Address | None:
        """Where it listens; None: nowhere."""
        return None if self._listener is None else self._listener.address

    def show(self, *, lag: GroupLag | None = None, **parts: Any) -> None:
        """From now on the state of these parts is among the metrics. ``parts``: as of `BrokerState`."""
        if self._listener is not None:
            looking: list[Collectable] = [self.sizes] if lag is None else [self.sizes, lag]
            self._registry.register(BrokerState(counts=self._counts, parts=looking, **parts))

    def group_lag(
        self,
        settings: BrokerSettings,
        *,
        positions: Callable[[], Positions],
        member: ClusterMember,
        registry: PartitionRegistry,
        peers: Peers,
    ) -> GroupLag | None:
        """Looks at the lag of groups in its `GroupLag.step`, which somebody has to call; None: nobody wants to know."""
        most = settings.metrics_max_group_partitions
        if self._listener is None or not most:
            return None
        own = LagService(registry)

        def ask(broker_id: int, request: DescribeLagRequest) -> DescribeLagResponse:
            if broker_id == settings.broker_id:  # which may not reach the address it advertises
                return own.describe_lag(Caller(client_id=f"broker-{broker_id}", address=""), request)
            broker = member.state.brokers.get(broker_id)
            if broker is None:
                raise BrokerUnavailableError(f"broker {broker_id} is not registered")
            address = Address(broker.host, broker.port)
            return peers.call(address, "describe_lag", request, DescribeLagResponse, timeout_s=_LAG_LIMIT_S)

        return GroupLag(most=most, positions=positions, cluster=lambda: member.state, ask=ask)

    def stop(self) -> None:
        """Listens no longer. Idempotent."""
        if self._listener is not None:
            self._listener.stop()
