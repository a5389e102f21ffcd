"""The Python that Spark starts for its planners, its source processes and its workers, in the tests.

Spark has them import pyspark from a zip, where nothing compiled is kept: 0.36 s of a core for each process. And most
of what is left goes into imports, too. So here `PYSPARK_PYTHON` is a script that takes the installed pyspark, and has
a `ForkServer` start the process; this file, run as a program, stands between Spark and the server:

    JVM ── starts, signals, kills ──▶ this program ── over a socket, with its descriptors ──▶ fork server: the process

What it cannot have forked (another program, a user's own PYTHONPATH), it becomes itself. It is started hundreds of
times: as a program it imports almost nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes longer to import than all that is done here
if TYPE_CHECKING:
    from _socket import socket
    from pathlib import Path

_SCRIPT = """#!/bin/sh
export PYTHONPATH="${PYTHONPATH##*pyspark.zip:}"
exec %s "$@"
"""
_LIMIT_S = 60.0
SPARKS_PROGRAMS = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")


def write_python(path: Path, python: Path | str = sys.executable, *, fork_server: str | None = None) -> Path:
    """Writes the script, for that Python. ``fork_server``: the address of one of the kind ``spark``, for this Python;
    without it, only the zip is left out."""
    import shlex  # the program does without

    command = [python]
    if fork_server is not None:
        command = [sys.executable, "-I", "-S", __file__, sys.executable, fork_server]
    path.write_text(_SCRIPT % shlex.join(map(str, command)))
    path.chmod(0o755)
    return path


def _main() -> None:
    python, address, *arguments = sys.argv[1:]
    of_spark = os.path.dirname(os.path.dirname(python)) + "/lib/"  # noqa: PTH120 - pathlib is not built in
    path = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    is_sparks = arguments[:1] == ["-m"] and arguments[1:2] and arguments[1] in SPARKS_PROGRAMS
    if not is_sparks or not all(each.startswith(of_spark) and "/pyspark/" in each for each in path):
        os.execv(python, [python, *arguments])
    os._exit(_forked(address, arguments[1:]))


def _forked(address: str, arguments: list[str]) -> int:
    import _signal  # what the modules socket, signal and json import takes longer than all that is done here
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(_LIMIT_S)
    connection.connect(address)
    variables = [f"{name}={value}" for name, value in os.environ.items()]
    fields = [str(len(arguments)), *arguments, os.getcwd(), *variables]  # noqa: PTH109 - pathlib is not built in
    request = b"\0".join(map(os.fsencode, fields))
    request = len(request).to_bytes(4) + request
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    sent = connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    connection.sendall(request[sent:])
    pid = int(_line(connection))
    connection.settimeout(None)
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(_line(connection))
    if code < 0:
        if -code not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _line(connection: socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            os._exit(1)  # the fork server ended, and its children with it
        line += byte
    return line


if __name__ == "__main__":
    _main()
