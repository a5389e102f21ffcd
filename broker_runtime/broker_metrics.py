"""A broker's counts and its HTTP listener; without ``http.listener`` there is neither."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics

from broker_runtime.contract.events import event
from broker_runtime.contract.settings import Address
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.metrics.counts import Counts
from broker_runtime.metrics.http_listener import HttpListener
from broker_runtime.metrics.state import BrokerState

_logger = logging.getLogger(__name__)


class BrokerMetrics:
    """Of one broker, from before it joins its cluster until after it has left."""

    def __init__(self, at: Address | None, *, not_ready: Callable[[], str | None]) -> None:
        """``at``: ``http.listener``. ``not_ready``: see `HttpListener`. Listens at once: a broker that is long in
        starting says so. Raises `SetupError` if the address cannot be used."""
        self.meters: Meters = NO_METERS
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
    def address(self) -> Address | None:
        """Where it listens; None: nowhere."""
        return None if self._listener is None else self._listener.address

    def show(self, **parts: Any) -> None:
        """From now on the state of these parts is among the metrics. ``parts``: as of `BrokerState`."""
        if self._listener is not None:
            self._registry.register(BrokerState(counts=self._counts, **parts))

    def stop(self) -> None:
        """Listens no longer. Idempotent."""
        if self._listener is not None:
            self._listener.stop()
