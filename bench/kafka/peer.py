"""Apache Kafka as a peer: brokers in ZooKeeper mode, each a process, with a ZooKeeper server of their own.

The ZooKeeper is the one that pylog's own clusters use. Everything ends with the ``with`` block, and with this process,
however that ends. Brokers run with the Java options of Kafka's own start script, and log at WARN: what Kafka logs
without a configuration costs it more than what is measured here.

Needs ``mvn`` and Java, and the package ``confluent-kafka``: ``pip install 'pyspark-log[bench]'``.
"""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from bench.kafka.jars import broker_class_path
from bench.kafka.settings import BROKER_SETTINGS, CONSUMER_SETTINGS, JAVA_OPTIONS, PRODUCER_SETTINGS
from broker_runtime.ports import choose_port
from broker_runtime.zookeeper.bundled import BundledZooKeeper
from broker_runtime.zookeeper.guarded_process import GuardedProcess
from broker_runtime.zookeeper.java import find_java

_LOGGING: Final = """\
log4j.rootLogger=WARN, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={log}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_START_LIMIT_S: Final = 90.0
_LOOK_S: Final = 0.02


class KafkaPeer:
    """A cluster of ``brokers`` brokers, numbered from 1; a context manager. Not thread-safe.

    ``settings``: of every broker, over `BROKER_SETTINGS`.
    """

    def __init__(self, directory: Path, *, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._settings = {**BROKER_SETTINGS, **(settings or {})}
        self._ports = {broker_id: choose_port("127.0.0.1") for broker_id in range(1, brokers + 1)}
        self._processes: dict[int, GuardedProcess] = {}
        self._stack = ExitStack()
        self._admin: Any = None

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def __enter__(self) -> Self:
        from confluent_kafka.admin import AdminClient

        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._directory.mkdir(parents=True)
            self._zookeeper = stack.enter_context(BundledZooKeeper(self._directory / "zookeeper"))
            stack.callback(self._stop_all)
            for broker_id in self._ports:
                self._launch(broker_id)
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            self._wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    # --- brokers ------------------------------------------------------------------------------------------------

    def pid(self, broker_id: int) -> int:
        return self._processes[broker_id].pid

    def kill(self, broker_id: int) -> None:
        """SIGKILL; returns when the process has ended."""
        self._processes[broker_id].signal(signal.SIGKILL)
        self._processes[broker_id].wait(60)

    def start(self, broker_id: int) -> None:
        """Starts a broker that ended; returns when every replica is in sync again, as far as an ``AdminClient`` sees.

        A broker that finds its own former registration in ZooKeeper refuses to start, so it must have expired.
        """
        self._launch(broker_id)
        self._wait_until_ready()

    def has_registration(self, broker_id: int) -> bool:
        """Whether ZooKeeper has the broker among the living."""
        from kazoo.client import KazooClient

        zookeeper = KazooClient(self._zookeeper.connect_string)
        zookeeper.start(10)
        try:
            return zookeeper.exists(f"/brokers/ids/{broker_id}") is not None
        finally:
            zookeeper.stop()
            zookeeper.close()

    def _launch(self, broker_id: int) -> None:
        directory = self._directory / f"broker-{broker_id}"
        directory.mkdir(exist_ok=True)
        properties, logging = directory / "server.properties", directory / "log4j.properties"
        listener = f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}"
        own = {
            "broker.id": str(broker_id),
            "listeners": listener,
            "advertised.listeners": listener,
            "zookeeper.connect": self._zookeeper.connect_string,
            "log.dirs": str(directory / "data"),
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in {**self._settings, **own}.items()))
        logging.write_text(_LOGGING.format(log=directory / "server.log"))
        self._processes[broker_id] = GuardedProcess(
            [
                find_java(),
                *JAVA_OPTIONS,
                f"-Dlog4j.configuration=file:{logging}",
                "-cp",
                broker_class_path(),
                "kafka.Kafka",
                properties,
            ],
            output=directory / "broker.out",
        )

    def _stop_all(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        for process in self._processes.values():
            process.wait(60)

    def _wait_until_ready(self) -> None:
        """Until all brokers are there and all replicas in sync."""
        deadline_s = time.monotonic() + _START_LIMIT_S
        while (missing := self._what_is_missing()) is not None:
            for broker_id, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"Kafka's broker {broker_id} ended with {process.poll()}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Kafka is not ready after {_START_LIMIT_S:g} s: {missing}")
            time.sleep(_LOOK_S)

    def _what_is_missing(self) -> str | None:
        from confluent_kafka import KafkaException

        try:
            metadata = self._admin.list_topics(timeout=2)
        except KafkaException as error:
            return str(error)
        if len(metadata.brokers) < len(self._ports):
            return f"{len(metadata.brokers)} of {len(self._ports)} brokers"
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                if partition.leader < 0 or len(partition.isrs) < len(partition.replicas):
                    return f"{topic.topic}-{partition.id}"
        return None

    # --- topics --------------------------------------------------------------------------------------------------

    @contextmanager
    def topic(
        self, *, partitions: int = 1, replicas: int = 1, prefix: str = "bench", config: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """A topic that can be written to at once; deleted afterwards so that disk use stays bounded."""
        from confluent_kafka.cimpl import NewTopic

        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, partitions, replicas, config=dict(config or {}))
        self._admin.create_topics([new])[name].result(30)
        self._wait_until_ready()
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(30)

    def log_bytes(self, topic: str) -> int:
        """The size of the topic's segments on all brokers."""
        return sum(path.stat().st_size for path in self._directory.glob(f"broker-*/data/{topic}-*/*.log"))

    def fill(self, topic: str, values: Sequence[bytes], *, copies: int, partitions: int = 1) -> None:
        """Sends ``copies`` times the values, each copy to one partition in turn; returns when all are acknowledged."""
        producer = self.producer()
        for copy in range(copies):
            _wait_for_room(producer, len(values))
            for value in values:
                producer.produce(topic, value, partition=copy % partitions)
        self.flush(producer)

    def check_count(self, topic: str, rows: int) -> None:
        """Raises `AssertionError` unless the topic has so many records."""
        from confluent_kafka import TopicPartition

        consumer = self.consumer(topic)
        try:
            ids = self._admin.list_topics(topic, timeout=30).topics[topic].partitions
            ends = [consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30) for each in ids]
        finally:
            consumer.close()
        stored = sum(high - low for low, high in ends)
        assert stored == rows, f"{stored:,} records are in Kafka, {rows:,} were written"

    # --- clients -------------------------------------------------------------------------------------------------

    def producer(self, **settings: Any) -> Any:
        """confluent-kafka's producer; ``settings`` with ``_`` for dots, over `PRODUCER_SETTINGS`."""
        from confluent_kafka import Producer

        own = {name.replace("_", "."): value for name, value in settings.items()}
        servers = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        return Producer({**servers, **PRODUCER_SETTINGS, **own})

    def produce_each(self, producer: Any, topic: str, values: Sequence[bytes]) -> None:
        """Hands the values to the producer, by one call each."""
        _wait_for_room(producer, len(values))
        for value in values:
            producer.produce(topic, value)

    def produce_list(self, producer: Any, topic: str, messages: list[dict[str, bytes]]) -> None:
        """Hands the messages, each with its ``value``, to the producer by one call."""
        _wait_for_room(producer, len(messages))
        taken = producer.produce_batch(topic, messages)
        assert taken == len(messages), f"{taken:,} of {len(messages):,} records were taken"

    def flush(self, producer: Any) -> None:
        """Waits for everything to be acknowledged."""
        left = producer.flush(300)
        assert left == 0, f"{left:,} records were not acknowledged"

    def consumer(self, topic: str, *, partitions: int = 1, **settings: Any) -> Any:
        """confluent-kafka's consumer at the beginning of the topic; ``settings`` over `CONSUMER_SETTINGS`."""
        from confluent_kafka import Consumer, TopicPartition

        own = {name.replace("_", "."): value for name, value in settings.items()}
        servers = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "group.id": uuid.uuid4().hex}
        consumer = Consumer({**servers, **CONSUMER_SETTINGS, **own})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        return consumer


def _wait_for_room(producer: Any, records: int) -> None:
    while len(producer) > PRODUCER_SETTINGS["queue.buffering.max.messages"] - records:
        producer.poll(0.01)
