"""`pylog` as a process, a hundred times in a test run: forked from one that has imported everything already.

A call of the real script spends a second on imports. Here a server process imports once and forks a child per call,
with the caller's descriptors, environment and directory; from `main()` on the child behaves like the script. Tests of
start and end (broken pipes, signals, the speed of help) start the real script.

    python pylog_forks.py <socket>        the server; it ends when its standard input does
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_MAX_REQUEST_BYTES = 1 << 20
_STARTED = b"started\n"


class PylogForks:
    """The server, as its clients see it. One call at a time."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="pylog-forks-")
        self._address = str(Path(self._directory.name) / "socket")
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == _STARTED

    def run(
        self, arguments: list[str], *, stdin: bytes, environment: dict[str, str], directory: Path, limit_s: float
    ) -> tuple[int, bytes, bytes]:
        """Returns status, standard output and standard error of `pylog arguments…`."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            given.write(stdin)
            given.seek(0)
            connection.settimeout(limit_s)
            connection.connect(self._address)
            request = json.dumps({"arguments": arguments, "environment": environment, "directory": str(directory)})
            files = [given.fileno(), out.fileno(), errors.fileno()]
            socket.send_fds(connection, [request.encode()], files)
            connection.shutdown(socket.SHUT_WR)
            status = int(connection.makefile().readline())
            out.seek(0)
            errors.seek(0)
            return status, out.read(), errors.read()

    def close(self) -> None:
        """Ends the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.kill()
        self._server.wait(30)
        self._directory.cleanup()


def serve(address: str) -> None:
    """Forks a child per connection, with a process that waits for it, until standard input ends."""

    import pyspark_log
    import pyspark_log.cli.app

    for name in ("Admin", "Producer", "Consumer"):
        getattr(pyspark_log, name)
    pyspark_log.cli.app.pylog_command()  # half of what a short command takes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, _STARTED)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                request, files, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
                while part := connection.recv(_MAX_REQUEST_BYTES):
                    request += part
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    _become_pylog(json.loads(request), files)
                for file in files:
                    os.close(file)
                _, status = os.waitpid(pid, 0)
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(BrokenPipeError):  # the caller gave up waiting
                    connection.sendall(f"{code if code >= 0 else 128 - code}\n".encode())


def _become_pylog(request: dict[str, object], files: list[int]) -> None:
    from pyspark_log.cli import main

    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(open(n, mode, closefd=False)) for n, mode in enumerate(("rb", "wb", "wb")))  # noqa: E501, SIM115  # fmt: skip
    environment, arguments, directory = request["environment"], request["arguments"], request["directory"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(directory))
    sys.argv = ["pylog", *arguments]
    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter itself ends
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
