"""Runs README's blocks as printed, in order, in an empty directory: whatever a newcomer types works.

    python tests/wheel/run_readme.py dist/pyspark_log-0.1.0-py3-none-any.whl [README.md]

The first block creates the virtual environment, where the wheel stands in for the clone. All other differences from the
printed text are in `SUBSTITUTIONS` and `FILES`, below, or set by the environment (`PYLOG_PORT`,
`PYLOG_BOOTSTRAP_SERVERS`, `HOME`), so that nothing meets another cluster on this machine. A `pylog up` runs in the
background until the end, as in a reader's first terminal. A block that fails, or that nothing here knows how to run,
fails the whole run.
"""

from __future__ import annotations

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

from readme import Block, blocks, shell_lines

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 600
STRANGERS = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")

# What replaces a word of a printed command here.
SUBSTITUTIONS = {"pip install .": "pip install --quiet --disable-pip-version-check {wheel}"}

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

# A program that runs until Ctrl-C gets one when it has printed this many lines.
UNTIL_CTRL_C = "# until Ctrl-C"
LINES_BEFORE_CTRL_C = 8

# The output that must appear, by a block's first line: a command that shows nothing has not done what README says.
OUTPUT = {
    "pylog topic create flights": ['"carrier":"UA"', '"carrier":"AA"', "PARTITION"],
    MAKES_SESSION: ["|     UA|    1|", "|     AA|    1|", "carrier: string", "dep_delay: integer"],
    "import pyarrow as pa": ["b'hello'", "carrier: string"],
    "from pyspark_log import Admin, Consumer, Producer\n": ["doing job 0", "doing job 7"],
}


class ReadmeError(Exception):
    """A block did not do what README says."""


class Newcomer:
    """A user who types README from its top."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self.port, self.broker_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.names = {
            "wheel": str(wheel),
            "directory": str(directory),
            "address": self.address,
            "broker_port": str(self.broker_port),
        }
        self.environment = {key: value for key, value in os.environ.items() if key not in STRANGERS}
        self.environment = {key: value for key, value in self.environment.items() if not key.startswith("PYLOG_")}
        self.environment |= {"HOME": str(directory), "PYLOG_PORT": str(self.port), "PYTHONUNBUFFERED": "1"}
        self.environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "NO_COLOR": "1"}
        self.background: list[subprocess.Popen[str]] = []
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
            raise ReadmeError(f"line {block.line}: nobody knows how to run a block of {block.language!r}")

    def finish(self) -> None:
        """Checks that every runnable block has been run; ends what still runs."""
        if self.deferred:
            raise ReadmeError(f"line {self.deferred[0].line}: no later block makes its session")

    def stop(self) -> None:
        """Presses Ctrl-C in the background terminals."""
        for process in self.background:
            process.send_signal(signal.SIGINT)
        for process in self.background:
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
        done = self._call(["bash", "-euo", "pipefail", "-c", f"{self._activate()}{script}"])
        check(block, done.returncode == 0, done.stdout)
        expect(block, done.stdout)

    def _activate(self) -> str:
        return ". venv/bin/activate; " if (self.directory / "venv").exists() else ""

    def _doctor(self, block: Block, line: str) -> None:
        # README is not at fault if something else has the default port on this machine.
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
        check(block, address == self.address, f"pylog up reported {address!r}\n{''.join(said)}")
        # README's reader relies on a default port, here it is set by name.
        self.environment["PYLOG_BOOTSTRAP_SERVERS"] = self.address
        zookeeper = re.search(r"ZooKeeper +(\S+)", "".join(said))
        check(block, zookeeper is not None, "".join(said))
        assert zookeeper is not None
        self.names["zookeeper"] = zookeeper[1].split("/")[0]

    def _python(self, block: Block) -> None:
        if block.first_line.startswith(USES_SESSION):
            self.deferred.append(block)
            return
        program = block.text
        if MAKES_SESSION in program:
            program = "\n".join([program, *(later.text for later in self.deferred)])
            self.deferred.clear()
        file = self.directory / f"line_{block.line}.py"
        file.write_text(program + "\n")
        if UNTIL_CTRL_C in program:
            printed = self._until_interrupted(block, file)
        else:
            done = self._call([str(self.directory / "venv/bin/python"), str(file)])
            check(block, done.returncode == 0, done.stdout)
            printed = done.stdout
        expect(block, printed)

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
            raise ReadmeError(f"line {block.line}: nobody knows which command reads this file")
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
            check(block, done.returncode == 0 and "flights" in done.stdout, done.stdout)

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
        raise ReadmeError(f"README line {block.line}: this did not work:\n{block.text}\n\n{shown}")


def expect(block: Block, printed: str) -> None:
    """Checks that the output required by `OUTPUT` is there."""
    for begin, wanted in OUTPUT.items():
        if block.text.startswith(begin):
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


@contextmanager
def newcomer(directory: Path, wheel: Path) -> Iterator[Newcomer]:
    """A newcomer, with nothing left running afterwards."""
    somebody = Newcomer(directory, wheel)
    try:
        yield somebody
    finally:
        somebody.stop()


def run_readme(readme: str, directory: Path, wheel: Path, tell: Callable[[str], None]) -> None:
    """Runs all blocks; raises `ReadmeError` at the first that does not work. ``directory/venv`` exists afterwards."""
    with newcomer(directory, wheel) as somebody:
        for block in blocks(readme):
            if block.reason_not_to_run is not None:
                tell(f"README line {block.line}: not run: {block.reason_not_to_run}")
                continue
            somebody.run(block)
            if block.language != "text":
                tell(f"README line {block.line}: {block.first_line[:60]}")
        somebody.finish()


def main(wheel: str, readme: str = str(ROOT / "README.md")) -> None:
    """Runs it in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="pylog-readme-") as name:
        try:
            run_readme(
                Path(readme).read_text(), Path(name), Path(wheel).absolute(), lambda text: print(text, flush=True)
            )
        except ReadmeError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
