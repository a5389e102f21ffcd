"""``python -m bench.kafka [names…] [--quick] [--rounds N] [--json FILE]``: pylog beside Kafka, as a table and JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.command import Command
from bench.kafka.settings import described
from bench.kafka.workspace import KafkaWorkspace

RESULTS = Path("build/bench-kafka.json")
COMPARISONS = {
    "in_spark": "Spark reads, writes and copies topics; a micro-batch of one row",
    "in_python": "records and batches into a producer and out of a consumer",
    "latencies": "one record to its acknowledgement, and to a waiting consumer",
    "cost": "a broker's processor time per GB, bytes on disk per row, ready again after kill -9",
    "replicas": "three replicas, acks=all: throughput, and one record to its acknowledgement",
    "spark_settings": "what Spark's settings bring on either side, alone and together",
}
"""In the order in which they run; the name is also the module's."""


def main() -> int:
    command = Command(
        package="bench.kafka", title="pylog beside Apache Kafka", comparisons=COMPARISONS, results=RESULTS
    )
    options = command.options(command.parser())
    workspace = KafkaWorkspace(quick=options.quick, rounds=options.rounds)
    return command.run(options, workspace, settings=described())


if __name__ == "__main__":
    sys.exit(main())
