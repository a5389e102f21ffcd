"""What a broker says of its disks, also of those that stand still."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from broker_runtime.contract.frame import TransactionBegin, encode_frame, number_frame
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.log.files import RealFiles
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.metrics.counts import Counts
from broker_runtime.metrics.log_sizes import LogSizes
from broker_runtime.metrics.state import BrokerState
from broker_runtime.replication import PartitionRegistry
from broker_runtime.zookeeper.cluster_state import ClusterState
from tests.unit.replication.partitions import Hosted


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


def test_oldest_transaction_is_that_of_all_partitions() -> None:
    """One that writes to many partitions is one; 0 without any. Nothing is locked for it."""
    hosted = Hosted(2)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        BrokerState(
            broker_id=1, cluster_id="c", partitions=hosted.registry, cluster=ClusterState, directories=[],
            stream_kinds=list, is_connected=lambda: True, counts=Counts(registry),
        )
    )  # fmt: skip

    def open_now() -> tuple[float | None, ...]:
        names = ("open_transactions", "open_transaction_partitions", "oldest_transaction_seconds")
        return tuple(registry.get_sample_value(f"pylog_{name}") for name in names)

    assert open_now() == (0, 0, 0)
    now_ms = time.time_ns() // 1_000_000
    for name, number, age_s in (("a", 0, 5), ("a", 1, 90), ("b", 1, 10)):
        begin = TransactionBegin(transactional_id=name, epoch=0, batch_id=1, run_id="r", attempt=0)
        batch = pa.record_batch({"value": pa.array([b"x"], pa.binary())})
        sent = encode_frame(batch, TopicSchema.untyped(), timestamps=now_ms)
        number_frame(sent, producer_id=ord(name), producer_epoch=0, base_sequence=0, is_transactional=True)
        began_ms = now_ms - age_s * 1_000
        hosted.partitions[number].append([memoryview(sent)], acks=-1, leader_epoch=-1, now_ms=began_ms, begin=begin)
    with hosted.partitions[0]._lock, hosted.partitions[1]._lock:
        transactions, partitions, oldest_s = open_now()
    assert (transactions, partitions) == (2, 2)
    assert oldest_s == pytest.approx(90, abs=5)


def test_topics_have_the_sizes_of_their_logs() -> None:
    """Of all partitions and directories; also of logs that nobody has used since the start."""
    hosted = Hosted(2)
    sizes = LogSizes()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(sizes)  # type: ignore[arg-type]
    sizes.look(hosted.directory)
    assert registry.get_sample_value("pylog_topic_size_bytes", {"topic": "t"}) == 0
    for number in (0, 1):
        hosted.append(bytes(1_000), partition=number)
    assert registry.get_sample_value("pylog_topic_size_bytes", {"topic": "t"}) == 0, "as it was looked at"
    sizes.look(hosted.directory)
    written = sum(each.log.size_bytes for each in hosted.partitions)
    assert written > 2_000
    assert registry.get_sample_value("pylog_topic_size_bytes", {"topic": "t"}) == written
