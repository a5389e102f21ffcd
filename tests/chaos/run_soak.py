"""``python -m tests.chaos.run_soak --hours 3``: two Spark queries over three brokers that are killed now and then.

Everything that should stay as it is, is looked at every 20 s: memory, threads, files and connections of the driver, of
Spark's Python processes and of each broker. Printed are, for each, the median of the first and of the last tenth, and
the slope per hour over all but the first fifth. Ends with 1 if a query ended, if a row is missing in the copy or is
there twice, or if something grew by more than it may (`_GROWTH`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster
from tests.class_archives import frugal_java
from tests.waiting import wait_until

_LOOK_S: Final = 20.0
_RATE: Final = 100  # records a second
_CATCH_UP_S: Final = 240.0
_START_S: Final = 120.0
_GROWTH: Final = {"memory_mb": 40.0, "threads": 10.0, "files": 20.0, "connections": 20.0}
"""What may be added between the first and the last tenth, on top of a fifth of what there was."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run_soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--fault-minutes", type=float, default=7.0, help="how often something is killed")
    parser.add_argument("--batch-every-ms", type=int, default=0, help="the trigger of both queries; 0: at once")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 32))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pylog-soak-") as directory, LocalCluster(brokers=3) as cluster:
        limits = options.hours * 3600, options.fault_minutes * 60
        return _run(Path(directory), cluster, rng, *limits, options.batch_every_ms)


def _run(
    directory: Path, cluster: LocalCluster, rng: random.Random, duration_s: float, fault_s: float, batch_every_ms: int
) -> int:
    with Admin(cluster.bootstrap_servers) as admin:
        for topic in ("source", "target"):
            admin.create_topic(topic, partitions=4, replication_factor=3, config={"retention.ms": "6h"})
    given = {
        "servers": cluster.bootstrap_servers, "source": "source", "target": "target", "checkpoints": str(directory),
        "batch_every_ms": batch_every_ms,
    }  # fmt: skip
    # Not by spark-submit, which keeps the program's standard input open.
    command = [sys.executable, str(Path(__file__).with_name("soak_query.py")), json.dumps(given)]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": frugal_java(), "PYSPARK_PYTHON": sys.executable}
    said = directory / "said"
    looks: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    faults: Counter[str] = Counter()
    with (
        said.open("w") as output,
        (directory / "driver.log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=log, env=environment) as driver,
    ):
        try:
            assert driver.stdin is not None
            wait_until(lambda: _line(said, "READY") is not None, "the queries run", _START_S)
            is_over = threading.Event()
            sender = threading.Thread(target=_send, args=(cluster.bootstrap_servers, is_over))
            sender.start()
            end, next_fault = time.monotonic() + duration_s, time.monotonic() + fault_s
            while time.monotonic() < end and driver.poll() is None:
                time.sleep(_LOOK_S)
                for name, pids in _processes(cluster, driver.pid).items():
                    looks[name].append(_look(pids))
                if time.monotonic() >= next_fault:
                    next_fault += fault_s
                    faults[_break(cluster, driver.pid, rng)] += 1
            is_over.set()
            sender.join(120)
            driver.stdin.close()
            wait_until(lambda: _line(said, "ENDED") is not None, "the queries have ended", _CATCH_UP_S)
            ended = json.loads(_line(said, "ENDED") or "null")
        except BaseException:
            print((directory / "driver.log").read_text()[-5_000:])
            raise
        finally:
            driver.kill()
    return _judge(cluster, looks, faults, ended)


def _send(servers: str, is_over: threading.Event) -> None:
    number = 0
    with Producer(servers, delivery_timeout_ms=120_000) as producer:
        while not is_over.wait(0.5):
            for _ in range(_RATE // 2):
                producer.send("source", b"%d" % number, key=b"%d" % (number % 50))
                number += 1
        producer.flush(120)


def _line(said: Path, beginning: str) -> str | None:
    """What the driver has said behind that word."""
    lines = said.read_text().splitlines()
    return next((line.removeprefix(beginning) for line in lines if line.startswith(beginning)), None)


def _break(cluster: LocalCluster, driver: int, rng: random.Random) -> str:
    """Kills something and brings it back."""
    workers = [pid for pid in _below(driver) if _kind(pid) == "python worker"]
    if workers and rng.random() < 0.3:
        os.kill(rng.choice(workers), signal.SIGKILL)
        return "python worker killed"
    broker = rng.choice(list(cluster.broker_ids))
    if rng.random() < 0.5:
        cluster.kill(broker)
    else:
        cluster.stop(broker)
    time.sleep(rng.uniform(1, 15))  # as long as it is away
    cluster.start(broker)
    return "broker killed or stopped"


def _processes(cluster: LocalCluster, driver: int) -> dict[str, list[int]]:
    """What is looked at: each broker, the driver's JVM, the process of each query's source, all other Pythons."""
    found: dict[str, list[int]] = {f"broker {broker}": [cluster.pid(broker)] for broker in cluster.broker_ids}
    for pid in [driver, *_below(driver)]:
        if (kind := _kind(pid)) is not None:
            found.setdefault(f"all: {kind}", []).append(pid)
    return found


def _kind(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None  # it is gone
    if "java" in command.split("\0")[0]:
        return "driver's JVM"
    if "soak_query" in command:
        return "driver's Python"
    if "python_streaming_source_runner" in command:
        return "source"
    return "python worker"


def _below(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found: list[int] = []
    todo = [root]
    while todo:
        children = [pid for pid, parent in parents.items() if parent == todo[0]]
        todo = [*todo[1:], *children]
        found += children
    return found


def _look(pids: list[int]) -> Mapping[str, float]:
    """Of all these processes together. What has ended meanwhile counts nothing."""
    total: Counter[str] = Counter()
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            names = list(filter(None, map(_target, Path(f"/proc/{pid}/fd").iterdir())))
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if "RssAnon" not in fields:
            continue  # it has ended, and nobody has taken note yet
        total["memory_mb"] += int(fields["RssAnon"].split()[0]) // 1024
        total["threads"] += int(fields["Threads"])
        total["connections"] += sum(name.startswith("socket:") for name in names)
        total["files"] += sum(not name.startswith("socket:") for name in names)
        total["processes"] += 1
    return total


def _target(entry: Path) -> str:
    """Of a link to an open file; empty if it was closed meanwhile."""
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def _judge(
    cluster: LocalCluster, looks: Mapping[str, list[Mapping[str, float]]], faults: Counter[str], ended: list[str]
) -> int:
    wrong = [f"a query ended: {each[:500]}" for each in ended]
    for name, series in sorted(looks.items()):
        for what in ("memory_mb", "threads", "files", "connections"):
            values = [float(look.get(what, 0)) for look in series]
            tenth = max(1, len(values) // 10)
            first, last = statistics.median(values[tenth : 2 * tenth] or values), statistics.median(values[-tenth:])
            print(f"{name:24} {what:12} {first:8.0f} → {last:8.0f}   {_slope_per_hour(values):+9.1f} an hour")
            if len(series) > 20 and last > first * 1.2 + _GROWTH[what]:
                wrong.append(f"{name}: {what} grew from {first:.0f} to {last:.0f}")
    sent = read("source", bootstrap_servers=cluster.bootstrap_servers).read_all()["value"].to_pylist()
    copied = read("target", bootstrap_servers=cluster.bootstrap_servers).read_all()["value"].to_pylist()
    print(f"{len(sent):,} records sent, {len(copied):,} in the copy; faults: {dict(faults)}")
    if Counter(sent) != Counter(copied):
        missing, more = Counter(sent) - Counter(copied), Counter(copied) - Counter(sent)
        wrong.append(f"the copy lacks {missing.total()} rows and has {more.total()} too many")
    print("\n".join(wrong) or "nothing grew, nothing is missing, nothing is there twice")
    return 1 if wrong else 0


def _slope_per_hour(values: list[float]) -> float:
    rest = values[len(values) // 5 :]
    if len(rest) < 2:
        return 0.0
    hours = [index * _LOOK_S / 3600 for index in range(len(rest))]
    return float(statistics.linear_regression(hours, rest).slope)


if __name__ == "__main__":
    sys.exit(main())
