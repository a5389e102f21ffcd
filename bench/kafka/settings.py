"""What both sides run with: Kafka's settings where its defaults are not its best, pylog's where they differ.

Rule: whatever a comparison sets is here, so that it is printed with the figures (`described`). Kafka's clients have
settings for throughput, and `spark_settings` measures what those of Spark's connector bring; pylog has its defaults,
but for who writes to the disk when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.kafka.jars import CONNECTOR_VERSION, KAFKA_VERSION

JAVA_OPTIONS: Final = (
    "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
"""Those of ``kafka-run-class.sh`` and ``kafka-server-start.sh``."""
BROKER_SETTINGS: Final = {
    "message.max.bytes": "16777216",
    "replica.fetch.max.bytes": "16777216",
    "num.recovery.threads.per.data.dir": "2",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "log.segment.delete.delay.ms": "1000",
}
"""What differs from Kafka's defaults: batches as large as pylog's, recovery on both processors, no waiting for
members, and files of deleted topics removed at once."""
PRODUCER_SETTINGS: Final = {
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}
"""confluent-kafka's, for throughput."""
CONSUMER_SETTINGS: Final = {
    "enable.auto.commit": False,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 262_144,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 8_388_608,
    "max.partition.fetch.bytes": 8_388_608,
}
"""confluent-kafka's, for throughput: by default it stops fetching for a second whenever 100,000 messages wait."""
SPARK_READS: Final = {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": "8388608"}
"""Options of the connector's source."""
SPARK_WRITES: Final = {"kafka.linger.ms": "50", "kafka.batch.size": "524288", "kafka.buffer.memory": "134217728"}
"""Options of the connector's sink."""
UNSYNCED: Final = {"flush.mode": "os"}
"""pylog's topics where nobody syncs, as with Kafka's defaults."""
SYNCED: Final = {"flush.mode": "ack"}
"""pylog's topics, by default: a record is on the disk before it is acknowledged."""
KAFKA_SYNCED: Final = {"flush.messages": "1"}
"""Kafka's topics that keep the same promise."""


def described() -> Mapping[str, str]:
    """The settings of each side, for the table and the JSON."""
    return {
        "pylog": "defaults, with flush.mode=os for the topics wherever it is not called synced; one broker, one "
        "ZooKeeper; linger.ms=0 where one record's time is measured",
        "Kafka": f"{KAFKA_VERSION} in ZooKeeper mode; {' '.join(JAVA_OPTIONS)}; log4j at WARN; "
        f"{_list(BROKER_SETTINGS)}; synced: {_list(KAFKA_SYNCED)}",
        "confluent-kafka": f"producer: {_list(PRODUCER_SETTINGS)}; consumer: {_list(CONSUMER_SETTINGS)}; linger.ms=0 "
        "where one record's time is measured",
        "Spark's connector": f"{CONNECTOR_VERSION}; source: {_list(SPARK_READS)}; sink: {_list(SPARK_WRITES)}",
        "Spark": "local[2], 3 GB, spark.python.unix.domain.socket.enabled=true, everything else by default, both "
        "connectors in one session",
    }


def _list(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
