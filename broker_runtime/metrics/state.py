"""How a broker is, looked at when somebody asks.

Rule: never waits, neither for a partition that is in use, nor for a disk that stands still, nor for ZooKeeper: whoever
watches a broker learns that it hangs from what it says, not from its silence.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from broker_runtime.log import LogDirectory
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.metrics.counts import Counts
from broker_runtime.metrics.table import gauge
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.metadata import software_version
from broker_runtime.zookeeper.cluster_state import ClusterState

_STALLED_S: Final = 5.0


class Collectable(Protocol):
    """What has metrics of its own."""

    def collect(self) -> Iterable[Metric]:
        """The metrics, without a wait."""


class BrokerState(Collector):
    """The gauges of one broker. Thread-safe."""

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        partitions: PartitionRegistry,
        cluster: Callable[[], ClusterState],
        directories: Sequence[LogDirectory],
        stream_kinds: Callable[[], Iterable[str]],
        is_connected: Callable[[], bool],
        counts: Counts,
        parts: Sequence[Collectable] = (),
    ) -> None:
        """``cluster``: as last read. ``stream_kinds``: of the streams that are open. ``is_connected``: to ZooKeeper.
        ``parts``: what looks by itself, and gives what it saw last."""
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._partitions = partitions
        self._cluster = cluster
        self._directories = tuple(directories)
        self._stream_kinds = stream_kinds
        self._is_connected = is_connected
        self._counts = counts
        self._parts = tuple(parts)
        counts.know_topics(partitions.topic_names)

    def describe(self) -> Iterable[Metric]:
        return ()  # what there is shows when it is collected

    def collect(self) -> Iterator[Metric]:
        self._counts.forget_topics()
        yield gauge("broker_info", {(str(self._broker_id), self._cluster_id, software_version()): 1})
        yield from _of_partitions(self._partitions.hosted(), time.time_ns() // 1_000_000)
        yield from self._of_cluster(self._cluster())
        yield from self._of_disks()
        for part in self._parts:
            yield from part.collect()
        kinds = Counter(self._stream_kinds())
        yield gauge("streams", {(kind,): n for kind, n in kinds.items()})
        yield gauge("zookeeper_connected", {(): self._is_connected()})
        yield gauge("process_threads", {(): _thread_count()})
        yield gauge("arrow_bytes", {(): pa.total_allocated_bytes()})

    def _of_cluster(self, cluster: ClusterState) -> Iterator[Metric]:
        is_controller = cluster.controller is not None and cluster.controller.broker_id == self._broker_id
        yield gauge("controller", {(): is_controller})
        yield gauge("brokers", {(): len(cluster.brokers)})
        if is_controller:  # one broker says it for all
            states = [each for topic in cluster.topics.values() for each in topic.partitions]
            offline = sum(each is None or each.state.leader not in cluster.brokers for each in states)
            yield gauge("topics", {(): len(cluster.topics)})
            yield gauge("offline_partitions", {(): offline})

    def _of_disks(self) -> Iterator[Metric]:
        stalled: dict[tuple[str, ...], float] = {}
        usable: dict[tuple[str, ...], float] = {}
        failed: dict[tuple[str, ...], float] = {}
        for directory in self._directories:
            at = (str(directory.path),)
            files = directory.files
            stalled[at] = isinstance(files, WatchedFiles) and files.oldest_call_s >= _STALLED_S
            failed[at] = len(directory.failed)
            if directory.usable_bytes_known is not None:
                usable[at] = directory.usable_bytes_known  # the broker looks once a second
        yield gauge("directory_stalled", stalled)
        yield gauge("directory_usable_bytes", usable)
        yield gauge("directory_failed_partitions", failed)


def _thread_count() -> int:
    """Also those that Python has not made: gRPC's and Arrow's, where the system tells."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _of_partitions(hosted: Sequence[Partition], now_ms: int) -> Iterator[Metric]:
    led = lagging = few = fewest = held = offline = 0
    began_ms: dict[tuple[str, int, int], int] = {}  # of transactions, each of which may be in many partitions
    for partition in hosted:
        offline += partition.log.is_offline
        leadership = partition.leadership
        if not partition.is_leader or leadership is None:
            continue
        in_sync = len(leadership.in_sync)
        led += 1
        lagging += in_sync < len(leadership.replicas)
        few += in_sync < partition.min_in_sync_replicas
        fewest += in_sync == partition.min_in_sync_replicas
        opened = partition.log.glance_at_transactions()
        held += bool(opened)
        for each in opened:
            key = (each.begin.transactional_id, each.begin.epoch, each.begin.batch_id)
            began_ms[key] = min(each.began_ms, began_ms.get(key, each.began_ms))
    yield gauge("partitions", {(): len(hosted)})
    yield gauge("offline_replicas", {(): offline})
    yield gauge("leader_partitions", {(): led})
    yield gauge("under_replicated_partitions", {(): lagging})
    yield gauge("under_min_isr_partitions", {(): few})
    yield gauge("at_min_isr_partitions", {(): fewest})
    yield gauge("open_transactions", {(): len(began_ms)})
    yield gauge("open_transaction_partitions", {(): held})
    oldest_ms = now_ms - min(began_ms.values(), default=now_ms)
    yield gauge("oldest_transaction_seconds", {(): max(0, oldest_ms) / 1_000})
