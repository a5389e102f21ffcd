"""What one call of `pylog` shall do it with: where the brokers are, the clients' settings, how to show, what to ask.

Rule: an option wins over ``PYLOG_…`` in the environment, that over the file (`pyspark_log.cli.config_file`), that over
the default. ``-X`` is an option like the others, also for ``bootstrap.servers``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from broker_runtime.contract.errors import InvalidConfigError
from pyspark_log.cli.arguments import parse_timeout_s
from pyspark_log.cli.config_file import ConfigFile, read_config_file
from pyspark_log.cli.exit_status import FAILED, say_error
from pyspark_log.cli.output import OutputFormat

if TYPE_CHECKING:
    from pyspark_log import Admin, Consumer, Producer
    from pyspark_log.cli.options import GivenOptions

DEFAULT_ADDRESS = "localhost:9192"
DEFAULT_TIMEOUT_S = 10.0
_BOOTSTRAP = "bootstrap.servers"
_BOOTSTRAP_VARIABLE = "PYLOG_BOOTSTRAP_SERVERS"
_REQUEST_TIMEOUT = "request.timeout.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The decisions. ``output`` None: the command's own default. ``address_is_given``: not just the default.
    ``flag_settings`` and ``file_settings`` are without ``bootstrap.servers``."""

    bootstrap_servers: str
    address_is_given: bool
    flag_settings: Mapping[str, str]
    file_settings: Mapping[str, Any]
    output: OutputFormat | None
    timeout_s: float
    timeout_is_given: bool
    yes: bool
    quiet: bool
    verbose: int

    @classmethod
    def resolve(cls, given: GivenOptions) -> Invocation:
        """From flags, environment and file. Raises `InvalidConfigError` naming the place of what is wrong."""
        file = read_config_file()
        flags = _parse_settings(given.setting)
        address = _bootstrap_servers(given.bootstrap_server, flags.pop(_BOOTSTRAP, None), file)
        file_settings = {name: value for name, value in file.settings.items() if name != _BOOTSTRAP}
        output, output_place = _first("output", given.output and given.output.value, file.output, file)
        timeout, timeout_place = _first("timeout", given.timeout, file.timeout, file)
        if output is not None and output not in list(OutputFormat):
            raise InvalidConfigError(f"{output_place}: {output!r} is none of {', '.join(OutputFormat)}")
        try:
            timeout_s = DEFAULT_TIMEOUT_S if timeout is None else parse_timeout_s(str(timeout))
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
            flag_settings=flags,
            file_settings=file_settings,
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
        if _REQUEST_TIMEOUT in known and (self.timeout_is_given or _REQUEST_TIMEOUT not in chosen):
            chosen[_REQUEST_TIMEOUT] = max(1, round(self.timeout_s * 1000))
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

    def confirm_name(self, question: str, name: str, *, what: str = "its name") -> None:
        """Asks for ``name`` to be typed, unless -y. Any other answer ends the command with status 1."""
        if self.yes:
            return
        sys.stderr.write(f"{question} Type {what} to go on (-y says yes): ")
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


def _first(name: str, flag: str | None, in_file: Any, file: ConfigFile) -> tuple[Any, str]:
    """The value that wins, and where it was said."""
    variable = f"PYLOG_{name.upper()}"
    if flag:
        return flag, f"--{name}"
    if os.environ.get(variable):
        return os.environ[variable], f"${variable}"
    return in_file, file.place(name)


def _bootstrap_servers(flag: str | None, setting: str | None, file: ConfigFile) -> str | None:
    """The brokers' addresses as text, checked; None: nobody said any."""
    if flag and setting and _addresses(flag, "-b: ") != _addresses(setting, "-X: "):
        raise InvalidConfigError(f"-b {flag} and -X {_BOOTSTRAP}={setting} name different brokers: give one of the two")
    for value, place in (
        (flag, "-b: "),
        (setting, "-X: "),
        (os.environ.get(_BOOTSTRAP_VARIABLE), f"${_BOOTSTRAP_VARIABLE}: "),
        (file.settings.get(_BOOTSTRAP), f"{file.path}: "),
    ):
        if value:
            _addresses(value, place)
            return value if isinstance(value, str) else ",".join(value)
    return None


def _addresses(value: object, place: str) -> object:
    from broker_runtime.contract.settings import find_setting

    try:
        return find_setting("admin", _BOOTSTRAP).parse(value)
    except InvalidConfigError as error:
        raise InvalidConfigError(place + error.message) from None
