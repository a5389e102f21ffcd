"""How large topics are on this broker, looked at now and then, on the thread of each data directory.

Rule: whoever reads the metrics does not wait for a disk. A directory whose disk stands still keeps what was seen last.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from broker_runtime.log import LogDirectory
from broker_runtime.metrics.table import gauge

EVERY_S: Final = 10.0


class LogSizes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_directory: dict[Path, Counter[str]] = {}  # bytes by topic

    def look(self, directory: LogDirectory) -> None:
        """Measures the logs of a data directory. Blocks on its disk; raises `OSError`."""
        sizes: Counter[str] = Counter()
        for log in directory.logs:
            sizes[log.topic] += log.stored_bytes()
        with self._lock:
            self._by_directory[directory.path] = sizes

    def collect(self) -> Iterator[Metric]:
        """The metric, without a wait."""
        with self._lock:
            total = sum(self._by_directory.values(), Counter[str]())
            topics = {topic for sizes in self._by_directory.values() for topic in sizes}
        yield gauge("topic_size_bytes", {(topic,): total[topic] for topic in sorted(topics)})
