"""`pylog up`: a cluster on this machine, in the foreground."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker_runtime.contract import DEFAULT_PORT
from pyspark_log.cli.console import start_beside
from pyspark_log.cli.invocation import Invocation, usage_error
from pyspark_log.cli.options import add_command
from pyspark_log.cli.output import counted
from pyspark_log.cli.progress import Progress
from pyspark_log.console import DEFAULT_PORT as CONSOLE_PORT

if TYPE_CHECKING:
    from pyspark_log.local.broker_process import BrokerProcess
    from pyspark_log.local.ensemble import ZooKeeperEnsemble

_HOST = "127.0.0.1"
_CHROOT = "/pylog"
_LOOK_S = 0.5


def add_to(app: typer.Typer, *, panel: str) -> None:
    """Adds the command, listed under the heading ``panel``."""
    add_command(app, "up", panel=panel)(up)


def data_directory(given: Path | None) -> Path:
    """Where `pylog up` keeps its data: ``given``, else ``~/.local/share/pylog`` (XDG_DATA_HOME)."""
    if given is not None:
        return given.expanduser().absolute()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "pylog"


def up(
    invocation: Invocation,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1, max=32, help="Number of brokers; 3 or more run with 3 ZooKeepers.", show_default="as before, or 1"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="PYLOG_DATA", help="Data directory.", show_default="~/.local/share/pylog"),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="PYLOG_PORT", help="Port of broker 1; others get the next ones. 0: free ports."
        ),
    ] = DEFAULT_PORT,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", envvar="PYLOG_ZOOKEEPER", help="Use this ZooKeeper instead of starting one."),
    ] = None,
    console_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the console.", show_default=str(CONSOLE_PORT)),
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Start no console.")] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    It consists of a ZooKeeper, one or more brokers, and a web console. The data is kept for the next time.
    """
    from broker_runtime.ports import is_free, port_in_use
    from broker_runtime.zookeeper.java import home_passed_over
    from pyspark_log.local.broker_process import BrokerProcess
    from pyspark_log.local.ensemble import ZooKeeperEnsemble, present_servers
    from pyspark_log.local.foreground import TerminatedError, terminable
    from pyspark_log.local.starting import start_together

    directory = data_directory(data)
    count = brokers or _present_brokers(directory) or 1
    if port + count - 1 > 65535:
        raise usage_error(f"--port {port}: {count} brokers would need ports above 65535")
    ports = [port + number if port else 0 for number in range(count)]
    for wanted in ports:
        if wanted and not is_free(_HOST, wanted):
            raise port_in_use(_HOST, wanted)
    started_at = time.monotonic()
    with terminable(), _sole_user_of(directory):
        ensemble = None
        shown = None
        started: list[BrokerProcess] = []
        try:
            if not zookeeper:
                ensemble = ZooKeeperEnsemble(directory, present_servers(directory) or (3 if count >= 3 else 1))
                with Progress(invocation, "Starting ZooKeeper"):
                    ensemble.start()
                if (wrong := home_passed_over()) is not None:
                    invocation.say(f"{wrong}: ZooKeeper runs with another Java. Spark will not: correct or unset it.")
                invocation.say(f"ZooKeeper  {ensemble.connect_string}")
            connect = ensemble.connect_string if ensemble is not None else str(zookeeper)
            started = [
                BrokerProcess(
                    directory / f"broker-{number}",
                    broker_id=number,
                    zookeeper_connect=connect if "/" in connect else connect + _CHROOT,
                    port=broker_port,
                )
                for number, broker_port in enumerate(ports, 1)
            ]
            with Progress(invocation, f"Starting {counted(len(started), 'broker')}"):
                start_together(started)
            for broker in started:
                invocation.say(f"Broker {broker.broker_id:<3} {broker.address}  pid {broker.pid}")
            invocation.say(f"Data       {directory}")
            addresses = ",".join(broker.address for broker in started)
            if not no_console:
                chosen = (CONSOLE_PORT if port else 0) if console_port is None else console_port
                shown = start_beside(invocation, addresses, chosen)
            _say_what_to_try(invocation, addresses, len(started), time.monotonic() - started_at)
            print_address(addresses)
            _watch(invocation, ensemble, started)
        except TerminatedError:
            invocation.say("Stopping.")
        except KeyboardInterrupt:
            invocation.say("\nStopping.")
        finally:
            if shown is not None:
                shown.close()
            for broker in started:
                broker.stop()
            if ensemble is not None:
                ensemble.stop()


def print_address(address: str) -> None:
    """Prints the address alone to standard output, for programs. People have read it on standard error."""
    if not sys.stdout.isatty():
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()


def _watch(invocation: Invocation, ensemble: ZooKeeperEnsemble | None, brokers: Sequence[BrokerProcess]) -> None:
    """Blocks until the cluster cannot continue, then raises `SetupError`. Other losses are only reported."""
    from broker_runtime.contract.errors import SetupError

    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            invocation.say(text)

    while True:
        time.sleep(_LOOK_S)
        ended = [broker for broker in brokers if not broker.is_running]
        if len(ended) == len(brokers):
            raise SetupError(f"All brokers have stopped. {ended[0].output_file} ends with:\n{ended[0].last_words()}")
        for broker in ended:
            say_once(
                f"Broker {broker.broker_id} stopped; the others continue. To start it again: "
                f"pylog broker start --config {broker.config_file}"
            )
        for number, server in ensemble.servers.items() if ensemble is not None else ():
            if not server.is_running:
                if ensemble is None or not ensemble.has_majority:
                    raise SetupError(f"ZooKeeper stopped unexpectedly; its log is {server.log_file}")
                say_once(f"ZooKeeper {number} stopped; the others continue. Its log is {server.log_file}")


def _say_what_to_try(invocation: Invocation, addresses: str, brokers: int, took_s: float) -> None:
    option = "" if addresses.split(",")[0] == f"{_HOST}:{DEFAULT_PORT}" else f" -b {addresses}"
    replicas = " -r 3" if brokers >= 3 else ""
    invocation.say(
        f"\nReady after {took_s:.1f} s. Try this in another terminal:\n\n"
        f"    pylog topic create hello -p 2{replicas}{option}\n"
        f"    echo 'hello, world' | pylog produce hello{option}\n"
        f"    pylog consume hello --from earliest --to end{option}\n\n"
        "Ctrl-C stops the cluster and keeps its data."
    )


def _present_brokers(directory: Path) -> int:
    """The highest number of a broker that has data in the directory; 0: none."""
    numbers = (path.name.removeprefix("broker-") for path in directory.glob("broker-*") if path.is_dir())
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


@contextmanager
def _sole_user_of(directory: Path) -> Iterator[None]:
    """Holds a lock on the directory, because two ZooKeepers would destroy each other's data."""
    import fcntl

    from broker_runtime.contract.errors import DirectoryLockedError

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryLockedError(
                f"{directory} is in use by another `pylog up`. Stop it, or run: pylog up --data OTHER --port 9300"
            ) from None
        yield
