"""A Spark job as a process of its own, started by `spark-submit`: watched, and killed as by a power failure."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from broker_runtime.zookeeper.guarded_process import GuardedProcess

_BATCH_LINE = re.compile(r"micro-batch (\d+): (\d+) flights")
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    # A job of a minute spends half of its processor time on optimising itself; two cores have none to spare.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_LIMIT_S = 600.0


class JobFailedError(Exception):
    """A Spark job ended badly, or did not end; the message has the end of its output."""


class SparkJob:
    """`spark-submit program argument…` on two cores of this machine. Ends with the demo, however that ends."""

    def __init__(self, program: Path, *arguments: str, output: Path) -> None:
        settings = [part for name, value in _SETTINGS.items() for part in ("--conf", f"{name}={value}")]
        submit = Path(sys.executable).parent / "spark-submit"
        # Spark's workers must be this Python; another Spark on this machine must not interfere.
        environment = {name: value for name, value in os.environ.items() if name not in _OTHER_SPARKS}
        environment["PYSPARK_PYTHON"] = sys.executable
        self._output = output
        self._process = GuardedProcess(
            [submit, "--master", "local[2]", *settings, program, *arguments], output=output, environment=environment
        )

    def micro_batches(self) -> Iterator[tuple[int, int]]:
        """(batch id, flights) of each micro-batch as the job reports it, until the job ends."""
        shown, deadline = 0, time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            has_ended = self._process.poll() is not None
            found = _BATCH_LINE.findall(self._output.read_text(errors="replace"))
            for batch_id, flights in found[shown:]:
                shown += 1
                yield int(batch_id), int(flights)
            if has_ended:
                self._check_end()
                return
            time.sleep(0.1)
        raise JobFailedError(f"not done after {_LIMIT_S:g} s. {self._last_words()}")

    def wait(self) -> None:
        """Returns when it has succeeded; raises `JobFailedError` otherwise."""
        for _ in self.micro_batches():
            continue

    def kill(self) -> None:
        """Sends SIGKILL to Spark's JVM and its Python driver alike. Nothing happens if they have ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30.0)

    def _check_end(self) -> None:
        status = self._process.poll()
        if status != 0:
            raise JobFailedError(f"ended with status {status}. {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._output.read_text(errors="replace").splitlines()[-30:]
        return f"{self._output} ends with:\n" + "\n".join(lines)


_OTHER_SPARKS = {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_DRIVER_PYTHON", "PYSPARK_DRIVER_PYTHON_OPTS"}
