"""The ZooKeeper in PySpark's jars as a child process: one server, or one member of an ensemble.

PySpark's wheel has a whole ZooKeeper server, so this costs no download. Rules: it listens on the address it was given
(127.0.0.1 by default) and nowhere else; every commit is fsynced (ZooKeeper's default is left alone); the
process dies with its parent, however that dies; every wait has a limit. The JVM has the options in the variable
``SERVER_JVMFLAGS`` besides its own, as ZooKeeper's own scripts read it. Its files, all below one directory:

    lock                         held by the JVM itself: two servers never share one directory
    zoo.cfg, log4j2.properties   written at each start
    myid                         the server's number, for an ensemble
    data/                        snapshots and transaction logs, purged hourly down to three snapshots
    zookeeper.log (+ .1 to .3)   its log, 10 MiB each; zookeeper.out: what the JVM itself says
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import DirectoryLockedError, PortInUseError, SetupError, ZooKeeperUnavailableError
from broker_runtime.contract.settings import Address
from broker_runtime.contract.waiting import Deadline
from broker_runtime.ports import choose_port, is_free
from broker_runtime.zookeeper.guarded_process import GuardedProcess
from broker_runtime.zookeeper.java import find_java

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 10.0
TICK_MS: Final = 500  # the most by which a session ends late
SESSION_LIMITS_MS: Final = (2_000, 60_000)

_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS: Final = (
    "zookeeper-[0-9]*",
    "zookeeper-jute-*",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j*-impl-*",
    "metrics-core-*",
    "snappy-java-*",
    "netty-buffer-*",
    "netty-codec-[0-9b]*",
    "netty-common-*",
    "netty-handler-[0-9]*",
    "netty-resolver-*",
    "netty-transport-[0-9]*",
    "netty-transport-classes-epoll-*",
    "netty-transport-native-unix-common-*",
)
_LOGGING: Final = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""
_OPTIONS_VARIABLE: Final = "SERVER_JVMFLAGS"
_TELLING: Final = (" ERROR ", "Exception", "Error", "Unrecognized")
_UTF_8: Final = {"LC_ALL": "C.UTF-8"}
_PORT_ATTEMPTS: Final = 5
_PREDECESSOR_LIMIT_S: Final = 3.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleMember:
    """One server of an ensemble: its number, host, and the ports its peers use."""

    server_id: int
    host: str
    quorum_port: int
    election_port: int


class BundledZooKeeper:
    """One server. `start` returns when it serves; `stop`, or the death of this process, ends it.

    ``port`` 0 takes a free one, kept over restarts of this object. With an ``ensemble``, `start` returns when the
    server answers, which is before a majority is there (`wait_until_serving`). Not thread-safe.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        server_id: int = 1,
        ensemble: Sequence[EnsembleMember] = (),
        environment: Mapping[str, str] | None = None,
        more_settings: Sequence[str] = (),
    ) -> None:
        """``more_settings``: further lines of its ``zoo.cfg``."""
        self._directory = directory.absolute()
        self._host = host
        self._port = port
        self._any_port = port == 0
        self._server_id = server_id
        self._ensemble = tuple(ensemble)
        self._environment = environment
        self._more_settings = tuple(more_settings)
        self._process: GuardedProcess | None = None

    @property
    def address(self) -> Address:
        """Where it serves clients; the port is known after the first `start`."""
        return Address(self._host, self._port)

    @property
    def connect_string(self) -> str:
        """``host:port`` for `zookeeper.connect`, without a chroot."""
        return str(self.address)

    @property
    def log_file(self) -> Path:
        """The server's own log."""
        return self._directory / "zookeeper.log"

    @property
    def pid(self) -> int:
        """The JVM's process number."""
        assert self._process is not None, "start() was not called"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = START_LIMIT_S) -> None:
        """Starts the server and waits until it answers.

        Raises `JavaNotFoundError`; `DirectoryLockedError` if another server runs on the directory; `SetupError` if
        PySpark's jars are missing or the server ends at once (with the end of its log); `PortInUseError`;
        `ZooKeeperUnavailableError` if it does not answer in time. After an error nothing is left running.
        """
        assert not self.is_running, "is running"
        java = find_java(self._environment)
        jars = find_jars()
        deadline = Deadline(timeout_s)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if self._any_port and self._port == 0:
                self._port = choose_port(self._host)
            elif not is_free(self._host, self._port):
                raise PortInUseError(f"{self.address} is taken, so ZooKeeper cannot start there. Choose another port")
            lock = self._lock()
            try:
                self._write_files()
                self._process = GuardedProcess(
                    self._command(java, jars),
                    output=self._directory / "zookeeper.out",
                    directory=self._directory,
                    # Or Java cannot open anything below a directory whose name is not ASCII.
                    environment={**(os.environ if self._environment is None else self._environment), **_UTF_8},
                    inherited=(lock,),
                )
            finally:
                os.close(lock)
            try:
                self._wait_until_answering(deadline)
            except SetupError:
                # Between the choice of a free port and the server's bind another process may have taken it.
                if not (self._any_port and attempt < _PORT_ATTEMPTS and not is_free(self._host, self._port)):
                    raise
                self._port = 0
            except BaseException:
                self.stop()
                raise
            else:
                return

    def wait_until_serving(self, timeout_s: float = START_LIMIT_S) -> None:
        """Returns when requests are served (an ensemble: with a majority). Raises `ZooKeeperUnavailableError`."""
        deadline = Deadline(timeout_s)
        while "Mode:" not in four_letters(self.address, "srvr"):
            if deadline.expired or not self.is_running:
                raise ZooKeeperUnavailableError(f"ZooKeeper at {self.address} does not serve after {timeout_s:g} s")
            deadline.sleep(_LOOK_S)

    def stop(self, timeout_s: float = STOP_LIMIT_S) -> None:
        """SIGTERM, then SIGKILL after ``timeout_s``. Does nothing if the server is not running."""
        if self._process is not None:
            self._process.stop(timeout_s)

    def kill(self) -> None:
        """SIGKILL at once; waits until the process has ended."""
        if self._process is not None:
            self._process.stop(0.0)

    def __enter__(self) -> BundledZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_answering(self, deadline: Deadline) -> None:
        assert self._process is not None
        while True:
            ended = self._process.poll()
            if ended is not None:
                raise SetupError(f"ZooKeeper ended at once (exit {ended}). Its last words: {self._last_words()}")
            answer = four_letters(self.address, "srvr")
            if "Mode:" in answer or (self._ensemble and "not currently serving" in answer):
                return
            if deadline.expired:
                raise ZooKeeperUnavailableError(
                    f"ZooKeeper at {self.address} did not answer in time; see {self.log_file}"
                )
            deadline.sleep(_LOOK_S)

    def _command(self, java: Path, jars: Sequence[Path]) -> list[str | Path]:
        return [
            java.absolute(),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            # A server of a small cluster waits for its disk; optimised code would first pay in servers of thousands.
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            "-Dlog4j2.configurationFile=log4j2.properties",
            *self._options_of_the_user(),
            "-cp",
            os.pathsep.join(str(jar.absolute()) for jar in jars),
            _MAIN_CLASS,
            "zoo.cfg",
        ]

    def _options_of_the_user(self) -> list[str]:
        given = (os.environ if self._environment is None else self._environment).get(_OPTIONS_VARIABLE, "")
        try:
            return shlex.split(given)
        except ValueError as error:
            raise SetupError(f"{_OPTIONS_VARIABLE}={given!r} is no list of options of Java: {error}") from None

    def _lock(self) -> int:
        """The lock file, locked, for the JVM to inherit; the lock lasts as long as any process has it open."""
        self._directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = Deadline(_PREDECESSOR_LIMIT_S)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                # The server of a killed parent needs a moment to end.
                if deadline.expired:
                    os.close(lock)
                    raise DirectoryLockedError(f"Another ZooKeeper runs on {self._directory}. Stop it first") from None
                deadline.sleep(_LOOK_S)
            else:
                return lock

    def _write_files(self) -> None:
        """All paths in them are relative to the server's directory: Java reads properties as ISO 8859-1, with ``\\`` as
        escape, and would take another directory."""
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        lines = [
            "dataDir=./data",
            f"clientPort={self._port}",
            f"clientPortAddress={self._host}",
            f"tickTime={TICK_MS}",
            f"minSessionTimeout={SESSION_LIMITS_MS[0]}",
            f"maxSessionTimeout={SESSION_LIMITS_MS[1]}",
            f"initLimit={20_000 // TICK_MS}",
            f"syncLimit={10_000 // TICK_MS}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        lines += [
            f"server.{member.server_id}={member.host}:{member.quorum_port}:{member.election_port}"
            for member in self._ensemble
        ]
        lines += self._more_settings
        if self._ensemble:
            (data / "myid").write_text(f"{self._server_id}\n")
        (self._directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
        (self._directory / "log4j2.properties").write_text(_LOGGING.format(log=self.log_file.name))

    def _last_words(self) -> str:
        for name in ("zookeeper.out", "zookeeper.log"):
            path = self._directory / name
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            telling = [line for line in lines if any(word in line for word in _TELLING)] or lines
            if telling:
                return " | ".join(telling[-3:])[:1_000]
        return "none"


def find_jars() -> list[Path]:
    """ZooKeeper's jars and those they need, from PySpark's. pyspark itself is not imported. Raises `SetupError`."""
    spec = importlib.util.find_spec("pyspark")
    where = None if spec is None or spec.origin is None else Path(spec.origin).parent / "jars"
    found = [] if where is None else [jar for pattern in _JARS for jar in sorted(where.glob(f"{pattern}.jar"))]
    if not any(jar.name.startswith("zookeeper-") for jar in found):
        raise SetupError(
            f"No ZooKeeper in {where or 'PySpark, which is not installed'}. Install the full PySpark "
            "(pip install pyspark), or name a running ZooKeeper in zookeeper.connect"
        )
    return found


def four_letters(address: Address, word: str, timeout_s: float = 2.0) -> str:
    """A server's answer to one of its four-letter words, "" if it gives none in time."""
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(word.encode())
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return ""
    return answer.decode(errors="replace")
