"""What tests with several brokers look at: the replicas on disk, and records with numbers as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark_log import Admin, Producer, read
from pyspark_log.errors import PylogError
from pyspark_log.testing import LocalCluster
from tests.waiting import comes_true, wait_until

LIMIT_S = 60.0
_WHOLE_LIMIT_S = 20.0


class SharedCluster:
    """Three brokers that tests use one after the other, each without the others' topics. Each test leaves all
    brokers running; if a failing test does not, the next one gets a new cluster.
    """

    def __init__(self, new_directory: Callable[[], Path | None] = lambda: None) -> None:
        """``new_directory``: of each cluster, which then has a ZooKeeper of its own."""
        self._new_directory = new_directory
        self._running: LocalCluster | None = None
        self._settled: dict[int, int] = {}  # the brokers' epochs then

    @contextmanager
    def lend(self) -> Iterator[LocalCluster]:
        """The cluster, healthy."""
        if self._running is not None and not comes_true(self._is_whole, _WHOLE_LIMIT_S):
            self.close()
        if self._running is None:
            self._running = LocalCluster(brokers=3, directory=self._new_directory())
            self._running.open()
        self._settle()
        yield self._running
        with suppress(PylogError), Admin(self._running.bootstrap_servers) as admin:
            for name in admin.list_topics():
                admin.delete_topic(name)

    def close(self) -> None:
        """Ends the cluster. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _settle(self) -> None:
        """Returns when no broker counts as just starting any more. Until then its partitions begin with another leader,
        and change it half a second later, under a test that has chosen whom to kill."""
        assert self._running is not None
        with Admin(self._running.bootstrap_servers) as admin:
            epochs = {broker_id: each.epoch for broker_id, each in admin.describe_cluster().brokers.items()}
            if epochs == self._settled:
                return
            admin.create_topic("settling", partitions=3, replication_factor=3)
            wait_until(
                lambda: all(each.leader == each.replicas[0] for each in admin.describe_topic("settling").partitions),
                "each broker leads what it is to lead",
            )
            admin.delete_topic("settling")
            self._settled = epochs

    def _is_whole(self) -> bool:
        assert self._running is not None
        try:
            with Admin(self._running.bootstrap_servers, request_timeout_ms=5_000) as admin:
                return len(admin.describe_cluster().brokers) == 3 and admin.check_health().is_healthy
        except PylogError:
            return False


def kill_all(cluster: LocalCluster) -> None:
    """Kills all brokers at once: none of them sees another die."""
    for broker_id in cluster.broker_ids:
        cluster.pause(broker_id)
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)


def leader_and_in_sync(cluster: LocalCluster, topic: str) -> tuple[int | None, tuple[int, ...]]:
    """The leader of the topic's only partition, and its sorted in-sync replicas."""
    with Admin(cluster.bootstrap_servers) as admin:
        (partition,) = admin.describe_topic(topic).partitions
        return partition.leader, tuple(sorted(partition.isr))


def produce(cluster: LocalCluster, topic: str, numbers: Iterable[int], *, partition: int | None = None) -> None:
    """Sends the numbers with ``acks=all`` and returns when all are acknowledged."""
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=partition)


def numbers_in(cluster: LocalCluster, topic: str) -> list[int]:
    """The numbers of all records that can be read now, in order within each partition."""
    return [
        int(value) for value in read(topic, bootstrap_servers=cluster.bootstrap_servers).read_all()["value"].to_pylist()
    ]


def segments(cluster: LocalCluster, broker_id: int, topic: str) -> dict[str, bytes]:
    """The content of a broker's segment files of the topic by partition directory and file name, without logs that
    were set aside.
    """
    found: dict[str, bytes] = {}
    for directory in cluster.log_dirs(broker_id):
        for path in sorted(Path(directory).glob(f"{topic}-*[0-9]/*.log")):
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


def replicas_are_identical(cluster: LocalCluster, topic: str) -> None:
    """Waits until the topic's replicas on all brokers have the same bytes in the same files."""

    def differing() -> bool:
        first, *others = (segments(cluster, broker_id, topic) for broker_id in cluster.broker_ids)
        return not any(first.values()) or any(other != first for other in others)

    wait_until(lambda: not differing(), f"replicas of {topic} are identical")
