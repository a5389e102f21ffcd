"""Apache Kafka as a peer: one broker in a process, from the jars of Maven Central, with its own controller (KRaft).

Needs ``mvn`` (which fetches the jars once, into ``build/kafka``), Java, and the package ``confluent-kafka``:
``pip install 'pyspark-log[bench]'``. What is missing is said in one line.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, Final, Self

from broker_runtime.ports import choose_port

VERSION: Final = "3.9.1"
_ROOT: Final = Path(__file__).resolve().parent.parent
_JARS: Final = _ROOT / "build" / f"kafka-{VERSION}"
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_FETCH_LIMIT_S: Final = 300
_START_LIMIT_S: Final = 60.0


class KafkaPeer:
    """The broker; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> Self:
        from confluent_kafka.admin import AdminClient

        _fetch_jars()
        self._directory.mkdir(parents=True)
        port, controller = choose_port("127.0.0.1"), choose_port("127.0.0.1")
        self.bootstrap_servers = f"127.0.0.1:{port}"
        properties = self._directory / "server.properties"
        properties.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={self._directory / "data"}
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
"""
        )
        java = ["java", "-Xmx1g", "-cp", f"{_JARS}/*"]
        storage = ["kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22], "-c", str(properties)]
        subprocess.run([*java, *storage], check=True, stdout=subprocess.DEVNULL, timeout=60)
        self._process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline_s = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                admin.list_topics(timeout=2)
            except Exception:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    self.__exit__()
                    raise
            else:
                return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait(30)
        shutil.rmtree(self._directory, ignore_errors=True)

    def fill(self, topic: str, values: list[bytes], copies: int) -> None:
        """One partition with ``copies`` times the values."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        producer = Producer({
            "bootstrap.servers": self.bootstrap_servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000,
        })  # fmt: skip
        for _ in range(copies):
            for value in values:
                producer.produce(topic, value)
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
        producer.flush(120)

    def consumer(self, topic: str) -> Any:
        """confluent-kafka's consumer, at the beginning of the topic."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({
            "bootstrap.servers": self.bootstrap_servers, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer


def _fetch_jars() -> None:
    if _JARS.is_dir():
        return
    if shutil.which("mvn") is None:
        raise RuntimeError("Kafka's jars come by Maven: mvn is not on PATH")
    part = _JARS.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / "pom.xml").write_text(_POM)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
    subprocess.run(command, cwd=part, check=True, timeout=_FETCH_LIMIT_S)
    part.rename(_JARS)
