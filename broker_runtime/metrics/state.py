"""How a broker is, looked at when somebody asks.

Rule: never waits, neither for a partition that is in use, nor for a disk that stands still, nor for ZooKeeper: whoever
watches a broker learns that it hangs from what it says, not from its silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker_runtime.log import LogDirectory
from broker_runtime.log.watched_files import WatchedFiles
from broker_runtime.metrics.counts import PREFIX, Counts
from broker_runtime.replication import Partition, PartitionRegistry
from broker_runtime.services.metadata import software_version
from broker_runtime.zookeeper.cluster_state import ClusterState

_STALLED_S: Final = 5.0


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
    ) -> None:
        """``cluster``: as last read. ``stream_kinds``: of the streams that are open. ``is_connected``: to ZooKeeper."""
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._partitions = partitions
        self._cluster = cluster
        self._directories = tuple(directories)
        self._stream_kinds = stream_kinds
        self._is_connected = is_connected
        self._counts = counts
        counts.know_topics(partitions.topic_names)

    def describe(self) -> Iterable[Metric]:
        return ()  # what there is shows when it is collected

    def collect(self) -> Iterator[Metric]:
        self._counts.forget_topics()
        yield _gauge(
            "broker_info",
            "Always 1: which broker this is.",
            {(str(self._broker_id), self._cluster_id, software_version()): 1},
            labels=("broker", "cluster", "version"),
        )
        yield from _of_partitions(self._partitions.hosted())
        yield from self._of_cluster(self._cluster())
        yield from self._of_disks()
        kinds = Counter(self._stream_kinds())
        yield _gauge("streams", "Streams that are open.", {(kind,): n for kind, n in kinds.items()}, labels=("kind",))
        yield _gauge("zookeeper_connected", "Whether ZooKeeper answers.", {(): self._is_connected()})

    def _of_cluster(self, cluster: ClusterState) -> Iterator[Metric]:
        is_controller = cluster.controller is not None and cluster.controller.broker_id == self._broker_id
        yield _gauge("controller", "Whether this broker is the controller.", {(): is_controller})
        yield _gauge("brokers", "Brokers that are registered.", {(): len(cluster.brokers)})
        if is_controller:  # one broker says it for all
            states = [each for topic in cluster.topics.values() for each in topic.partitions]
            offline = sum(each is None or each.state.leader not in cluster.brokers for each in states)
            yield _gauge("topics", "Topics of the cluster; said by the controller.", {(): len(cluster.topics)})
            yield _gauge("offline_partitions", "Partitions without a leader; said by the controller.", {(): offline})

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
        labels = ("directory",)
        yield _gauge("directory_stalled", "Whether the disk has not answered for 5 s.", stalled, labels=labels)
        yield _gauge("directory_usable_bytes", "Bytes that are free on its disk.", usable, labels=labels)
        yield _gauge("directory_failed_partitions", "Logs that have failed.", failed, labels=labels)


def _of_partitions(hosted: Sequence[Partition]) -> Iterator[Metric]:
    led = lagging = few = fewest = held = offline = 0
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
        held += partition.log.has_open_transactions
    yield _gauge("partitions", "Replicas on this broker.", {(): len(hosted)})
    yield _gauge("offline_replicas", "Replicas on this broker whose log has failed or is damaged.", {(): offline})
    yield _gauge("leader_partitions", "Partitions that this broker leads.", {(): led})
    yield _gauge("under_replicated_partitions", "Of these, those with replicas that are not in sync.", {(): lagging})
    yield _gauge("under_min_isr_partitions", "Of these, those that take no records with acks=all.", {(): few})
    yield _gauge("at_min_isr_partitions", "Of these, those that may lose no further replica.", {(): fewest})
    yield _gauge("open_transaction_partitions", "Of these, those with a transaction that is open.", {(): held})


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *, labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for at, value in values.items():
        family.add_metric(at, float(value))
    return family
