"""A broker as a child process: its directory, its settings file, its port.

Rule: the process ends no later than the process that started it. `start` returns when the broker is ready; otherwise it
raises the typed error that the broker printed. One directory per broker::

    broker.toml    its settings, rewritten at each start
    ready.json     written by the broker when it is ready
    broker.out     its output, appended over restarts
    log/           its data, unless the settings name other directories
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    InvalidConfigError,
    PortInUseError,
    PylogError,
    SetupError,
    error_from_code,
)
from broker_runtime.contract.settings import Address, Listener, parse_listeners
from broker_runtime.contract.waiting import Deadline
from broker_runtime.ports import choose_port
from broker_runtime.zookeeper.guarded_process import GuardedProcess

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.02
_PORT_ATTEMPTS: Final = 5
_PRINTED_ERROR: Final = re.compile(r"\[([A-Z_]+)\] (.+)")
_LAST_WORDS_BYTES: Final = 8_192


class BrokerProcess:
    """One broker. ``port`` 0 picks a free port at the first start and keeps it, as does each port 0 of ``listeners`` in
    its settings, which replace ``host`` and ``port``. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        *,
        broker_id: int,
        zookeeper_connect: str,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory.absolute()
        self._broker_id = broker_id
        self._zookeeper_connect = zookeeper_connect
        self._host = host
        self._port = port
        self._settings = dict(settings or {})
        given = self._settings.pop("listeners", None)
        self._listeners = None if given is None else list(parse_listeners(given))  # None: one, at host and port
        self._process: GuardedProcess | None = None
        self._is_paused = False

    @property
    def broker_id(self) -> int:
        """The ``broker.id``."""
        return self._broker_id

    @property
    def address(self) -> str:
        """``host:port`` of its first listener; the port is known after the first `start`."""
        return str(self.socket_address)

    def address_of(self, listener: str) -> str:
        """``host:port`` of the listener of that name. Raises `InvalidConfigError` if it has none such."""
        found = {each.name: str(each.address) for each in self._listeners or ()}
        if listener not in found:
            raise InvalidConfigError(f"broker {self._broker_id} has no listener {listener}; it has {', '.join(found)}")
        return found[listener]

    @property
    def socket_address(self) -> Address:
        """`address` as an `Address`."""
        return Address(self._host, self._port) if self._listeners is None else self._listeners[0].address

    @property
    def pid(self) -> int:
        """The process id. Raises `SetupError` if the broker was never started."""
        return self._started().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a paused process does."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Whether the broker was paused since it started, and not resumed."""
        return self._is_paused

    @property
    def log_dirs(self) -> list[Path]:
        """Its data directories."""
        given = self._settings.get("log.dirs")
        return [Path(part.strip()) for part in given.split(",")] if given else [self._directory / "log"]

    @property
    def http_address(self) -> str | None:
        """``host:port`` of its ``http.listener``, as of the last start; None: it has none, or was never ready."""
        ready_file = self._directory / "ready.json"
        found: str | None = json.loads(ready_file.read_text()).get("http") if ready_file.exists() else None
        return found

    @property
    def config_file(self) -> Path:
        """The file with its settings, as of the last start."""
        return self._directory / "broker.toml"

    @property
    def output_file(self) -> Path:
        """The file with its output."""
        return self._directory / "broker.out"

    def start(self, timeout_s: float = START_LIMIT_S) -> None:
        """Starts the broker and waits until it is ready. Does nothing if it is running.

        Raises the error that the broker printed (`PortInUseError`, `DirectoryLockedError`, `InvalidConfigError` …),
        `SetupError` if it ended without printing one, `BrokerUnavailableError` if it is not ready in time. After an
        error nothing is left running.
        """
        if self.is_running:
            return
        wanted, deadline = self._listeners, Deadline(timeout_s)
        is_first = self._port == 0 if wanted is None else any(each.address.port == 0 for each in wanted)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if is_first and wanted is None:
                self._port = choose_port(self._host)
            elif is_first and wanted is not None:
                self._listeners = [_with_port(each) for each in wanted]
            try:
                self._start_once(deadline)
            except PortInUseError:
                # Another process may have taken the port since it was chosen.
                if not is_first or attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def stop(self, timeout_s: float = STOP_LIMIT_S) -> None:
        """Sends SIGTERM, and SIGKILL after ``timeout_s``, also to a paused broker. Returns when the process is gone."""
        if self._process is not None and self.is_running:
            self._process.signal(signal.SIGCONT)
            self._process.stop(timeout_s)

    def kill(self) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        if self._process is not None and self.is_running:
            self._process.signal(signal.SIGKILL)
            self._process.wait(STOP_LIMIT_S)

    def pause(self) -> None:
        """Sends SIGSTOP; returns when the process has stopped, with its sockets open, or has ended."""
        process = self._started()
        process.signal(signal.SIGSTOP)
        self._is_paused = True
        deadline = Deadline(STOP_LIMIT_S)
        while not process.has_stopped():
            if deadline.expired:
                raise BrokerUnavailableError(
                    f"broker {self._broker_id} did not stop within {STOP_LIMIT_S:g} s of SIGSTOP"
                )
            deadline.sleep(_POLL_S)

    def resume(self) -> None:
        """Sends SIGCONT."""
        self._started().signal(signal.SIGCONT)
        self._is_paused = False

    def last_words(self) -> str:
        """The end of its output."""
        if not self.output_file.exists():
            return f"{self.output_file} does not exist"
        with self.output_file.open("rb") as file:
            file.seek(max(0, self.output_file.stat().st_size - _LAST_WORDS_BYTES))
            return file.read().decode(errors="replace").strip()

    def _started(self) -> GuardedProcess:
        if self._process is None:
            raise SetupError(f"broker {self._broker_id} was not started")
        return self._process

    def _start_once(self, deadline: Deadline) -> None:
        self._is_paused = False
        ready_file = self._directory / "ready.json"
        self._directory.mkdir(parents=True, exist_ok=True)
        ready_file.unlink(missing_ok=True)
        self.config_file.write_text(_toml(self._resolved_settings()), encoding="utf-8")
        printed_before = self.output_file.stat().st_size if self.output_file.exists() else 0
        # -P: a file in the caller's directory must not replace one of our modules.
        command = [sys.executable, "-P", "-m", "broker_runtime"]
        self._process = GuardedProcess(
            [*command, "--config", str(self.config_file), "--ready-file", str(ready_file)], output=self.output_file
        )
        try:
            while not self._is_ready(ready_file):
                if self._process.poll() is not None:
                    raise self._reason_of_end(printed_before)
                if deadline.expired:
                    raise BrokerUnavailableError(
                        f"broker {self._broker_id} did not become ready in time. {self.output_file} ends with:\n"
                        f"{self.last_words()}"
                    )
                deadline.sleep(_POLL_S)
        except BaseException:
            self.kill()
            raise

    def _is_ready(self, ready_file: Path) -> bool:
        if not ready_file.exists():
            return False
        ready = json.loads(ready_file.read_text())
        return bool(ready["pid"] == self.pid)

    def _resolved_settings(self) -> dict[str, str | list[str]]:
        return {
            "broker.id": str(self._broker_id),
            "listeners": self.address if self._listeners is None else ",".join(map(str, self._listeners)),
            "zookeeper.connect": self._zookeeper_connect,
            "log.dirs": [str(path) for path in self.log_dirs],
            **self._settings,
        }

    def _reason_of_end(self, printed_before: int) -> PylogError:
        with self.output_file.open("rb") as file:
            file.seek(printed_before)
            printed = file.read().decode(errors="replace")
        for line in reversed(printed.splitlines()):
            match = _PRINTED_ERROR.match(line)
            if match:
                return error_from_code(*match.groups())
        return SetupError(
            f"broker {self._broker_id} stopped at once. {self.output_file} ends with:\n{self.last_words()}"
        )


def _with_port(listener: Listener) -> Listener:
    host, port = listener.address
    return Listener(listener.name, Address(host, port or choose_port(host)))


def _toml(settings: Mapping[str, str | list[str]]) -> str:
    # A JSON string is a TOML basic string, a list of them a TOML array.
    texts = {json.dumps(name): json.dumps(value, ensure_ascii=False) for name, value in settings.items()}
    return "".join(f"{name} = {text}\n" for name, text in texts.items())
