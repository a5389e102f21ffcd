"""A Spark cluster of its own on this machine: a master and two workers that call themselves two hosts.

Executors are processes of their own there, so they can be killed; and a slow task gets a speculative copy, which Spark
starts on another host only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import pyspark

from broker_runtime.ports import choose_port
from broker_runtime.zookeeper.guarded_process import GuardedProcess
from tests.class_archives import frugal_java

_HOME: Final = Path(pyspark.__file__).parent
_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_LIMIT_S: Final = 120.0

CORES_PER_EXECUTOR: Final = 2
_SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": str(CORES_PER_EXECUTOR),
    "spark.cores.max": str(CORES_PER_EXECUTOR * len(_HOSTS)),
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
}


def cluster_settings() -> dict[str, str]:
    """For a driver whose executors run in a `SparkCluster`."""
    return {**_SETTINGS, "spark.executor.extraJavaOptions": frugal_java()}


class SparkCluster:
    """A context manager."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {
            **environment,
            "SPARK_HOME": str(_HOME),
            "SPARK_DAEMON_JAVA_OPTS": frugal_java(),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._port = choose_port()
        self._processes: list[GuardedProcess] = []

    @property
    def master(self) -> str:
        """What a driver connects to."""
        return f"spark://{_HOSTS[0]}:{self._port}"

    def __enter__(self) -> SparkCluster:
        try:
            self._start("master", "org.apache.spark.deploy.master.Master", "--host", _HOSTS[0],
                        "--port", str(self._port), "--webui-port", "0")  # fmt: skip
            for host in _HOSTS:
                self._start(f"worker-{host}", "org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "16",
                            "--memory", "8g", "--webui-port", "0", "--work-dir", str(self._directory / f"work-{host}"),
                            self.master)  # fmt: skip
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends them. Idempotent."""
        for process in self._processes:
            if process.poll() is None:
                process.stop(10.0)
        self._processes.clear()

    def _start(self, name: str, main: str, *arguments: str) -> None:
        command = [_HOME / "bin" / "spark-class", main, *arguments]
        output = self._directory / f"spark-{name}.log"
        self._processes.append(GuardedProcess(command, output=output, environment=self._environment))

    def _wait(self) -> None:
        """Until both workers are known, and know it: till then each registers again. Raises `TimeoutError`."""
        outputs = [self._directory / f"spark-worker-{host}.log" for host in _HOSTS]
        deadline_s = time.monotonic() + _LIMIT_S
        while not all("Successfully registered" in output.read_text(errors="replace") for output in outputs):
            if time.monotonic() > deadline_s or any(each.poll() is not None for each in self._processes):
                raise TimeoutError(f"no Spark cluster: {self._directory}")
            time.sleep(0.1)
