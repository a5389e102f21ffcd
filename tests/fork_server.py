"""Processes of the product, a thousand in a test run, as forks of a process that has imported everything already.

Most of the processor time of a broker that serves a test for a second, or of one call of `pylog`, goes into imports.
Here a server imports once and forks a child per process that is wanted; from then on the child runs what
``python -P -m broker_runtime …`` or ``pylog …`` runs: a process of its own, with its own session, directory,
environment and descriptors. Forks differ from new processes in what they inherit: what was imported, the hash seed
(so there are two servers for brokers), umask and limits of the server's start; and they end without the interpreter's
shutdown. Tests of the start and the end, of memory, of pipes and signals start the real program.

On Linux alone: elsewhere all of them are real.

    python -P fork_server.py <socket> <kind>        the server; it ends, with all children, when its input does

    client ──length, arguments, directory, variables; three descriptors──▶ server: forks
           ◀──────────"<pid>\\n"──────────────────
           ◀──────────"<exit code>\\n"───────────── the child has ended, and is a zombie
           ──end of file──▶                        the server collects it; or kills it, if it still runs
           ◀──end of file──                        nothing of it is left
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from broker_runtime.zookeeper.guarded_process import GuardedProcess

_LENGTH_BYTES: Final = 4
_MAX_REQUEST_BYTES: Final = 1 << 20
_MOST_DESCRIPTORS: Final = 4096
_STARTED: Final = b"started\n"
_BROKER_SERVERS: Final = 2
_LIMIT_S: Final = 60.0
_BROKER: Final = [sys.executable, "-P", "-m", "broker_runtime"]
_OF_A_STREAM: Final = ("encoding", "errors", "line_buffering", "write_through")
_OF_SPARKS_PROCESSES: Final = (
    "pyarrow.compute",
    "pyarrow.flight",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "pyspark_log.spark.source",
)
CAN_FORK: Final = sys.platform == "linux"
_REQUEST_LIMIT_S: Final = 5.0
_DIES_WITH_ITS_PARENT: Final = 1  # PR_SET_PDEATHSIG
_LONGEST_DIRECTORY: Final = 70  # of 108 bytes that a socket's path may have
_EARLY: Final = (
    *("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_"),
    *("GRPC_", "ARROW_", "MIMALLOC_", "OPENBLAS_", "OMP_", "OPENSSL_"),
)
"""Beginnings of variables that are read when a process starts or imports. A fork does not read them again; if they
differ from the server's, the real program is started."""


class ForkServer:
    """The server, as its clients see it. Thread-safe."""

    def __init__(self, kind: str, **variables: str) -> None:
        """``kind``: of `_KINDS`. ``variables``: more of the environment."""
        place = "/tmp" if len(tempfile.gettempdir()) > _LONGEST_DIRECTORY else None
        self._directory = tempfile.TemporaryDirectory(prefix="pylog-forks-", dir=place)
        self.address = str(Path(self._directory.name) / "socket")
        self._server = subprocess.Popen(
            [sys.executable, "-P", __file__, self.address, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        _servers.add(self)
        assert self._server.stdout is not None
        with self._server.stdout, selectors.DefaultSelector() as selector:
            selector.register(self._server.stdout, selectors.EVENT_READ)
            assert selector.select(_LIMIT_S), f"the fork server of the kind {kind} has not started in {_LIMIT_S:g} s"
            assert self._server.stdout.readline() == _STARTED, f"the fork server of the kind {kind} has ended"

    @property
    def is_running(self) -> bool:
        """Whether it lives."""
        return self._server.poll() is None

    def start(
        self,
        arguments: Sequence[str | Path],
        *,
        files: Sequence[int],
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        limit_s: float = _LIMIT_S,
    ) -> ForkedProcess:
        """Starts a process. ``files``: its standard input, output and errors; ``arguments``: of the program."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(limit_s)
            connection.connect(self.address)
            variables = os.environ if environment is None else environment
            fields = [
                str(len(arguments)), *arguments, directory or Path.cwd(), *(f"{k}={v}" for k, v in variables.items())
            ]  # fmt: skip
            request = b"\0".join(map(os.fsencode, fields))
            request = len(request).to_bytes(_LENGTH_BYTES) + request
            sent = socket.send_fds(connection, [request], files)
            connection.sendall(request[sent:])
            return ForkedProcess(connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Ends the server and its children."""
        self._forget_in_fork()
        try:
            self._server.wait(_LIMIT_S)
        finally:
            self._server.kill()
            self._server.wait(_LIMIT_S)
            self._directory.cleanup()

    def _forget_in_fork(self) -> None:
        """A forked copy of this process must not keep the server alive after this one's death."""
        assert self._server.stdin is not None
        self._server.stdin.close()


class ForkedProcess:
    """A child of a `ForkServer`; the same to its users as a `GuardedProcess`. Thread-safe.

    It ends when this object is collected, or this process dies, because the connection then ends.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._code: int | None = None
        _forked.add(self)
        self.pid = int(_line(connection))
        connection.settimeout(None)

    def poll(self) -> int | None:
        """The exit code (negative: the signal) once it has ended, otherwise None."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> int | None:
        """As `poll`, but waits for the end up to ``timeout_s``."""
        if self._code is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    return None
            with self._lock:
                self._collect()
        return self._code

    def _collect(self) -> None:
        """Takes what the server says of the end, once it does."""
        if self._code is None:
            self._connection.settimeout(_LIMIT_S)
            code = int(_line(self._connection))
            self._connection.shutdown(socket.SHUT_WR)
            assert self._connection.recv(1) == b""
            self._code = code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            with self._lock:  # while it is held nobody collects, so at the worst there is a zombie of that number
                if self._code is None:
                    os.kill(self.pid, number)

    def has_stopped(self) -> bool:
        """Whether SIGSTOP has reached it, or it has ended."""
        if self.poll() is not None:
            return True
        states = [_state(task) for task in Path(f"/proc/{self.pid}/task").iterdir()]
        return all(state in "TtZX" for state in states)

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL if that has not ended it within ``timeout_s``. Returns the exit code."""
        self.signal(signal.SIGTERM)
        code = self.wait(timeout_s)
        if code is None:
            self.signal(signal.SIGKILL)
            code = self.wait(_LIMIT_S)
            if code is None:
                raise TimeoutError(f"process {self.pid} did not end within {_LIMIT_S:g} s of SIGKILL")
        return code

    def _forget_in_fork(self) -> None:
        self._connection.close()


class BrokerForks:
    """Starts brokers as `GuardedProcess` does, from two servers in turn: each has a hash seed of its own, so brokers
    of one cluster, and a broker before and after its restart, order sets differently, as real ones do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: list[ForkServer] = []
        self._environment = _early_variables(os.environ)

    def start(
        self,
        command: Sequence[str | Path],
        *,
        output: Path,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> ForkedProcess | GuardedProcess:
        """Starts the real program instead if the command is no broker's, or if a variable of `_EARLY` differs from
        the session's."""
        program, arguments = list(command[: len(_BROKER)]), command[len(_BROKER) :]
        early = _early_variables(os.environ if environment is None else environment)
        if not CAN_FORK or program != _BROKER or inherited or early != self._environment:
            return GuardedProcess(
                command, output=output, directory=directory, environment=environment, inherited=inherited
            )
        with self._lock:
            self._servers = [server for server in self._servers if server.is_running]
            server = ForkServer("broker") if len(self._servers) < _BROKER_SERVERS else self._servers.pop(0)
            self._servers.append(server)
        with Path(os.devnull).open("rb") as nothing, output.open("ab") as file:
            files = [nothing.fileno(), file.fileno(), file.fileno()]
            return server.start(arguments, files=files, environment=environment, directory=directory)

    def close(self) -> None:
        """Ends the servers and their brokers."""
        while self._servers:
            self._servers.pop().close()


_forked: weakref.WeakSet[ForkedProcess] = weakref.WeakSet()
_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()


def _forget_all_in_fork() -> None:
    for each in [*_forked, *_servers]:
        each._forget_in_fork()


os.register_at_fork(after_in_child=_forget_all_in_fork)


def _early_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_EARLY)}


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"  # that thread ended while we looked


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the fork server ended")
        line += byte
    return line


_libc: Final = ctypes.CDLL(None)


class _Server:
    """Forks a child per connection until standard input ends."""

    def __init__(self, listener: socket.socket, become: Callable[[list[str]], None], *, have_sessions: bool) -> None:
        """``have_sessions``: whether each child has a session of its own, as a guarded process has."""
        self._listener = listener
        self._become = become
        self._have_sessions = have_sessions
        self._children: dict[socket.socket, int] = {}
        self._ended: set[int] = set()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._selector = selectors.DefaultSelector()
        for file in (listener, sys.stdin.fileno(), self._woken):
            self._selector.register(file, selectors.EVENT_READ)

    def serve(self) -> None:
        signal.set_wakeup_fd(self._waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            if sys.stdin.fileno() in ready:
                break
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._report_the_ended()
            for file in ready:
                if file is self._listener:
                    self._start(self._listener.accept()[0])
                elif isinstance(file, socket.socket):
                    self._collect(file)
        for connection in list(self._children):
            self._collect(connection)

    def _start(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_LIMIT_S)  # all others wait meanwhile
        files: list[int] = []
        try:
            request, files, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
            while len(request) < _LENGTH_BYTES + int.from_bytes(request[:_LENGTH_BYTES]):
                part = connection.recv(_MAX_REQUEST_BYTES)
                if not part:
                    raise ConnectionError
                request += part
            server, pid = os.getpid(), os.fork()
            if pid == 0:
                self._become_the_program(request[_LENGTH_BYTES:], files, server)
            self._children[connection] = pid
            self._selector.register(connection, selectors.EVENT_READ)
            connection.sendall(b"%d\n" % pid)
        except OSError:  # the client has given up: its end of file is seen at once
            if connection not in self._children:
                connection.close()
        finally:
            for file in files:
                os.close(file)

    def _report_the_ended(self) -> None:
        for connection, pid in self._children.items():
            if pid in self._ended:
                continue
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                self._ended.add(pid)
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                with contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % code)

    def _collect(self, connection: socket.socket) -> None:
        pid = self._children.pop(connection)
        self._ended.discard(pid)
        os.kill(pid, signal.SIGKILL)  # a zombie does not mind
        os.waitpid(pid, 0)
        self._selector.unregister(connection)
        connection.close()

    def _become_the_program(self, request: bytes, files: list[int], server: int) -> NoReturn:
        status = 1
        try:
            _libc.prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(status)
            if self._have_sessions:
                os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, file in enumerate(files):
                os.dup2(file, number)
            os.closerange(3, _MOST_DESCRIPTORS)
            count, *fields = map(os.fsdecode, request.split(b"\0"))
            arguments, directory, variables = fields[: int(count)], fields[int(count)], fields[int(count) + 1 :]
            os.environ.clear()
            os.environ.update(dict(variable.split("=", 1) for variable in variables))
            time.tzset()
            os.chdir(directory)
            for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
                of_server = getattr(sys, name)
                kept = {each: getattr(of_server, each) for each in _OF_A_STREAM}
                file = open(number, mode, 0 if kept["write_through"] else -1, closefd=False)  # noqa: SIM115
                setattr(sys, name, io.TextIOWrapper(file, **kept))
            try:
                self._become(arguments)
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
                if not isinstance(ended.code, int | None):
                    print(ended.code, file=sys.stderr)
        except BaseException:  # noqa: BLE001 - as the interpreter itself ends
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _broker() -> Callable[[list[str]], None]:
    from broker_runtime import __main__ as program
    from broker_runtime import memory
    from broker_runtime.contract.settings import resolve

    sys.meta_path.insert(0, program._WithoutPandas)
    limit = memory.limit_bytes(resolve("broker", {"broker.id": "1", "log.dirs": "/nowhere"}))
    memory.bound_arrow(limit)

    importlib.import_module("broker_runtime.broker")
    del sys.modules["broker_runtime.__main__"]  # it is run, and so must not be there yet

    def become(arguments: list[str]) -> None:
        def bound_arrow(wanted: int) -> bool:
            if wanted != limit:  # Arrow's arena is made when it is imported
                os.execv(sys.executable, [*_BROKER, *arguments])
            os.environ.update(memory.arrow_environment(limit))
            return True

        memory.bound_arrow = bound_arrow
        sys.argv = ["broker_runtime", *arguments]
        runpy.run_module("broker_runtime", run_name="__main__", alter_sys=True)

    return become


def _spark() -> Callable[[list[str]], None]:
    from tests.spark_python import SPARKS_PROGRAMS

    for name in _OF_SPARKS_PROCESSES:
        importlib.import_module(name)

    base = list(sys.path)
    for program in SPARKS_PROGRAMS:  # they are run, and so must not be there yet
        sys.modules.pop(program, None)

    def become(arguments: list[str]) -> None:
        program, *others = arguments
        gc.unfreeze()  # the product itself decides what is frozen here
        path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        sys.path[:] = [str(Path.cwd()), *path, *(each for each in base if each not in path)]
        sys.argv = [program, *others]
        runpy.run_module(program, run_name="__main__", alter_sys=True)

    return become


def _program() -> Callable[[list[str]], None]:
    """Nothing is imported before: for the tests of the server itself."""

    def become(arguments: list[str]) -> None:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")

    return become


def _pylog() -> Callable[[list[str]], None]:
    import pyspark_log
    import pyspark_log.cli.app

    for name in ("Admin", "Producer", "Consumer"):
        getattr(pyspark_log, name)
    pyspark_log.cli.app.pylog_command()  # half of what a short command takes

    def become(arguments: list[str]) -> None:
        sys.argv = ["pylog", *arguments]
        pyspark_log.cli.main()

    return become


def _serving() -> Callable[[list[str]], None]:
    from tests.integration.server import serving

    for name in ("broker_runtime.server.flight", "tests.integration.server.serving_groups"):
        importlib.import_module(name)
    return serving.main


_KINDS: Final = {"broker": _broker, "pylog": _pylog, "spark": _spark, "serving": _serving, "program": _program}


def _main() -> None:
    address, kind = sys.argv[1:]
    become = _KINDS[kind]()
    gc.collect()
    gc.freeze()  # or each child's collector would visit, and so copy, all of it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, _STARTED)
        _Server(listener, become, have_sessions=kind != "spark").serve()  # Spark's daemon makes its own process group


if __name__ == "__main__":
    _main()
