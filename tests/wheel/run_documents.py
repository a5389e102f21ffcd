"""Runs the blocks of README and of the documentation's pages as printed, in order: whatever a newcomer types works.

    python tests/wheel/run_documents.py dist/pyspark_log-0.1.0-py3-none-any.whl

README begins in an empty directory, and so does the page for newcomers, in which all other pages go on. The first block
creates the virtual environment, where the wheel stands in for the clone. All other differences from the printed text
are in `SUBSTITUTIONS`, `PORTS` and `FILES`, below, or set by the environment (`PYLOG_PORT`, `PYLOG_BOOTSTRAP_SERVERS`,
`HOME`), so that nothing meets another cluster on this machine. Servers run in the background until the end, as in
terminals of their own. A block that fails, or that nothing here knows how to run, fails the whole run.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # it is run as a program, by its path

from documents import BEGINNINGS, Block, blocks, documents, shell_lines

LIMIT_S = 600
START_LIMIT_S = 60
STRANGERS = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")

# What replaces a word of a printed command here. With compiled modules Spark's Python processes start in half the time.
SUBSTITUTIONS = {
    "pip install .": "pip install --quiet --disable-pip-version-check --no-compile {wheel}; python {compile_pyspark}"
}
COMPILE_PYSPARK = Path(__file__).parent.parent / "compile_pyspark.py"

# What replaces a printed port here, or the digits that several printed ports have in common.
PORTS = ("2181", "929", "939", "949")
_PORT = re.compile(rf"(?<![\w.])({'|'.join(PORTS)})(?=\D|\d\b)")

# Servers that are started in terminals of their own, and what each says when it serves.
SERVERS = {"pylog zookeeper start": "ZooKeeper is listening", "pylog broker start": "serve clients"}

# The values of a TOML block here, and the command that reads it. Values that are not named stay as printed.
BROKER_FILE = '"broker.id" = 1'
CONFIG_FILE = '"bootstrap.servers" = "log1.example.com:9192,log2.example.com:9192"'
FILES = {
    BROKER_FILE: {
        '"0.0.0.0:9192"': '"127.0.0.1:{broker_port}"',
        '"log1.example.com:9192"': '"127.0.0.1:{broker_port}"',
        '"/data1/pylog"': '"{directory}/data1"',
        '"/data2/pylog"': '"{directory}/data2"',
        '"zk1:2181,zk2:2181,zk3:2181/pylog"': '"{zookeeper}/another"',
    },
    CONFIG_FILE: {'"log1.example.com:9192,log2.example.com:9192"': '"{address}"'},
}

# A block that uses a session which a later block creates: it is run after that one.
USES_SESSION = "flights = spark.readStream"
MAKES_SESSION = "from pyspark.sql import SparkSession"

# The newcomer's Python session: it runs the files that it is given, and says how each ended. Spark's settings are those
# of the first, and each has variables of its own.
SESSION = """
import runpy, sys, traceback
for line in sys.stdin:
    try:
        runpy.run_path(line.rstrip("\\n"), run_name="__main__")
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.write("\\nSESSION failed\\n")
    else:
        sys.stdout.write("\\nSESSION done\\n")
    sys.stdout.flush()
"""

# A program that runs until Ctrl-C gets one when it has printed this many lines.
UNTIL_CTRL_C = "# until Ctrl-C"
LINES_BEFORE_CTRL_C = 8

# The output that must appear, by what stands in a block: a command that shows nothing has not done what the text says.
OUTPUT = {
    "pylog topic create rides": ["all replicas in sync"],
    "pylog produce rides": ['"city":"Oslo"', '{"city":"Rome","minutes":31,"price":18.0}'],
    'producer.send_batch("rides"': ["'city': 'Lima'"],
    'rides.groupBy("city")': ["|Oslo|", "price: double"],
    "late.write": ["|     UA|", "31|"],
    "pylog group describe billing": ["rides"],
    "pylog consume long-rides": ['"minutes":31', "long-rides-query"],
    "cluster.kill(leader)": ["[b'before', b'after']"],
    "pylog topic create orders": ["LAG-S", "a partition is more than 100 behind: exit status 5"],
    "pylog group reset shipping": ["--execute"],
    "cat > secure/root.toml": ["3 brokers", "User:bob    Allow       Read       Topic"],
    "for user in alice bob; do": ["100 EUR"],
    "payments.selectExpr": ["|100 EUR|", "|  7 EUR|", "| 12 EUR|"],
    "PYLOG_CONFIG=secure/alice.toml pylog consume": [
        "TOPIC_AUTHORIZATION_FAILED",
        "alice may not read",
        "nobody comes without TLS",
        "bob has no certificate for IN",
        "SASL_AUTHENTICATION_FAILED",
        "a wrong password",
    ],
    "pylog topic create flights": ['"carrier":"UA"', '"carrier":"AA"', "PARTITION"],
    'flights.groupBy("carrier").count()': [
        "|     UA|    1|",
        "|     AA|    1|",
        "carrier: string",
        "dep_delay: integer",
    ],
    'producer.send("words", b"hello"': ["b'hello'", "carrier: string"],
    "from pyspark_log import Admin, Consumer, Producer\n": ["doing job 0", "doing job 7"],
}


class DocumentError(Exception):
    """A block did not do what the text around it says."""


def pips_cache() -> dict[str, str]:
    """The variable that names where pip keeps what it has fetched and built; the newcomer's home has nothing yet."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return {} if asked.returncode else {"PIP_CACHE_DIR": asked.stdout.strip()}


class Newcomer:
    """A user who types a document from its top."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self.port, self.broker_port = ten_free_ports(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.names = {
            "wheel": str(wheel),
            "compile_pyspark": str(COMPILE_PYSPARK),
            "directory": str(directory),
            "address": self.address,
            "broker_port": str(self.broker_port),
        }
        self.environment = {key: value for key, value in os.environ.items() if key not in STRANGERS}
        self.environment = {key: value for key, value in self.environment.items() if not key.startswith("PYLOG_")}
        self.environment |= {"HOME": str(directory), "PYLOG_PORT": str(self.port), "PYTHONUNBUFFERED": "1"}
        self.environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "NO_COLOR": "1"}
        self.environment |= pips_cache()
        self.ports = {printed: instead_of(printed) for printed in PORTS}
        self.background: list[subprocess.Popen[str] | subprocess.Popen[bytes]] = []
        self.session: subprocess.Popen[str] | None = None
        self.deferred: list[Block] = []

    def run(self, block: Block) -> None:
        """Runs the block."""
        if block.language == "sh":
            self._shell(block)
        elif block.language == "python":
            self._python(block)
        elif block.language == "toml":
            self._file(block)
        elif block.language != "text":
            raise DocumentError(f"{block.place}: nobody knows how to run a block of {block.language!r}")

    def finish(self) -> None:
        """Checks that every runnable block has been run; ends what still runs."""
        if self.deferred:
            raise DocumentError(f"{self.deferred[0].place}: no later block makes its session")

    def stop(self) -> None:
        """Ends the Python session, and presses Ctrl-C in the background terminals."""
        if self.session is not None:
            self.session.kill()  # Spark's Java ends when nobody is at the other end of its input
            self.session.wait()
        # The last ones first: brokers, and then their ZooKeeper.
        for process in reversed(self.background):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _shell(self, block: Block) -> None:
        before: list[str] = []
        for line in shell_lines(block):
            if re.match(r"pylog up\b", line):
                self._script(block, before)
                before = []
                self._up(block, line)
            elif re.match("|".join(SERVERS), line):
                self._script(block, before)
                before = []
                self._server(block, line)
            elif re.match(r"pylog doctor\b", line):
                self._script(block, before)
                before = []
                self._doctor(block, line)
            else:
                before.append(line)
        self._script(block, before)

    def _script(self, block: Block, lines: list[str]) -> None:
        if not lines:
            return
        script = "\n".join(lines)
        for printed, instead in SUBSTITUTIONS.items():
            script = re.sub(rf"^{re.escape(printed)}(?=\s|$)", instead.format(**self.names), script, flags=re.MULTILINE)
        # A file that the text names says where the brokers are; in the reader's terminal no variable does.
        unset = "unset PYLOG_BOOTSTRAP_SERVERS; " if "PYLOG_CONFIG=" in script else ""
        command = f"{self._activate()}{unset}{self._with_ports(script)}"
        done = self._call(["bash", "-euo", "pipefail", "-c", command])
        check(block, done.returncode == 0, done.stdout)
        expect(block, done.stdout)

    def _with_ports(self, script: str) -> str:
        return _PORT.sub(lambda found: self.ports[found[1]], script)

    def _server(self, block: Block, line: str) -> None:
        command = self._with_ports(line)
        (said,) = [said for begin, said in SERVERS.items() if line.startswith(begin)]
        log = self.directory / f"server{len(self.background)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._activate()}exec {command}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.background.append(process)
        end_s = time.monotonic() + START_LIMIT_S
        while said not in log.read_text() and process.poll() is None and time.monotonic() < end_s:
            time.sleep(0.1)
        check(block, said in log.read_text(), log.read_text())

    def _activate(self) -> str:
        return ". venv/bin/activate; " if (self.directory / "venv").exists() else ""

    def _doctor(self, block: Block, line: str) -> None:
        # The text is not at fault if something else has the default port on this machine.
        done = self._call(["bash", "-c", f"{self._activate()}{line}"])
        rows = [row.split()[0] for row in done.stdout.splitlines() if re.search(r"\s(bad)\s", row)]
        check(block, done.returncode in {0, 5} and set(rows) <= {"cluster", "ports"}, done.stdout)

    def _up(self, block: Block, line: str) -> None:
        command = shlex.split(line, comments=True)
        process = subprocess.Popen(
            ["bash", "-c", f"{self._activate()}exec {shlex.join(command)}"],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.background.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(iter(process.stderr.readline, "")), daemon=True)
        reader.start()
        address = process.stdout.readline().strip()
        check(block, address.split(",")[0] == self.address, f"pylog up reported {address!r}\n{''.join(said)}")
        # The reader relies on a default port, here it is set by name.
        self.environment["PYLOG_BOOTSTRAP_SERVERS"] = self.address
        zookeeper = re.search(r"ZooKeeper +(\S+)", "".join(said))
        check(block, zookeeper is not None, "".join(said))
        assert zookeeper is not None
        self.names["zookeeper"] = zookeeper[1].split("/")[0]

    def _python(self, block: Block) -> None:
        if block.first_line.startswith(USES_SESSION):
            self.deferred.append(block)
            return
        program = self._with_ports(block.text)
        if MAKES_SESSION in program:
            program = "\n".join([program, *(later.text for later in self.deferred)])
            self.deferred.clear()
        file = self.directory / f"line_{block.line}.py"
        file.write_text(program + "\n")
        if MAKES_SESSION in program:
            printed = self._in_session(block, file)
        elif UNTIL_CTRL_C in program:
            printed = self._until_interrupted(block, file)
        else:
            done = self._call([str(self.directory / "venv/bin/python"), str(file)])
            check(block, done.returncode == 0, done.stdout)
            printed = done.stdout
        expect(block, printed)

    def _in_session(self, block: Block, file: Path) -> str:
        # A Python session that stays open: a Spark for each block would take longer than the blocks.
        if self.session is None:
            self.session = subprocess.Popen(
                [str(self.directory / "venv/bin/python"), "-c", SESSION],
                cwd=self.directory,
                env=self._activated(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        assert self.session.stdin is not None
        assert self.session.stdout is not None
        timer = threading.Timer(LIMIT_S, self.session.kill)
        timer.start()
        lines: list[str] = []
        try:
            print(file, file=self.session.stdin, flush=True)
            for line in self.session.stdout:
                lines.append(line)
                if line.startswith("SESSION "):
                    break
        finally:
            timer.cancel()
        check(block, lines[-1:] == ["SESSION done\n"], "".join(lines))
        return "".join(lines)

    def _until_interrupted(self, block: Block, file: Path) -> str:
        process = subprocess.Popen(
            [str(self.directory / "venv/bin/python"), str(file)],
            cwd=self.directory,
            env=self._activated(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        timer = threading.Timer(LIMIT_S / 3, process.kill)
        timer.start()
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == LINES_BEFORE_CTRL_C:
                process.send_signal(signal.SIGINT)
        status = process.wait()
        timer.cancel()
        check(block, status != -signal.SIGKILL, f"Ctrl-C did not end it\n{''.join(lines)}")
        return "".join(lines)

    def _file(self, block: Block) -> None:
        replaced = FILES.get(block.first_line)
        if replaced is None:
            raise DocumentError(f"{block.place}: nobody knows which command reads this file")
        tomllib.loads(block.text)
        text = block.text
        for printed, instead in replaced.items():
            check(block, printed in text, f"{printed} is not there any more")
            text = text.replace(printed, instead.format(**self.names))
        if block.first_line == BROKER_FILE:
            (self.directory / "broker.toml").write_text(text)
            self._broker(block)
        else:
            (self.directory / "config.toml").write_text(text)
            self.environment["PYLOG_CONFIG"] = str(self.directory / "config.toml")
            servers = self.environment.pop("PYLOG_BOOTSTRAP_SERVERS")
            done = self._call(["bash", "-c", f"{self._activate()}pylog topic list"])
            self.environment["PYLOG_BOOTSTRAP_SERVERS"] = servers
            del self.environment["PYLOG_CONFIG"]
            check(block, done.returncode == 0 and "rides" in done.stdout, done.stdout)

    def _broker(self, block: Block) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"{self._activate()}exec pylog broker start --config broker.toml"],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=(self.directory / "broker.log").open("w"),
        )
        try:
            describe = f"{self._activate()}pylog cluster describe -b 127.0.0.1:{self.broker_port} --timeout 30"
            end_s = time.monotonic() + 60
            while (done := self._call(["bash", "-c", describe])).returncode and time.monotonic() < end_s:
                time.sleep(0.5)
            check(block, done.returncode == 0, done.stdout + (self.directory / "broker.log").read_text())
        finally:
            process.terminate()
            status = process.wait(60)
        check(block, status == 0, f"the broker ended with status {status}")

    def _activated(self) -> dict[str, str]:
        path = f"{self.directory / 'venv/bin'}{os.pathsep}{self.environment['PATH']}"
        return {**self.environment, "PATH": path}

    def _call(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        environment = self._activated() if (self.directory / "venv").exists() else self.environment
        return subprocess.run(
            command,
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


def check(block: Block, holds: bool, shown: str) -> None:
    """Raises with the block and the observed output."""
    if not holds:
        raise DocumentError(f"{block.place}: this did not work:\n{block.text}\n\n{shown}")


def expect(block: Block, printed: str) -> None:
    """Checks that the output required by `OUTPUT` is there."""
    for begin, wanted in OUTPUT.items():
        if begin in block.text:
            for text in wanted:
                check(block, text in printed, f"{text!r} was not printed:\n{printed}")


def free_port() -> int:
    """A free port below the range from which the kernel takes clients' ports."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def ten_free_ports() -> int:
    """The first of ten; it ends with 0."""
    while True:
        first = free_port() // 10 * 10
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + 10):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def instead_of(printed: str) -> str:
    """What stands in for printed digits of ports: for all four a free port, for three what ten of them begin with."""
    return str(free_port()) if len(printed) == 4 else str(ten_free_ports() // 10)


@contextmanager
def newcomer(directory: Path, wheel: Path) -> Iterator[Newcomer]:
    """A newcomer, with nothing left running afterwards."""
    somebody = Newcomer(directory, wheel)
    try:
        yield somebody
    finally:
        somebody.stop()


def run_documents(directory: Path, wheel: Path, tell: Callable[[str], None]) -> None:
    """Runs all blocks; raises `DocumentError` at the first that does not work. ``directory/venv`` exists afterwards."""
    found = {name: blocks(text, name) for name, text in documents().items()}
    for number, beginning in enumerate(BEGINNINGS):
        is_last = number == len(BEGINNINGS) - 1
        followers = [name for name in found if name not in BEGINNINGS] if is_last else []
        place = directory if number == 0 else directory / f"beginning{number}"
        place.mkdir(exist_ok=True)
        if number > 0:
            (place / "venv").symlink_to(directory / "venv")  # it was made as printed; once more tells nothing new
        with newcomer(place, wheel) as somebody:
            for name in (beginning, *followers):
                for block in found[name]:
                    _run(block, somebody, tell)
            somebody.finish()


def _run(block: Block, somebody: Newcomer, tell: Callable[[str], None]) -> None:
    if block.reason_not_to_run is not None:
        tell(f"{block.place}: not run: {block.reason_not_to_run}")
        return
    somebody.run(block)
    if block.language != "text":
        tell(f"{block.place}: {block.first_line[:60]}")


def main(wheel: str) -> None:
    """Runs it in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="pylog-documents-") as name:
        try:
            run_documents(Path(name), Path(wheel).absolute(), lambda text: print(text, flush=True))
        except DocumentError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
