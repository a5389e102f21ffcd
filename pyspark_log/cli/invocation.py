"""What one call of `pylog` shall do it with: where the brokers are, the clients' settings, how to show, what to ask.

Rule: a flag wins over ``PYLOG_…`` in the environment, that over ``~/.config/pylog/config.toml``, that over the
default. The file::

    bootstrap-server = "localhost:9192"
    output = "wide"
    timeout = "30s"

    [client]                       # what -X takes; each client picks what it knows
    compression.type = "zstd"

``$PYLOG_CONFIG`` names another file.
"""

from __future__ import annotations

import logging
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from broker_runtime.contract.errors import InvalidConfigError
from pyspark_log.cli.arguments import parse_timeout_s
from pyspark_log.cli.exit_status import FAILED, say_error
from pyspark_log.cli.output import OutputFormat

if TYPE_CHECKING:
    from pyspark_log import Admin, Consumer, Producer
    from pyspark_log.cli.options import GivenOptions

DEFAULT_ADDRESS = "localhost:9192"
DEFAULT_TIMEOUT_S = 10.0
_FILE_KEYS = ("bootstrap-server", "output", "timeout", "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The decisions. ``output`` None: the command's own default. ``address_is_given``: not just the default."""

    bootstrap_servers: str
    address_is_given: bool
    flag_settings: Mapping[str, str]
    file_settings: Mapping[str, str]
    output: OutputFormat | None
    timeout_s: float
    timeout_is_given: bool
    yes: bool
    quiet: bool
    verbose: int

    @classmethod
    def resolve(cls, given: GivenOptions) -> Invocation:
        """From flags, environment and file. Raises `InvalidConfigError` naming the place of what is wrong."""
        path, config = _read_config_file()

        def first(flag: str | None, name: str) -> tuple[str | None, str]:
            variable = "PYLOG_" + name.upper().replace("-", "_")
            if name == "bootstrap-server":
                variable += "S"
            for value, place in ((flag, f"--{name}"), (os.environ.get(variable), f"${variable}")):
                if value:
                    return value, place
            value = config.get(name)
            return (None if value is None else str(value)), f"{path}: {name}"

        address, _ = first(given.bootstrap_server, "bootstrap-server")
        output, output_place = first(given.output and given.output.value, "output")
        timeout, timeout_place = first(given.timeout, "timeout")
        if output is not None and output not in list(OutputFormat):
            raise InvalidConfigError(f"{output_place}: {output!r} is none of {', '.join(OutputFormat)}")
        try:
            timeout_s = DEFAULT_TIMEOUT_S if timeout is None else parse_timeout_s(timeout)
        except ValueError as error:
            raise InvalidConfigError(f"{timeout_place}: {error}") from None
        logging.basicConfig(
            stream=sys.stderr,
            level=(logging.WARNING, logging.INFO, logging.DEBUG)[min(given.verbose, 2)],
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
        )
        return cls(
            bootstrap_servers=address or DEFAULT_ADDRESS,
            address_is_given=address is not None,
            flag_settings=_parse_settings(given.setting),
            file_settings=_client_settings(path, config.get("client", {})),
            output=None if output is None else OutputFormat(output),
            timeout_s=timeout_s,
            timeout_is_given=timeout is not None,
            yes=given.yes,
            quiet=given.quiet,
            verbose=given.verbose,
        )

    def settings(self, scope: Any) -> dict[str, Any]:
        """Client settings for one scope of `broker_runtime.contract.settings`: the file's that it knows, -X's all."""
        from broker_runtime.contract.settings import settings_of

        known = settings_of(scope)
        chosen: dict[str, Any] = {name: value for name, value in self.file_settings.items() if name in known}
        if "request.timeout.ms" in known:
            chosen["request.timeout.ms"] = max(1, round(self.timeout_s * 1000))
        return {**chosen, **self.flag_settings}

    @contextmanager
    def admin(self, *, beside: Any = "admin") -> Iterator[Admin]:
        """An open `Admin`. ``beside``: the scope of the client that the command is about. -X is meant for that one, is
        refused here if it would be refused there, and the admin picks what it knows."""
        from broker_runtime.contract.settings import parse_given, settings_of
        from pyspark_log import Admin

        parse_given(beside, self.settings(beside))
        known = settings_of("admin")
        config = {name: value for name, value in self.settings(beside).items() if name in known}
        with Admin(self.bootstrap_servers, config=config) as admin:
            yield admin

    @contextmanager
    def producer(self, **settings: Any) -> Iterator[Producer]:
        """An open `Producer`; leaving flushes. ``settings`` are the command's own, -X wins over them."""
        from pyspark_log import Producer

        if self.timeout_is_given:
            settings.setdefault("delivery.timeout.ms", max(1, round(self.timeout_s * 1000)))
        with Producer(self.bootstrap_servers, config={**settings, **self.settings("producer")}) as producer:
            yield producer

    @contextmanager
    def consumer(self, **settings: Any) -> Iterator[Consumer]:
        """An open `Consumer` of nothing yet."""
        from pyspark_log import Consumer

        config = {**settings, **self.settings("consumer")}
        with Consumer(bootstrap_servers=self.bootstrap_servers, config=config) as consumer:
            yield consumer

    def say(self, text: str) -> None:
        """A remark, on standard error, unless -q."""
        if not self.quiet:
            sys.stderr.write(text + "\n")

    def confirm_name(self, question: str, name: str) -> None:
        """Asks for ``name`` to be typed, unless -y. Any other answer ends the command with status 1."""
        if self.yes:
            return
        sys.stderr.write(f"{question} Type its name to go on (-y says yes): ")
        sys.stderr.flush()
        if sys.stdin.readline().strip() != name:
            sys.stderr.write("\n" if not sys.stdin.isatty() else "")
            say_error(f"[NOT_CONFIRMED] That was not {name!r}. Nothing was done.")
            raise typer.Exit(FAILED)


def usage_error(text: str) -> typer.BadParameter:
    """An argument that is wrong in a way only we can tell; exit status 2."""
    return typer.BadParameter(text)


def _parse_settings(given: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidConfigError(f"-X {text!r}: must be name=value, as in -X linger.ms=5")
        settings[name.strip()] = value.strip()
    return settings


def _read_config_file() -> tuple[Path, dict[str, Any]]:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    named = os.environ.get("PYLOG_CONFIG")
    path = Path(named) if named else home / "pylog" / "config.toml"
    try:
        config = tomllib.loads(path.read_text())
    except FileNotFoundError:
        if named:
            raise InvalidConfigError(f"$PYLOG_CONFIG names {path}, which does not exist") from None
        return path, {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfigError(f"{path}: {error}") from None
    config = {("bootstrap-server" if key == "bootstrap-servers" else key): value for key, value in config.items()}
    for key in config:
        if key not in _FILE_KEYS:
            raise InvalidConfigError(f"{path}: {key!r} is none of {', '.join(_FILE_KEYS)}")
    return path, config


def _client_settings(path: Path, table: object) -> dict[str, str]:
    from broker_runtime.contract.settings import settings_of

    known = {name for scope in ("admin", "producer", "consumer") for name in settings_of(scope)}
    settings: dict[str, str] = {}

    def walk(tree: Mapping[str, object], prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            elif prefix + key not in known:
                raise InvalidConfigError(f"{path}: [client] has {prefix + key!r}, which no client knows")
            else:
                settings[prefix + key] = str(value).lower() if isinstance(value, bool) else str(value)

    if not isinstance(table, Mapping):
        raise InvalidConfigError(f"{path}: [client] must be a table of settings")
    if table:
        walk(table, "")
    return settings
