"""The settings of one call of `pylog`: brokers, client settings, output format, confirmation.

Rule: an option wins over ``PYLOG_…`` in the environment, which wins over the file (`pyspark_log.cli.config_file`),
which wins over the default. ``-X`` is an option like the others, also for ``bootstrap.servers``.
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

from broker_runtime.contract import DEFAULT_PORT
from broker_runtime.contract.errors import InvalidConfigError, OptionError
from pyspark_log.cli.arguments import parse_settings, parse_timeout_s
from pyspark_log.cli.config_file import ConfigFile, read_config_file
from pyspark_log.cli.exit_status import FAILED, say_error
from pyspark_log.cli.output import OutputFormat

if TYPE_CHECKING:
    from pyspark_log import Admin, Consumer, Producer
    from pyspark_log.cli.options import GivenOptions

DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_S = 10.0
_BOOTSTRAP = "bootstrap.servers"
_GROUP = "group.id"
_AUTO_COMMIT = "enable.auto.commit"
_REQUEST_TIMEOUT = "request.timeout.ms"
_DELIVERY_TIMEOUT = "delivery.timeout.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The settings after all sources were merged.

    ``output`` None: the command's own default. ``address_is_given``, ``timeout_is_given``: it is not the default.
    ``output_is_option``, ``timeout_is_option``: it was given on the command line. ``flag_settings`` and
    ``file_settings`` do not contain ``bootstrap.servers``.
    """

    bootstrap_servers: str
    address_is_given: bool
    flag_settings: Mapping[str, str]
    file_settings: Mapping[str, Any]
    output: OutputFormat | None
    output_is_option: bool
    timeout_s: float
    timeout_is_given: bool
    timeout_is_option: bool
    yes: bool
    quiet: bool
    verbose: int

    @classmethod
    def resolve(cls, given: GivenOptions) -> Invocation:
        """Merges options, environment and file. Raises `InvalidConfigError`, which says where the wrong value is."""
        file = read_config_file()
        flags = parse_settings(given.setting, option="-X", example="linger.ms=5", error=InvalidConfigError)
        _refuse_secrets(flags, file)
        address = _bootstrap_servers(given.bootstrap_server, flags.pop(_BOOTSTRAP, None), file)
        file_settings = {name: value for name, value in file.settings.items() if name != _BOOTSTRAP}
        output, output_place = _first("output", given.output and given.output.value, file.output, file)
        timeout, timeout_place = _first("timeout", given.timeout, file.timeout, file)
        if output is not None and output not in list(OutputFormat):
            raise InvalidConfigError(f"{output_place}: {output!r} is not one of {', '.join(OutputFormat)}")
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
            output_is_option=bool(given.output),
            timeout_s=timeout_s,
            timeout_is_given=timeout is not None,
            timeout_is_option=bool(given.timeout),
            yes=given.yes,
            quiet=given.quiet,
            verbose=given.verbose,
        )

    def settings(self, scope: Any) -> dict[str, Any]:
        """Client settings for one scope of `broker_runtime.contract.settings`.

        The file may have settings of other scopes, which are left out. Settings given with -X are all kept, so that
        the client refuses those that it does not know.
        """
        from broker_runtime.contract.settings import settings_of

        known = settings_of(scope)
        chosen: dict[str, Any] = {name: value for name, value in self.file_settings.items() if name in known}
        if _REQUEST_TIMEOUT in known and (self.timeout_is_given or _REQUEST_TIMEOUT not in chosen):
            chosen[_REQUEST_TIMEOUT] = self._timeout_ms
        return {**chosen, **self.flag_settings}

    @contextmanager
    def admin(self, *, beside: Any = "admin") -> Iterator[Admin]:
        """An open `Admin`.

        ``beside``: the scope of the command's main client, which -X is for. What that client would refuse is refused
        here; of the rest, the admin client takes what it knows.
        """
        from broker_runtime.contract.settings import parse_given, settings_of
        from pyspark_log import Admin

        parse_given(beside, self.settings(beside))
        known = settings_of("admin")
        config = {name: value for name, value in self.settings(beside).items() if name in known}
        with Admin(self.bootstrap_servers, config=config) as admin:
            yield admin

    @contextmanager
    def producer(self, **settings: Any) -> Iterator[Producer]:
        """An open `Producer`, flushed on exit. ``settings`` are the command's own; -X wins over them.

        The option --timeout bounds the delivery of a record; a timeout of the environment or the file does not.
        """
        from pyspark_log import Producer

        config = {**settings, **self.settings("producer")}
        if self.timeout_is_option and _DELIVERY_TIMEOUT not in self.flag_settings:
            config[_DELIVERY_TIMEOUT] = self._timeout_ms
        with Producer(self.bootstrap_servers, config=config) as producer:
            yield producer

    @contextmanager
    def consumer(self, *, group: str | None, **settings: Any) -> Iterator[Consumer]:
        """An open `Consumer` without topics, of the ``group`` (see `group`), which commits nothing by itself.
        ``settings`` are the command's own; -X wins over them. Raises `OptionError` for -X enable.auto.commit."""
        from pyspark_log import Consumer

        if _AUTO_COMMIT in self.flag_settings:
            raise OptionError(f"-X {_AUTO_COMMIT}: has no meaning here, since only what was printed is committed")
        own = {_AUTO_COMMIT: False, **({} if group is None else {_GROUP: group})}
        config = {**settings, **self.settings("consumer"), **own}
        with Consumer(bootstrap_servers=self.bootstrap_servers, config=config) as consumer:
            yield consumer

    def group(self, given: str | None) -> str | None:
        """The consumer's group: ``given`` with -g, or ``group.id`` of -X or the file; None: none.

        Raises `OptionError` if -g and -X name different groups.
        """
        setting = self.flag_settings.get(_GROUP)
        if given is not None and setting is not None and given != setting:
            raise OptionError(f"-g {given} and -X {_GROUP}={setting} name different groups: give only one of them")
        found = self.settings("consumer").get(_GROUP)
        return found if given is None else given

    @property
    def _timeout_ms(self) -> int:
        return max(1, round(self.timeout_s * 1000))

    def say(self, text: str) -> None:
        """Prints a message to standard error, unless -q."""
        if not self.quiet:
            sys.stderr.write(text + "\n")

    def confirm_name(self, question: str, name: str, *, what: str = "its name") -> None:
        """Asks the user to type ``name``, unless -y. After any other answer the command ends with status 1."""
        if self.yes:
            return
        sys.stderr.write(f"{question} Type {what} to confirm (-y skips this question): ")
        sys.stderr.flush()
        answer = sys.stdin.readline().rstrip("\r\n")
        if name not in {answer, answer.strip()}:  # a group's id may begin or end with blanks
            sys.stderr.write("\n" if not sys.stdin.isatty() else "")
            say_error(f"[NOT_CONFIRMED] The answer was not {name!r}. Nothing was changed.")
            raise typer.Exit(FAILED)


def usage_error(text: str) -> typer.BadParameter:
    """An error of usage that typer cannot find by itself; exit status 2."""
    return typer.BadParameter(text)


def _refuse_secrets(flags: Mapping[str, Any], file: ConfigFile) -> None:
    """Raises `InvalidConfigError` for a password or a token: other users of the machine can read a command's arguments,
    and so can whoever reads the shell's history."""
    if not flags:
        return
    from broker_runtime.contract.settings import settings_of
    from broker_runtime.contract.settings.kinds import Kind

    known = settings_of("admin")
    for name in flags:
        if name in known and known[name].kind is Kind.SECRET:
            raise InvalidConfigError(
                f"-X {name}=…: others can read a command's arguments. Write it into {file.path}, for your eyes alone, "
                "or into another file that $PYLOG_CONFIG names"
            )


def _first(name: str, flag: str | None, in_file: Any, file: ConfigFile) -> tuple[Any, str]:
    """The value that wins, and where it was given."""
    variable = f"PYLOG_{name.upper()}"
    if flag:
        return flag, f"--{name}"
    if os.environ.get(variable):
        return os.environ[variable], f"${variable}"
    return in_file, file.place(name)


def _bootstrap_servers(flag: str | None, setting: str | None, file: ConfigFile) -> str | None:
    """The brokers' addresses as text, checked; None: none were given."""
    from broker_runtime.contract.settings import BOOTSTRAP_VARIABLE

    if flag and setting and _addresses(flag, "-b: ") != _addresses(setting, "-X: "):
        raise InvalidConfigError(
            f"-b {flag} and -X {_BOOTSTRAP}={setting} name different brokers: give only one of them"
        )
    for value, place in (
        (flag, "-b: "),
        (setting, "-X: "),
        (os.environ.get(BOOTSTRAP_VARIABLE), f"${BOOTSTRAP_VARIABLE}: "),
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
