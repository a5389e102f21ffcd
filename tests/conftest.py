"""Shared by all tests: one real ZooKeeper per process that runs tests, in which each cluster has a root of its own."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import hypothesis
import pytest

from broker_runtime import ports
from broker_runtime.zookeeper.bundled import BundledZooKeeper
from broker_runtime.zookeeper.guarded_process import GuardedProcess
from pyspark_log.local import broker_process
from pyspark_log.local.ensemble import ZooKeeperEnsemble
from pyspark_log.testing import LocalCluster
from pyspark_log.testing import cluster as local_cluster
from tests.class_archives import frugal_java, zookeeper_java
from tests.fork_server import CAN_FORK, BrokerForks, ForkServer
from tests.spark_python import write_python

FAILURES_VARIABLE = "PYLOG_TEST_FAILURES"
"""Names the file into which a run writes what each failed test raised (`tests/run.py`)."""

collect_ignore = [] if CAN_FORK else ["test_fork_server.py"]

_failures: dict[str, str] = {}

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background commands with SIGINT ignored, and so would be all processes of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if (_worker := os.environ.get("PYTEST_XDIST_WORKER", "")).startswith("gw"):
    # A worker takes no port of another worker's broker that is down for a moment.
    _share = len(ports.RANGE) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _first = ports.RANGE.start + int(_worker[2:]) * _share
    os.environ[ports.RANGE_VARIABLE] = f"{_first}-{_first + _share - 1}"

os.environ.setdefault("SPARK_SUBMIT_OPTS", frugal_java())  # for every driver that a test starts
os.environ.setdefault("SERVER_JVMFLAGS", zookeeper_java())  # and every ZooKeeper

# The duration of one example, and of making it, depends on how busy the machine is; tests of speed say so themselves.
hypothesis.settings.register_profile(
    "without-deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("without-deadline")

_FAST = {"contract", "unit"}
# They use a processor all the time; the others wait for processes.
_BUSY = {"examples", "simulation", "spark", "wheel", "chaos/test_exactly_once_chaos.py"}

_BOTH = (True, False)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Each process first imports its share of the test files, before it collects all: so no file is compiled by all
    of them. To compile takes three times as long as to collect what is compiled."""
    gc.disable()  # until all is collected
    if _worker and isinstance(collector, pytest.Session):
        root = Path(__file__).parent
        asked_for = [Path(argument.partition("::")[0]).absolute() for argument in collector.config.args]
        files = [path for path in sorted(root.rglob("test_*.py")) if any(map(path.is_relative_to, asked_for))]
        for path in files[int(_worker[2:]) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
            with contextlib.suppress(Exception):  # it is reported when the file is collected
                importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several files run side by side, a busy one runs beside waiting ones: the fast tests come first, then the
    files with tests marked ``slow``, so that none of them is left alone at the end, then the others, of both a busy and
    a waiting one alternately. Within a file nothing changes.
    """
    if not _worker:
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    root = Path(__file__).parent
    fast: list[Path] = []
    others: dict[tuple[bool, bool], list[Path]] = {(is_slow, is_busy): [] for is_slow in _BOTH for is_busy in _BOTH}
    for path, tests in files.items():
        name = path.relative_to(root).as_posix()
        folder = name.partition("/")[0]
        is_slow = any(test.get_closest_marker("slow") for test in tests)
        is_fast = not is_slow and (folder in _FAST or path.parent == root)
        (fast if is_fast else others[is_slow, not _BUSY.isdisjoint({folder, name})]).append(path)
    ordered = [*fast, *(path for is_slow in _BOTH for path in _in_turn(others[is_slow, True], others[is_slow, False]))]
    items[:] = [item for path in ordered for item in files[path]]


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not visit it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps what a failed test raised. In the process that all workers report to."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        _failures.setdefault(report.nodeid, str(report.longrepr) if crash is None else str(crash.message))


def pytest_sessionfinish() -> None:
    """Writes the failures, for who asked for them."""
    if _failures and not _worker and (path := os.environ.get(FAILURES_VARIABLE)):
        Path(path).write_text(json.dumps(_failures))


def _in_turn(first: Sequence[Path], second: Sequence[Path]) -> list[Path]:
    """Interleaves both evenly."""
    places = [(index / len(each), path) for each in (first, second) for index, path in enumerate(each)]
    return [path for _, path in sorted(places, key=lambda place: place[0])]


class SessionZooKeeper:
    """The ZooKeeper of a process that runs tests: started when somebody first needs it."""

    def __init__(self, directories: pytest.TempPathFactory, stack: contextlib.ExitStack) -> None:
        self._directories = directories
        self._stack = stack
        self._roots = itertools.count(1)

    @functools.cached_property
    def server(self) -> BundledZooKeeper:
        """It serves."""
        return self._stack.enter_context(BundledZooKeeper(self._directories.mktemp("zookeeper")))

    def new_root(self) -> str:
        """A connect string with a root that nobody else has."""
        return f"{self.server.connect_string}/test-{next(self._roots)}"


class SharedZooKeeper:
    """To a `LocalCluster` what a `ZooKeeperEnsemble` is; its ``servers`` are none that the cluster could stop."""

    def __init__(self, session: SessionZooKeeper) -> None:
        self.connect_string = session.new_root()
        self.servers: Mapping[int, BundledZooKeeper] = {}

    def start(self) -> None:
        """It serves already."""

    def stop(self) -> None:
        """Others go on with it."""


@pytest.fixture(scope="session", autouse=True)
def broker_forks() -> Iterator[BrokerForks]:
    """Brokers of `LocalCluster` and `BrokerProcess` are forks of a process that has imported everything."""
    forks = BrokerForks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_process, "GuardedProcess", forks.start)
        yield forks
    forks.close()


@pytest.fixture(scope="module")
def real_brokers(broker_forks: BrokerForks) -> Iterator[None]:
    """Brokers are started as users start them: for tests of the start, of memory and of the process itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_process, "GuardedProcess", GuardedProcess)
        yield


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python for Spark, whose planners, source processes and workers are forks, too."""
    script = tmp_path_factory.mktemp("python") / "python3"
    if not CAN_FORK:
        yield write_python(script)
        return
    forks = ForkServer("spark", PYTHONHASHSEED="0", PYTHONUNBUFFERED="YES")  # as Spark has it
    yield write_python(script, fork_server=forks.address)
    forks.close()


@pytest.fixture(scope="session", autouse=True)
def session_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionZooKeeper]:
    """A `LocalCluster` in a temporary directory takes it instead of one server of its own."""
    with contextlib.ExitStack() as stack:
        session = SessionZooKeeper(tmp_path_factory, stack)

        def ensemble(directory: Path, servers: int) -> ZooKeeperEnsemble | SharedZooKeeper:
            if servers > 1 or not directory.name.startswith("pylog-cluster-"):
                return ZooKeeperEnsemble(directory, servers)
            return SharedZooKeeper(session)

        stack.enter_context(pytest.MonkeyPatch.context()).setattr(local_cluster, "ZooKeeperEnsemble", ensemble)
        yield session


@pytest.fixture
def own_zookeepers(session_zookeeper: SessionZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `LocalCluster` has servers of its own: for tests that stop them."""
    monkeypatch.setattr(local_cluster, "ZooKeeperEnsemble", ZooKeeperEnsemble)


@pytest.fixture(scope="module")
def own_zookeepers_in_module(session_zookeeper: SessionZooKeeper) -> Iterator[None]:
    """As `own_zookeepers`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_cluster, "ZooKeeperEnsemble", ZooKeeperEnsemble)
        yield


@pytest.fixture(scope="module")
def pylog_cluster() -> Iterator[LocalCluster]:
    """As the plugin's, which lasts as long as the session: here another module would pay for brokers that serve nobody
    (each takes a sixtieth of a processor)."""
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def zookeeper_server(session_zookeeper: SessionZooKeeper) -> BundledZooKeeper:
    """A running server. A test that stops or pauses one starts its own instead."""
    return session_zookeeper.server


@pytest.fixture
def zookeeper_connect(session_zookeeper: SessionZooKeeper) -> str:
    """``zookeeper.connect`` with a root of the test's own."""
    return session_zookeeper.new_root()
