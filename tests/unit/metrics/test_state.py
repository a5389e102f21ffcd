"""What a broker says of its disks, also of those that stand still."""

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

    def __init__(self, name: str, busy_s: float, *, known_bytes: int | None = 7) -> None:
        self.path = Path(name)
        self.files = WatchedFiles(RealFiles(), clock=SimpleNamespace(now_s=lambda: busy_s))  # type: ignore[arg-type]
        self.files._began_s[1] = 0.0
        self.failed = frozenset([("t", 0)])
        self.usable_bytes_known = known_bytes

    @property
    def usable_bytes(self) -> int:
        raise AssertionError("the disk is asked")


@pytest.fixture
def directories() -> list[Directory]:
    return [Directory("/sound", 0.1), Directory("/stands still", 5.0), Directory("/new", 0.0, known_bytes=None)]


def test_disks_are_not_asked(directories: list[Directory]) -> None:
    """One that stands still would hold the answer up: what the broker itself saw last is said."""
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
    assert found == {"/sound": (0, 7, 1), "/stands still": (1, 7, 1), "/new": (0, None, 1)}
    assert (value("streams", kind="read"), value("streams", kind="produce")) == (2, 1)
    assert (value("zookeeper_connected"), value("controller"), value("brokers")) == (0, 0, 0)
    assert value("offline_partitions") is None, "the controller says it"
