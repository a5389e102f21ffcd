"""What the tests fork is what users start: compared with the real program, and ended as one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import BrokerForks, ForkedProcess, ForkServer
from tests.spark_python import write_python
from tests.waiting import wait_until

LIMIT_S = 60.0
SHOWS_ITSELF = """
import gc, json, os, signal, sys, threading, time
found = {
    "arguments": sys.argv[1:], "directory": os.getcwd(), "environment": {**os.environ},
    "leads its session": os.getsid(0) == os.getpid(), "threads": threading.active_count(),
    "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    "signals": {number: str(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "zone": time.tzname, "name": __name__,
    "streams": [stream.encoding for stream in (sys.stdin, sys.stdout, sys.stderr)], "input": sys.stdin.read(),
}
print(json.dumps(found))
"""


def run(
    server: ForkServer, *arguments: str | Path, given: bytes = b"", **keywords: object
) -> subprocess.CompletedProcess[str]:
    """A fork's status and output."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        stdin.write(given)
        stdin.seek(0)
        process = server.start(arguments, files=[stdin.fileno(), out.fileno(), errors.fileno()], **keywords)
        status = process.wait(LIMIT_S)
        assert status is not None
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read().decode(), errors.read().decode())


@contextlib.contextmanager
def serving(kind: str) -> Iterator[ForkServer]:
    server = ForkServer(kind)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkServer]:
    with serving("program") as server:
        yield server


@pytest.fixture
def endless(programs: ForkServer, tmp_path: Path) -> ForkedProcess:
    """A process that runs until somebody ends it."""
    program = tmp_path / "endless.py"
    program.write_text("import sys, time\nprint('runs', flush=True)\ntime.sleep(600)")
    output = tmp_path / "output"
    with Path(os.devnull).open("rb") as nothing, output.open("wb") as file:
        process = programs.start([program], files=[nothing.fileno(), file.fileno(), file.fileno()])
    wait_until(lambda: output.read_text() == "runs\n", "it runs", LIMIT_S)
    return process


@contextlib.contextmanager
def fork_of_this_process() -> Iterator[None]:
    """A fork that does nothing, and lives until the block ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def started(server: ForkServer, program: Path) -> ForkedProcess:
    """A process that runs for ten minutes."""
    program.write_text("import time\ntime.sleep(600)")
    with Path(os.devnull).open("r+b") as nothing:
        return server.start([program], files=[nothing.fileno()] * 3)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_fork_has_what_a_new_process_has(programs: ForkServer, tmp_path: Path) -> None:
    """Arguments, directory, environment, descriptors, signals, session, threads, time zone and input."""
    program = tmp_path / "program.py"
    program.write_text(SHOWS_ITSELF)
    words = ["", "a b", "é\n", "\udcff"]
    environment = {**os.environ, "EMPTY": "", "LINES": "a\nb=c", "TZ": "Asia/Tokyo"}
    with (tmp_path / "is inherited by nobody").open("w") as file:
        os.set_inheritable(file.fileno(), False)
        forked = run(programs, program, *words, given=b"given", environment=environment, directory=tmp_path)
    real = subprocess.run(
        [sys.executable, program, *words], env=environment, cwd=tmp_path, input="given", capture_output=True, text=True,
        timeout=LIMIT_S, check=True, start_new_session=True,
    )  # fmt: skip
    assert (forked.returncode, forked.stderr) == (0, "")
    assert json.loads(forked.stdout) == json.loads(real.stdout)
    assert json.loads(forked.stdout)["descriptors"] == ["0", "1", "2"]
    assert json.loads(forked.stdout)["leads its session"]


@pytest.mark.parametrize(
    "program",
    ["", "raise SystemExit", "raise SystemExit(3)", "raise SystemExit('said')", "1 / 0", "raise KeyboardInterrupt",
     "import os; os._exit(7)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
     "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
)  # fmt: skip
def test_fork_ends_as_a_new_process_ends(programs: ForkServer, tmp_path: Path, program: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    forked = run(programs, file)
    real = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    # An interpreter that is interrupted ends by the signal itself.
    assert forked.returncode == (1 if "KeyboardInterrupt" in program else real.returncode)
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    "arguments", [["--version"], ["topic", "--no-such-option"], ["topic", "list", "-b", "nowhere"]]
)
def test_forked_pylog_is_pylog(arguments: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "120"}
    with serving("pylog") as server:
        forked = run(server, *arguments, environment=environment)
    real = subprocess.run(
        [Path(sys.executable).with_name("pylog"), *arguments], env=environment, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)


@pytest.mark.parametrize(
    "settings",
    [None, '"broker.id" = -1',
     '"broker.id" = 1\n"log.dirs" = "{directory}"\n"zookeeper.connect" = "127.0.0.1:1"\n"memory.max.bytes" = "900MiB"'],
    ids=["no file", "wrong number", "other memory"],
)  # fmt: skip
def test_broker_that_cannot_start_ends_the_same(tmp_path: Path, settings: str | None) -> None:
    """With another memory limit it becomes the real program, as Arrow's arena is made when it is imported."""
    config = tmp_path / "broker.toml"
    if settings is not None:
        config.write_text(settings.replace("{directory}", str(tmp_path / "log")))
    command = [sys.executable, "-P", "-m", "broker_runtime", "--config", config]
    forks = BrokerForks()
    try:
        process = forks.start(command, output=tmp_path / "output")
        assert isinstance(process, ForkedProcess)
        if settings is not None and "memory" in settings:
            program = Path(f"/proc/{process.pid}/cmdline")
            wait_until(lambda: b"\0broker_runtime\0" in program.read_bytes(), "it is the real program", LIMIT_S)
            process.stop(LIMIT_S)
        else:
            real = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert process.wait(LIMIT_S) == real.returncode == 1
            assert (tmp_path / "output").read_text() == real.stdout + real.stderr
    finally:
        forks.close()


def test_broker_with_other_variables_of_the_interpreter_is_no_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork would not heed them: among others the path on which another version is."""
    forks = BrokerForks()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-P", "-m", "broker_runtime", "--config", tmp_path / "none"]
    process = forks.start(command, output=tmp_path / "output")
    assert not isinstance(process, ForkedProcess)
    assert process.wait(LIMIT_S) == 1


def test_fork_is_stopped_goes_on_and_is_killed(endless: ForkedProcess) -> None:
    assert endless.poll() is None
    assert not endless.has_stopped()
    endless.signal(signal.SIGSTOP)
    wait_until(endless.has_stopped, "it has stopped", LIMIT_S)
    endless.signal(signal.SIGCONT)
    wait_until(lambda: not endless.has_stopped(), "it goes on", LIMIT_S)
    assert endless.stop(LIMIT_S) == -signal.SIGTERM
    assert not is_there(endless.pid), "what has ended is collected before its end is reported"
    endless.signal(signal.SIGKILL)  # of nobody
    assert endless.wait(0) == -signal.SIGTERM


def test_fork_that_ignores_sigterm_is_killed(programs: ForkServer, tmp_path: Path) -> None:
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('runs', flush=True)\ntime.sleep(600)"
    )
    with Path(os.devnull).open("rb") as nothing, output.open("wb") as file:
        process = programs.start([program], files=[nothing.fileno(), file.fileno(), file.fileno()])
    wait_until(lambda: output.read_text() == "runs\n", "it runs", LIMIT_S)
    assert process.stop(0.1) == -signal.SIGKILL


def test_fork_ends_with_the_one_who_started_it(programs: ForkServer, endless: ForkedProcess) -> None:
    """Also while a fork of that one, which has inherited the connection, lives on."""
    with fork_of_this_process():
        endless._connection.close()
        wait_until(lambda: not is_there(endless.pid), "it has ended", LIMIT_S)


def test_forks_end_with_their_server(tmp_path: Path) -> None:
    with serving("program") as server:
        processes = [started(server, tmp_path / "program.py") for _ in range(3)]
        assert all(is_there(process.pid) for process in processes)
    assert not any(is_there(process.pid) for process in processes)


def test_client_that_leaves_in_the_middle_of_a_request_harms_nobody(programs: ForkServer, tmp_path: Path) -> None:
    for request in (b"", b"\0", b"\0\0\1\0abc"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(programs.address)
            connection.sendall(request)
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(5)")
    assert run(programs, program).returncode == 5


def test_forks_end_with_a_server_that_was_killed(tmp_path: Path) -> None:
    with serving("program") as server:
        process = started(server, tmp_path / "program.py")
        server._server.kill()
        wait_until(lambda: not is_there(process.pid) or is_zombie(process.pid), "it has ended", LIMIT_S)
        assert not server.is_running


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_server_ends_though_a_fork_of_its_client_lives_on(tmp_path: Path) -> None:
    """And so do the processes of that server."""
    with serving("program") as server:
        process = started(server, tmp_path / "program.py")
        with fork_of_this_process():
            server.close()
            assert server._server.returncode == 0, "it ended by itself"
            assert not is_there(process.pid)


def test_brokers_have_two_hash_seeds_in_turn_and_servers_are_replaced(tmp_path: Path) -> None:
    """What must agree between brokers, or outlast a restart, may not come from `hash`."""
    forks = BrokerForks()
    command = [sys.executable, "-P", "-m", "broker_runtime", "--config", tmp_path / "none"]

    def start() -> None:
        process = forks.start(command, output=tmp_path / "output")
        assert isinstance(process, ForkedProcess)
        assert process.wait(LIMIT_S) == 1

    try:
        start()
        start()
        first, second = forks._servers
        assert first is not second
        start()
        assert forks._servers == [second, first]
        second._server.kill()
        second._server.wait(LIMIT_S)
        start()
        assert first in forks._servers
        assert second not in forks._servers
        second.close()
    finally:
        forks.close()


def test_servers_do_not_share_a_hash_seed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print(hash('text'))")
    with serving("program") as one, serving("program") as two:
        found = [run(server, program).stdout for server in (one, one, two)]
    assert found[0] == found[1] != found[2]


def test_output_is_not_kept_back_where_it_must_not_be(tmp_path: Path) -> None:
    """Spark's workers end without flushing."""
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nprint('out')\nprint('error', file=sys.stderr)\nos._exit(0)")
    server = ForkServer("program", PYTHONUNBUFFERED="YES")
    try:
        done = run(server, program)
    finally:
        server.close()
    assert (done.stdout, done.stderr) == ("out\n", "error\n")


def test_broken_requests_leave_no_descriptor_behind(programs: ForkServer, tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{programs._server.pid}/fd").iterdir()))

    program = tmp_path / "program.py"
    program.write_text("")
    assert run(programs, program).returncode == 0
    before = descriptors()
    with Path(os.devnull).open("rb") as nothing:
        for _ in range(5):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(programs.address)
                socket.send_fds(connection, [b"\0\0\1\0abc"], [nothing.fileno()] * 3)
    assert run(programs, program).returncode == 0
    wait_until(lambda: descriptors() <= before, "all are closed", LIMIT_S)


def test_server_has_a_short_address_in_a_long_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    Path(tempfile.gettempdir()).mkdir()
    with serving("program") as server:
        assert len(server.address) < 100


@pytest.fixture(scope="module")
def daemon(forked_python: Path) -> list[str | Path]:
    """How Spark starts the daemon of its workers."""
    return [forked_python, "-m", "pyspark.daemon", "pyspark.worker"]


@contextlib.contextmanager
def running(command: list[str | Path], **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The daemon, and the port on which it serves. ``variables``: more of its environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            (port,) = struct.unpack("!i", process.stdout.read(4))
            yield process, port
        finally:
            process.kill()


def is_served(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def test_sparks_daemon_ends_when_its_input_does(daemon: list[str | Path]) -> None:
    with running(daemon) as (process, port):
        assert is_served(port)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 1  # so does Spark's own
        assert not is_served(port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_sparks_daemon_ends_with_the_process_that_spark_knows(daemon: list[str | Path], number: signal.Signals) -> None:
    """Spark sends its signals to that one."""
    with running(daemon) as (process, port):
        process.send_signal(number)
        assert process.wait(LIMIT_S) in (-number, 1)  # 1: it met SIGTERM in order
        wait_until(lambda: not is_served(port), "the daemon has ended", LIMIT_S)


def test_sparks_daemon_ends_in_order_when_it_is_told_to(daemon: list[str | Path]) -> None:
    """The process that Spark knows passes SIGTERM on, and ends as the daemon then does."""
    with running(daemon) as (process, port):
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
            connection.settimeout(LIMIT_S)
            assert connection.recv(4)  # of a worker: so the daemon has come to where it handles signals
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 1
        assert not is_served(port)


def test_daemon_is_forked_unless_the_user_has_a_path_of_their_own(daemon: list[str | Path], tmp_path: Path) -> None:
    """What was imported before may differ from what that path has."""
    import pyspark

    of_spark = str(Path(pyspark.__file__).parent / "python")
    for path, is_forked in ((of_spark, True), (str(tmp_path), False), (f"{of_spark}:{tmp_path}", False)):
        with running(daemon, PYTHONPATH=path) as (process, port):
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert (b"spark_python.py" in command) == is_forked, path
            assert is_served(port)


def test_process_that_spark_knows_ends_as_the_daemon_did(daemon: list[str | Path]) -> None:
    """Killed, say, by the kernel as memory ran out."""
    with running(daemon) as (process, _):
        (forked,) = [
            int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and leads_a_group(path)
        ]
        os.kill(forked, signal.SIGKILL)
        assert process.wait(LIMIT_S) == -signal.SIGKILL


def leads_a_group(directory: Path) -> bool:
    """Whether a process is a fork of this process' server for Spark, and leads a process group, as the daemon does."""
    with contextlib.suppress(OSError):
        parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        command = Path(f"/proc/{parent}/cmdline").read_bytes()
        own = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        return own and command.endswith(b"\0spark\0") and os.getpgid(int(directory.name)) == int(directory.name)
    return False


def test_python_for_spark_is_python_for_everything_else(daemon: list[str | Path], tmp_path: Path) -> None:
    """And with a path of the user's own it forks nothing. Without the zip, pyspark is the installed one."""
    (tmp_path / "of_the_user.py").write_text("print('imported')")
    code = "import os, pyspark, of_the_user; print(os.path.dirname(pyspark.__file__)); raise SystemExit(4)"
    zipped = f"{tmp_path}/lib/pyspark.zip:{tmp_path}"
    done = subprocess.run(
        [daemon[0], "-c", code], env={**os.environ, "PYTHONPATH": zipped}, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    import pyspark

    assert done.stdout.split() == ["imported", str(Path(pyspark.__file__).parent)], done.stderr
    assert done.returncode == 4
    alone = write_python(tmp_path / "python3")
    assert subprocess.run([alone, "-c", "raise SystemExit(6)"], timeout=LIMIT_S, check=False).returncode == 6
