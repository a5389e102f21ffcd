"""One Spark session for all Spark tests, one cluster for those of a module, and a topic of its own for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_log import Admin, Producer
from pyspark_log.testing import LocalCluster
from tests.spark_python import write_python

FRUGAL_JAVA = os.environ["SPARK_SUBMIT_OPTS"]
"""For executors, what drivers have from the environment."""

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""The one that Spark takes where a file system lacks Hadoop's newer interface. The usual one starts `readlink` for each
look at a file, which is a sixth of the processor time of these tests; drivers that other tests start have the usual
one."""


@pytest.fixture(scope="session", autouse=True)
def workers_python(forked_python: Path) -> None:
    """The Python that the driver's JVM starts to look `pylog` up, and for its workers: this one."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(forked_python)


@pytest.fixture(scope="module")
def real_workers(workers_python: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Drivers that a test starts have Spark start its Python processes: for tests that look at these, or that kill or
    stop them as one group with the driver."""
    script = str(write_python(tmp_path_factory.mktemp("python") / "python3"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", script)
        patch.setenv("PYSPARK_DRIVER_PYTHON", script)
        yield


@pytest.fixture(scope="session")
def spark(forked_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Its Python processes are forks, also where the tests that come first are of ``real_workers``."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("pylog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.session.timeZone", "America/New_York")  # so that a mixed-up time zone is noticed
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(forked_python))
        patch.setenv("PYSPARK_DRIVER_PYTHON", str(forked_python))
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def admin(pylog_cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(pylog_cluster.bootstrap_servers) as client:
        yield client


@pytest.fixture
def producer(pylog_cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(pylog_cluster.bootstrap_servers, linger_ms=0) as client:
        yield client


@pytest.fixture
def new_topic(admin: Admin) -> Iterator[Callable[..., str]]:
    """Creates topics with names of their own, and deletes them after the test."""
    made: list[str] = []

    def make(prefix: str = "t", **given: object) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        admin.create_topic(name, **given)
        made.append(name)
        return name

    yield make
    for name in made:
        admin.delete_topic(name, missing_ok=True)


@pytest.fixture
def options(pylog_cluster: LocalCluster) -> dict[str, str]:
    """The options that every source and sink needs."""
    return {"pylog.bootstrap.servers": pylog_cluster.bootstrap_servers}


@pytest.fixture
def send(producer: Producer) -> Callable[..., None]:
    """Sends values (or a table) to a topic and waits until they are acknowledged."""

    def send_values(topic: str, values: object, *, partition: int | None = None) -> None:
        if not isinstance(values, pa.Table):
            values = pa.table({"value": pa.array([str(value).encode() for value in values], pa.binary())})
        producer.send_batch(topic, values, partition=partition).result(30)

    return send_values


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
