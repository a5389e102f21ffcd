"""What comparisons share, and what ends with them: a directory, a Spark session, a cluster, bare peers.

Rule: each is created on first use and ended when the run ends, however it ends; nothing stays on disk. Child processes
watch their standard input or belong to `LocalCluster`, which ends its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench import data
from bench.bare_flight import BareFlight
from bench.topics import BATCH_ROWS, fill, temporary_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL_ROWS = 40_000_000
"""Rows of 100 bytes: 4 GB of log."""
CHECKPOINTS_BY_FILE_SYSTEM = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
SESSION_TIMEOUT_MS = 4_000
"""``zookeeper.session.timeout.ms`` of clusters whose brokers fail; the default, 18 s, would only take longer."""
ROOT = Path(__file__).absolute().parent.parent
"""Where Spark's workers find the packages. Not resolved: in `bench.versions` it is a directory of links."""


class Workspace:
    """A context manager; ``scaled(n)`` makes sizes smaller in a quick run."""

    def __init__(self, *, quick: bool, rounds: int, before: Path | None = None) -> None:
        """``before``: a checkout of an earlier version, for comparisons with it."""
        self.quick = quick
        self.rounds = rounds
        self.before = before
        self._stack = ExitStack()
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="pylog-bench-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self._stack.callback(self._stop_spark)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def scaled(self, full: int) -> int:
        """``full``, or a tenth of it in a quick run."""
        return full // 10 if self.quick else full

    def hold(self, resource: Any) -> Any:
        """Enters a context manager that ends with the run."""
        return self._stack.enter_context(resource)

    def warm_logs(self) -> None:
        """Reads all logs, so that they are in the page cache: a machine may evict what was not read for a while, and
        the speed of its disks is not the question here.
        """
        for folder, _, names in os.walk(self.directory):
            for path in (Path(folder, name) for name in names if name.endswith(".log")):
                with suppress(FileNotFoundError), path.open("rb") as file:  # a topic may be deleted meanwhile
                    while file.read(1 << 20):
                        pass

    def warm_memory(self, megabytes: int = 700) -> None:
        """Touches and frees that much memory before a measurement that fills the page cache: a virtual machine
        returns memory that it has not used lately to its host, and getting it back costs several times as much as
        writing to it. A writer that empties a file and fills it again finds its pages warm, one that begins a new
        file does not.
        """
        touched = bytearray(b"\1") * (megabytes << 20)
        del touched

    @cached_property
    def flight(self) -> BareFlight:
        return self.hold(BareFlight(self.directory))

    @cached_property
    def cluster(self) -> Any:
        """One broker, one ZooKeeper, shared by all comparisons that need no cluster of their own."""
        return self.new_cluster("cluster")

    def new_cluster(self, name: str, *, brokers: int = 1, settings: Mapping[str, str] | None = None) -> Any:
        """A cluster that ends with the run."""
        return self.hold(self.cluster_of(name, brokers=brokers, settings=settings))

    def cluster_of(self, name: str, *, brokers: int = 1, settings: Mapping[str, str] | None = None) -> Any:
        """A cluster that the caller opens and closes, as a context manager."""
        from pyspark_log.testing import LocalCluster

        return LocalCluster(brokers=brokers, zookeepers=1, directory=self.directory / name, settings=settings)

    @cached_property
    def three_brokers(self) -> tuple[Any, Any]:
        """Three brokers that count as dead after `SESSION_TIMEOUT_MS` of silence, and an `Admin` of theirs."""
        from pyspark_log import Admin

        settings = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
        cluster = self.new_cluster("three-brokers", brokers=3, settings=settings)
        return cluster, self.hold(Admin(cluster.bootstrap_servers))

    @cached_property
    def full_cluster(self) -> tuple[Any, str, int]:
        """A cluster of its own with 4 GB in one topic of two partitions: the cluster, the topic, its rows."""
        from pyspark_log import Admin

        cluster = self.new_cluster("full")
        rows = self.scaled(FULL_ROWS)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("full", partitions=2)
        fill(cluster, "full", data.values_batch(BATCH_ROWS), rows=rows, partitions=2)
        return cluster, "full", rows

    @cached_property
    def admin(self) -> Any:
        from pyspark_log import Admin

        return self.hold(Admin(self.cluster.bootstrap_servers))

    @contextmanager
    def topic(
        self,
        *,
        partitions: int = 2,
        schema: Any = None,
        prefix: str = "bench",
        config: Mapping[str, str] | None = None,
    ) -> Iterator[str]:
        """A topic in the shared cluster, deleted afterwards so that disk use stays bounded."""
        how = {"partitions": partitions, "schema": schema, "config": config}
        with temporary_topic(self.admin, prefix=prefix, **how) as name:
            yield name

    @property
    def spark(self) -> SparkSession:
        """The session of `restart_spark`, begun with its defaults on first use."""
        return self._session or self.restart_spark()

    def restart_spark(self, settings: Mapping[str, str] | None = None) -> SparkSession:
        """Ends the session and begins another as the guide Spark recommends it, ``local[2]``, with the bare source and
        sink registered. ``settings``: over the recommended ones.

        Jars and the driver's memory are those of the first session: Spark's JVM outlives sessions.
        """
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)

        from pyspark.sql import SparkSession

        from bench.bare_spark import BareSource, DroppingSink

        self._stop_spark()
        jars = self.spark_jars()
        builder = SparkSession.builder.master("local[2]").appName("pylog-bench")
        configured = {
            "spark.driver.memory": "3g",
            **({"spark.driver.extraClassPath": os.pathsep.join(map(str, jars))} if jars else {}),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(self.directory / "spark"),
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            **(settings or {}),
        }
        for name, value in configured.items():
            builder = builder.config(name, value)
        session = self._session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        session.dataSource.register(BareSource)
        session.dataSource.register(DroppingSink)
        return session

    def spark_jars(self) -> list[Path]:
        """Jars that Spark needs beside its own."""
        return []

    def _stop_spark(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None
