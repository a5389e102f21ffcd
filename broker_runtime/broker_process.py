"""A broker as a process: command line, log, signals, the ready file, what systemd is told, the exit code.

    python -m broker_runtime --config broker.toml [--ready-file ready.json]

Rule: it ends in bounded time after SIGTERM or SIGINT, and at once after a second one. Exit codes:

    0     stopped in order, after a signal
    1     could not start (the error is on a line of its own on stderr), could not stop in time, or met a defect
    130   a second signal came
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from broker_runtime import memory
from broker_runtime.contract.errors import PylogError, SetupError
from broker_runtime.contract.events import JsonFormatter, event
from broker_runtime.contract.settings import BrokerSettings, load_broker_settings

if TYPE_CHECKING:
    from broker_runtime.broker import Broker

_logger = logging.getLogger(__name__)

EXIT_AT_ONCE: Final = 130
GRACE_S: Final = 5.0
"""After `broker.STOP_LIMIT_S` of stopping, for what that does not bound; then the process ends by itself."""
_STATUS_S: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a broker until a signal stops it, then ends the process."""
    parser = argparse.ArgumentParser(prog="python -m broker_runtime", description="Runs one pylog broker.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file with the broker's settings")
    parser.add_argument(
        "--ready-file", type=Path, help="written when the broker serves: id, host, port, pid (and http) as JSON"
    )
    options = parser.parse_args(arguments)
    configure_logging()
    try:
        settings = load_broker_settings(options.config)
        configure_logging(settings)
        memory.bound_arrow(memory.limit_bytes(settings))
        code = run(settings, ready_file=options.ready_file)
    except (PylogError, OSError) as error:
        reported = error if isinstance(error, PylogError) else SetupError(str(error))
        sys.stderr.write(f"{reported}\n")
        code = 1
    logging.shutdown()
    sys.stderr.flush()
    # Not by returning: a thread that still waits for a peer must not keep the process alive.
    os._exit(code)


def run(settings: BrokerSettings, *, ready_file: Path | None = None) -> int:
    """Runs a broker in this process until SIGTERM or SIGINT; returns the exit code. In the main thread only.

    Raises what `Broker.start` raises. A second signal ends the process at once.
    """
    # Not at the top: this imports pyarrow, and the caller must bound Arrow's memory before that.
    from broker_runtime.broker import STOP_LIMIT_S, Broker

    # What the imports created is never freed: the garbage collector need not visit it again and again.
    gc.freeze()
    # Signals wake the main thread through a pipe that the C handler writes to. A lock's wait would not do: the kernel
    # may deliver the signal to another thread (after a SIGSTOP it does), and a handler may interrupt a lock's holder.
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signals: list[int] = []
    has_failed = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            os._exit(EXIT_AT_ONCE)

    def on_failure() -> None:
        has_failed.set()
        os.write(wake_writer, b"f")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    systemd = Systemd(os.environ)
    broker = Broker(settings, on_failure=on_failure)
    try:
        systemd.tell("STATUS=starting")
        broker.start()
        if ready_file is not None:
            _write_ready(ready_file, broker)
        systemd.tell("READY=1")
        while not signals and not has_failed.is_set():
            # In this thread: it shows no more than /healthz does, and no less.
            systemd.tell_alive(_status(broker))
            if select.select([wake_reader], [], [], systemd.period_s)[0]:
                os.read(wake_reader, 64)
        systemd.tell("STOPPING=1", "STATUS=stopping")
        event(_logger, "stop broker", broker=broker.broker_id)
        # In case even the bounded stop does not return.
        hard_end = threading.Timer(STOP_LIMIT_S + GRACE_S, lambda: os._exit(1))
        hard_end.daemon = True
        hard_end.start()
        is_complete = broker.stop()
        hard_end.cancel()
        event(_logger, "end broker", broker=broker.broker_id, complete=is_complete)
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if is_complete and not has_failed.is_set() else 1


class Systemd:
    """The systemd that started this process, if it did with ``Type=notify`` (sd_notify(3)); otherwise nothing happens.

    Never blocks and never fails: what it is told is lost if it takes no messages just then.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An abstract socket is written with @, and begins with a zero byte.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        period, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(os.getpid()))
        is_watched = bool(address) and period.isdecimal() and int(period) > 0 and pid == str(os.getpid())
        self._watchdog_s = int(period) / 1_000_000 if is_watched else None
        self._status = ""

    @property
    def period_s(self) -> float | None:
        """How often `tell_alive` is to be called; None: not at all."""
        if not self._address:
            return None
        return _STATUS_S if self._watchdog_s is None else min(_STATUS_S, self._watchdog_s / 2)

    def tell(self, *assignments: str) -> None:
        """``assignments``: as sd_notify(3) lists them."""
        if not self._address or not assignments:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            event(_logger, "notify systemd", level=logging.DEBUG, error=error)

    def tell_alive(self, status: str) -> None:
        """Shows ``status`` where it has changed, and keeps the watchdog quiet."""
        alive = [] if self._watchdog_s is None else ["WATCHDOG=1"]
        changed = [f"STATUS={status}"] if status != self._status else []
        self._status = status
        self.tell(*alive, *changed)


def configure_logging(settings: BrokerSettings | None = None) -> None:
    """Lines of ``time level logger verb field=value`` to stderr (see `events`), or with ``logging.format=json`` one
    JSON object each. kazoo logs errors only. Without ``settings``, before they are known: text."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if settings is not None and settings.logging_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    logging.getLogger("kazoo").setLevel(logging.ERROR)


def _status(broker: Broker) -> str:
    """For `systemctl status`."""
    reason = broker.not_ready
    return f"broker {broker.broker_id} at {broker.address}: {'serves' if reason is None else f'not ready: {reason}'}"


def _write_ready(path: Path, broker: Broker) -> None:
    from broker_runtime.log.files import RealFiles, replace_file

    address = broker.address
    ready = {"broker_id": broker.broker_id, "host": address.host, "port": address.port, "pid": os.getpid()}
    if broker.http_address is not None:
        ready["http"] = str(broker.http_address)
    replace_file(RealFiles(), path, json.dumps(ready).encode() + b"\n")
