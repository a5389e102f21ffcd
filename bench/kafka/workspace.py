"""What the comparisons beside Kafka share: a broker of each, and a Spark session with both connectors."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from bench.kafka.jars import connector_jars
from bench.kafka.peer import KafkaPeer
from bench.workspace import Workspace


class KafkaWorkspace(Workspace):
    """A workspace with a Kafka broker beside pylog's."""

    @cached_property
    def kafka(self) -> KafkaPeer:
        """One broker, one ZooKeeper, as `cluster` is."""
        peer: KafkaPeer = self.hold(KafkaPeer(self.directory / "kafka"))
        return peer

    def spark_jars(self) -> list[Path]:
        return connector_jars()
