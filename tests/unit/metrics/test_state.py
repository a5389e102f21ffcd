"""What a broker says of its disks, also of those that fail or stand still."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from broker_runtime.log.files import RealFiles
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.metrics.counts import Counts
from broker_runtime.metrics.state import BrokerState
from broker_runtime.replication import PartitionRegistry
from broker_runtime.zookeeper.cluster_state import ClusterState


class Directory:
    """A data directory, whose disk has been busy with one call for so long."""

    def __init__(self, name: str, busy_s: float, *, usable_bytes: int | None = 7) -> None:
        self.path = Path(name)
        self.files = WatchedFiles(RealFiles(), clock=SimpleNamespace(now_s=lambda: busy_s))  # type: ignore[arg-type]
        self.files._began_s[1] = 0.0
        self.failed = frozenset([("t", 0)])
        self._usable_bytes = usable_bytes
        self.asked = 0

    @property
    def usable_bytes(self) -> int:
        self.asked += 1
        if self._usable_bytes is None:
            raise OSError(5, "Input/output error")
        return self._usable_bytes


@pytest.fixture
def directories() -> list[Directory]:
    return [Directory("/sound", 0.1), Directory("/stands still", 5.0), Directory("/fails", 0.0, usable_bytes=None)]


def test_disks_that_stand_still_are_not_asked(directories: list[Directory]) -> None:
    """Who watches a broker must get an answer then, above all."""
    registry = CollectorRegistry(auto_describe=False)
    given: Any = directories
    state = BrokerState(
        broker_id=1, cluster_id="c", partitions=PartitionRegistry(), cluster=ClusterState, directories=given,
        stream_kinds=lambda: ["read", "produce", "read"], is_connected=lambda: False, counts=Counts(registry),
    )  # fmt: skip
    registry.register(state)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pylog_{name}", labels)

    found = {
        str(each.path): (
            value("directory_stalled", directory=str(each.path)),
            value("directory_usable_bytes", directory=str(each.path)),
            value("directory_failed_partitions", directory=str(each.path)),
        )
        for each in directories
    }
    assert found == {"/sound": (0, 7, 1), "/stands still": (1, None, 1), "/fails": (1, None, 1)}
    assert directories[1].asked == 0
    assert (value("streams", kind="read"), value("streams", kind="produce")) == (2, 1)
    assert (value("zookeeper_connected"), value("controller"), value("brokers")) == (0, 0, 0)
    assert value("offline_partitions") is None, "the controller says it"
