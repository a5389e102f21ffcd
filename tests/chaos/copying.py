"""A query that copies a topic, whose drivers are killed one after another: at named points, and at random times.

While one driver works the next one starts Spark and waits, so a death costs a second and not ten. Rule: every driver is
a process with a directory of its own, and all that Spark starts for it carries the directory's name in its environment;
so whatever is left of it is found, and ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyspark

from broker_runtime.zookeeper.guarded_process import GuardedProcess
from tests.chaos import sink_hooks
from tests.chaos.copy_query import GO
from tests.chaos.sink_hooks import DIRECTORY, Order
from tests.class_archives import frugal_java
from tests.spark_python import write_python
from tests.waiting import comes_true

log = logging.getLogger(__name__)

ROOT: Final = Path(__file__).parents[2]
AT_RANDOM: Final = "at a random time"
FROZEN: Final = "frozen, replaced, thawed"
WAYS_TO_DIE: Final = (*sink_hooks.POINTS, AT_RANDOM, AT_RANDOM, AT_RANDOM, FROZEN)
_LOCAL: Final = "local[2,4]"  # a task may fail three times
_SPARK: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.task.maxFailures": "4",
}
_NTH_TASK: Final = (1, 1, 2, 3, 5, 12)
_NTH_COMMIT: Final = (1, 1, 2, 4)
"""At which visit of its point a driver dies: mostly soon, as most of them live for a few micro-batches only."""
_READY_LIMIT_S: Final = 180.0
_BEGIN_LIMIT_S: Final = 120.0
_WORK_LIMIT_S: Final = 30.0
"""A driver that has begun to work and not come to the point of its death by then is killed, wherever it is."""
_WORKER_FAULTS_SHARE: Final = 0.4
_WORKER_FAULT_EVERY_S: Final = 6.0
_THAWED_LIMIT_S: Final = 15.0
_FINAL_LIMIT_S: Final = 420.0
_OFFSETS_AT_THE_END: Final = "20000"  # a micro-batch of a query that is to catch up
_FINDING: Final = re.compile(r"REPLAY_DIFFERS|CHECKPOINT_BEHIND_SINK|DATA_LOSS|CORRUPT_RECORD")
"""What no driver may ever end with: the query is deterministic, and its checkpoint the only one."""
_OF_TWO_DRIVERS: Final = {"CHECKPOINT_BEHIND_SINK"}
"""Except where another one, thawed, goes on over the same checkpoint: one of both comes too late, and is told so."""
_CODE: Final = re.compile(r"\[([A-Z]+(?:_[A-Z]+)+)\]")
_ERROR: Final = re.compile(r"^(?:Caused by: )?[\w.]+(?:Error|Exception)\b.*", re.MULTILINE)
_WRAPPERS: Final = {
    "PYTHON_EXCEPTION",
    "STREAM_FAILED",
    "PYTHON_DATA_SOURCE_ERROR",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
}


@dataclass(slots=True)
class Deaths:
    """What happened to the drivers, and what they did. Each query has its own; `add` sums them up."""

    by_point: Counter[str] = field(default_factory=Counter)
    armed: Counter[str] = field(default_factory=Counter)
    by_themselves: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Deaths) -> None:
        """Takes in what the other has."""
        for name in ("by_point", "armed", "by_themselves", "faults", "did", "rows"):
            getattr(self, name).update(getattr(other, name))
        self.wrong += other.wrong

    @property
    def killed(self) -> int:
        """How many drivers were killed."""
        return self.by_point.total()

    @property
    def never(self) -> list[str]:
        """The points at which no driver was killed."""
        return [point for point in sink_hooks.POINTS if not self.by_point[point]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a driver is to die: by orders at named points, or ``after_s`` of work; ``is_frozen``: not at once."""

    name: str
    orders: tuple[Order, ...] = ()
    after_s: float | None = None
    is_frozen: bool = False


class Plans:
    """Deals ways to die: none comes again before all others were dealt."""

    def __init__(self, rng: random.Random, only: str | None = None) -> None:
        """``only``: those whose names hold this."""
        self._rng = rng
        self._names = [name for name in WAYS_TO_DIE if only is None or only in name]
        self._deck: list[str] = []

    def next(self) -> Plan:
        """The next one."""
        if not self._deck:
            self._deck = self._rng.sample(self._names, len(self._names))
        return self._plan(self._deck.pop())

    def _plan(self, name: str) -> Plan:
        rng = self._rng
        if name in (AT_RANDOM, FROZEN):
            return Plan(name=name, after_s=rng.uniform(0.0, 4.0), is_frozen=name == FROZEN)
        lives_on = rng.random() < 0.25
        if name in sink_hooks.OF_TASKS:
            order = Order(point=name, action="die", nth=rng.choice(_NTH_TASK), lives_on=lives_on)
            return Plan(name=name, orders=(order,))
        if name in sink_hooks.OF_COMMITS:
            delay_s = rng.uniform(0.001, 0.03) if name == sink_hooks.RECORDING else 0.0
            order = Order(point=name, action="die", nth=rng.choice(_NTH_COMMIT), lives_on=lives_on, delay_s=delay_s)
            return Plan(name=name, orders=(order,))
        # Spark asks for an abort when the process that decides has died: before it did, or after.
        cause = Order(
            point=rng.choice((sink_hooks.BEFORE_DECISION, sink_hooks.DECISION_SENT, sink_hooks.DECIDED)),
            action="exit",
            nth=rng.randint(1, 3),
        )
        return Plan(name=name, orders=(cause, Order(point=name, action="die", lives_on=lives_on)))


class Driver:
    """One driver. Close it."""

    def __init__(self, directory: Path, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        directory.mkdir()
        self.directory = directory
        self.is_frozen = False
        self.has_company = False  # another driver of the query may live
        self.has_executors = given["master"].startswith("spark://")
        spark = {**given["spark"], f"spark.executorEnv.{DIRECTORY}": str(directory)}
        self._process = GuardedProcess(
            [sys.executable, "-m", "tests.chaos.copy_query", json.dumps({**given, "spark": spark})],
            output=directory / "log",
            environment={**environment, DIRECTORY: str(directory)},
        )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def is_ready(self) -> bool:
        return bool(sink_hooks.pids(self.directory))

    @property
    def has_begun(self) -> bool:
        """Whether a task has prepared rows."""
        return bool(sink_hooks.events(self.directory))

    def wait_until_ready(self) -> None:
        """Raises `TimeoutError`."""
        if not comes_true(lambda: self.is_ready or self.has_ended, _READY_LIMIT_S):
            raise TimeoutError(f"Spark does not start: {self.directory}/log")

    def go(self, trigger: Mapping[str, object]) -> None:
        """Lets it start its query."""
        (self.directory / f"{GO}.new").write_text(json.dumps(trigger))
        (self.directory / f"{GO}.new").rename(self.directory / GO)

    def kill(self) -> None:
        """SIGKILL of its JVM and its Python, as a hook does it."""
        alive = self.processes()  # others may have the numbers of those that have ended
        for pid in sink_hooks.pids(self.directory):
            if pid in alive:
                _signal(pid, signal.SIGKILL)

    def wait(self, limit_s: float) -> int | None:
        """Its exit status; None: it has not ended by then."""
        return self._process.wait(limit_s)

    def freeze(self) -> None:
        """SIGSTOP, to itself and to everything that it started."""
        self.is_frozen = True
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.is_frozen = False
        self._signal_all(signal.SIGCONT)

    def processes(self) -> dict[int, str]:
        """All that carry its directory in their environment: command lines by process number."""
        mark = f"{DIRECTORY}={self.directory}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def python_workers(self) -> list[int]:
        """Those that run tasks and commits: each is a child of a daemon."""
        daemons = [pid for pid, command in self.processes().items() if "pyspark.daemon" in command]
        return [pid for pid in daemons if _parent(pid) in daemons]

    def executors(self) -> list[int]:
        """Their JVMs."""
        return [pid for pid, command in self.processes().items() if "CoarseGrainedExecutorBackend" in command]

    def close(self) -> None:
        """Nothing of it is left. Idempotent."""
        self.kill()
        if not self.has_ended:
            self._process.stop(1.0)
        self._signal_all(signal.SIGKILL)

    def text(self) -> str:
        """What it printed."""
        return (self.directory / "log").read_text(errors="replace")

    def failure(self) -> str:
        """Why it ended by itself, in a few words."""
        text = self.text()
        codes = [code for code in _CODE.findall(text) if code not in _WRAPPERS]
        if codes:
            return Counter(codes).most_common(1)[0][0]
        errors = _ERROR.findall(text)
        return str(errors[-1])[:100] if errors else "ended"

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self.processes():
            _signal(pid, number)


class CopyQuery(threading.Thread):
    """Keeps one query alive, one driver after another, until it is stopped; then `finish` lets it reach the end."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        servers: str,
        source: str,
        target: str,
        spark_cluster: tuple[str, Mapping[str, str]] | None,
        cluster_share: float,
        only: str | None,
        rng: random.Random,
    ) -> None:
        """``only``: of the ways to die, those whose names hold this.
        ``spark_cluster``: a master, and settings for its drivers; ``cluster_share`` of the drivers use it."""
        super().__init__(name=f"query {name}", daemon=True)
        directory.mkdir()
        self.query = name
        self.deaths = Deaths()
        self.error: BaseException | None = None
        self._directory = directory
        self._spark_cluster = spark_cluster
        self._cluster_share = cluster_share
        self._rng = rng
        self._plans = Plans(rng, only)
        self._environment = spark_environment(directory)
        servers_option = {"pylog.bootstrap.servers": servers}
        self._given: dict[str, Any] = {
            "name": name,
            "source": {**servers_option, "subscribe": source, "startingOffsets": "earliest",
                       "maxOffsetsPerTrigger": "300", "minPartitions": "3"},
            "sink": {**servers_option, "topic": target},
            "read": {**servers_option, "subscribe": target},
            "checkpoint": str(directory / "checkpoint"),
        }  # fmt: skip
        self._drivers: list[Driver] = []
        self._frozen: list[tuple[float, Driver]] = []  # thawed at, then given a while
        self._ending = threading.Event()

    # --- the test's thread --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Its drivers are killed. Raises what its thread raised, and `TimeoutError`."""
        self._ending.set()
        self.join(_READY_LIMIT_S)
        self.close()
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise TimeoutError(f"{self.name} has not ended")

    def close(self) -> None:
        """Nothing of any driver is left."""
        self._ending.set()
        for driver in self._drivers:
            driver.close()

    def finish(self, *, read_to: Path | None = None) -> list[str]:
        """Lets it copy all that is there, as the member of a group named like itself; what is wrong, a line each.
        ``read_to``: where to write what Spark then reads of the output, as Feather."""
        to_the_end = {"pylog.group.id": self.query, "maxOffsetsPerTrigger": _OFFSETS_AT_THE_END}
        given = {**self._given, "source": {**self._given["source"], **to_the_end}}
        if read_to is not None:
            given["read_to"] = str(read_to)
        driver = self._new(given, has_executors=False)
        try:
            driver.wait_until_ready()
            driver.go({"availableNow": True})
            status = driver.wait(_FINAL_LIMIT_S)
            self._look_back(driver)
            if status != 0:
                return [
                    f"{self.query} does not come to its end: status {status}, {driver.failure()}: {driver.directory}"
                ]
            return []
        finally:
            driver.close()

    # --- its own thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            driver = self._new(self._given)
            while not self._ending.is_set():
                following = self._work(driver)
                self._tend_frozen()
                driver = following
        except BaseException as error:  # noqa: BLE001 - `stop` raises it
            self.error = error

    def _new(self, given: Mapping[str, Any], *, has_executors: bool | None = None) -> Driver:
        if has_executors is None:
            has_executors = self._rng.random() < self._cluster_share
        master, more = _LOCAL, dict[str, str]()
        if has_executors and self._spark_cluster is not None:
            master, more = self._spark_cluster[0], dict(self._spark_cluster[1])
        directory = self._directory / f"driver-{len(self._drivers)}"
        given = {**given, "master": master, "spark": {**_SPARK, **more}}
        driver = Driver(directory, given, self._environment)
        self._drivers.append(driver)
        return driver

    def _work(self, driver: Driver) -> Driver:
        """Lets the driver work until it is dead, or frozen; returns the next one, which is starting or ready."""
        plan = self._plans.next()
        orders = list(plan.orders)
        if driver.has_executors and not {sink_hooks.ALL_ACKNOWLEDGED} & {order.point for order in orders}:
            stall = Order(point=sink_hooks.ALL_ACKNOWLEDGED, action="stall", nth=self._rng.randint(1, 6), delay_s=2.0)
            orders.insert(0, stall)
        for order in orders:
            sink_hooks.arm(driver.directory, order)
        self.deaths.armed[plan.name] += 1
        driver.wait_until_ready()
        driver.has_company = bool(self._frozen)
        driver.go({"processingTime": "0 seconds"})
        following = self._new(self._given)
        until_s = time.monotonic() + _BEGIN_LIMIT_S
        has_begun = False
        kill_at_s: float | None = None
        worker_fault_at_s: float | None = None
        has_worker_faults = self._rng.random() < _WORKER_FAULTS_SHARE
        was_killed = False
        while not driver.has_ended and not self._ending.is_set():
            now_s = time.monotonic()
            self._tend_frozen()
            if not has_begun and driver.has_begun:
                has_begun, until_s = True, now_s + _WORK_LIMIT_S
                kill_at_s = None if plan.after_s is None else now_s + plan.after_s
            if now_s >= until_s or (kill_at_s is not None and now_s >= kill_at_s):
                if plan.is_frozen and kill_at_s is not None and now_s < until_s:
                    driver.has_company = True
                    driver.freeze()
                    self._frozen.append((now_s + self._rng.uniform(1.0, 12.0), driver))
                    return following
                was_killed = True
                driver.kill()
                driver.wait(30.0)
                break
            if worker_fault_at_s is not None and now_s >= worker_fault_at_s:
                worker_fault_at_s = None
                self._break_a_worker(driver)
            elif has_worker_faults and has_begun and worker_fault_at_s is None:
                worker_fault_at_s = now_s + self._rng.expovariate(1 / _WORKER_FAULT_EVERY_S)
            time.sleep(0.02)
        self._end_of(driver, plan, was_killed=was_killed)
        return following

    def _end_of(self, driver: Driver, plan: Plan, *, was_killed: bool) -> None:
        last = plan.orders[-1] if plan.orders else None
        if last is not None and sink_hooks.was_carried_out(driver.directory, last.point):
            self.deaths.by_point[last.point] += 1
            log.info("%s driver died %s", self.query, last.point)
        elif was_killed or self._ending.is_set():
            self.deaths.by_point[AT_RANDOM] += 1
            log.info("%s driver killed, plan was %s", self.query, plan.name)
        else:
            self._ended_by_itself(driver)
        self._look_back(driver)

    def _ended_by_itself(self, driver: Driver) -> None:
        self.deaths.by_themselves[driver.failure()] += 1
        log.info("%s driver ended: %s", self.query, driver.failure())

    def _look_back(self, driver: Driver) -> None:
        for what, rows in sink_hooks.events(driver.directory):
            self.deaths.did[what] += 1
            self.deaths.rows[what] += rows
        if driver.has_executors and sink_hooks.was_carried_out(driver.directory, sink_hooks.ALL_ACKNOWLEDGED):
            self.deaths.faults["stall a task, or die in it"] += 1
        text = driver.text()
        self.deaths.did["speculated"] += text.count("as speculatable")
        found = set(_FINDING.findall(text)) - (_OF_TWO_DRIVERS if driver.has_company else set())
        if found:
            self.deaths.wrong.append(f"{self.query}: {', '.join(sorted(found))}: {driver.directory}/log")

    def _tend_frozen(self) -> None:
        now_s = time.monotonic()
        for thaw_at_s, driver in list(self._frozen):
            if now_s >= thaw_at_s and driver.is_frozen:
                driver.thaw()
                log.info("%s driver thawed", self.query)
            if driver.has_ended or now_s >= thaw_at_s + _THAWED_LIMIT_S:
                self._frozen.remove((thaw_at_s, driver))
                driver.close()
                self.deaths.by_point[FROZEN] += 1
                self._look_back(driver)

    def _break_a_worker(self, driver: Driver) -> None:
        """Kills a Python worker or an executor."""
        victims = driver.executors() if driver.has_executors and self._rng.random() < 0.5 else []
        what = "kill an executor" if victims else "kill a Python worker"
        victims = victims or driver.python_workers()
        if victims:
            _signal(self._rng.choice(victims), signal.SIGKILL)
            self.deaths.faults[what] += 1
            log.info("%s %s", self.query, what)


def spark_environment(directory: Path) -> dict[str, str]:
    """The environment of drivers, and of a Spark cluster that runs their executors. What they leave behind, they leave
    in the directory."""
    script, temporary = write_python(directory / "python3"), directory / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        **{name: value for name, value in os.environ.items() if name not in ("SPARK_CONF_DIR", DIRECTORY)},
        "PYTHONPATH": f"{Path(__file__).parent / 'in_spark'}:{ROOT}",
        "PYSPARK_PYTHON": str(script),
        "PYSPARK_DRIVER_PYTHON": str(script),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(temporary),
        "TMPDIR": str(temporary),
        "SPARK_SUBMIT_OPTS": f"{frugal_java()} -Djava.io.tmpdir={temporary}",
    }


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0
