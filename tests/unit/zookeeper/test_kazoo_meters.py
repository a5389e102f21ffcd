"""What a broker counts of ZooKeeper: how long it takes to answer, and what becomes of the connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss, NoNodeError
from prometheus_client import CollectorRegistry

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.metrics.counts import Counts
from broker_runtime.zookeeper import session
from broker_runtime.zookeeper.client import KazooZooKeeper


class Kazoo:
    """A kazoo that answers at once with ``answer``."""

    client_id = (7, b"")
    answer: Any = None

    def add_listener(self, listener: Any) -> None:
        self.tell = listener

    def get_children_async(self, path: str, **_: object) -> Any:
        return SimpleNamespace(get=self._get)

    def _get(self, timeout: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def stop(self) -> None:
        self.tell(KazooState.LOST)

    def close(self) -> None:
        pass


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def kazoo() -> Kazoo:
    return Kazoo()


@pytest.fixture
def client(kazoo: Kazoo, registry: CollectorRegistry) -> KazooZooKeeper:
    client = KazooZooKeeper(kazoo, "zk:2181", 1.0, Counts(registry))  # type: ignore[arg-type]
    kazoo.tell(KazooState.CONNECTED)
    return client


def counted(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    names = ("zookeeper_disconnects_total", "zookeeper_session_expirations_total")
    return registry.get_sample_value(f"pylog_{names[0]}"), registry.get_sample_value(f"pylog_{names[1]}")


def test_requests_are_timed_whatever_is_answered(
    client: KazooZooKeeper, kazoo: Kazoo, registry: CollectorRegistry
) -> None:
    """A ZooKeeper that does not answer is what the figure is for."""
    kazoo.answer = ["b", "a"]
    assert client.children("/") == ["a", "b"]
    kazoo.answer = NoNodeError()
    with pytest.raises(session.NoNodeError):
        client.children("/")
    kazoo.answer = ConnectionLoss()
    with pytest.raises(ZooKeeperUnavailableError):
        client.children("/")
    assert registry.get_sample_value("pylog_zookeeper_request_seconds_count") == 3


def test_lost_connections_and_ended_sessions_are_counted_apart(
    client: KazooZooKeeper, kazoo: Kazoo, registry: CollectorRegistry
) -> None:
    """A connection that comes back costs nothing, a session all leaderships. The broker's own stop is neither."""
    assert counted(registry) == (0, 0)
    kazoo.tell(KazooState.SUSPENDED)
    kazoo.tell(KazooState.CONNECTED)
    assert counted(registry) == (1, 0)
    kazoo.tell(KazooState.SUSPENDED)
    kazoo.tell(KazooState.LOST)
    kazoo.tell(KazooState.CONNECTED)
    assert counted(registry) == (2, 1)
    client.close()
    assert counted(registry) == (2, 1)
