"""``~/.config/pylog/config.toml``: the user's own defaults for `pylog`.

    "bootstrap.servers" = "log1:9192,log2:9192"    # any client setting: quoted, dotted, or as tables
    "compression.type" = "zstd"                    # used by each client that has the setting
    output = "wide"                                # as -o
    timeout = "30s"                                # as --timeout

Rule: only the command line reads it. Programs and Spark use `$PYLOG_BOOTSTRAP_SERVERS` and their own settings, so that
their behaviour does not depend on the home directory they run in. ``$PYLOG_CONFIG`` names another file. Also accepted:
``bootstrap-server`` for ``bootstrap.servers``, and a table ``[client]`` around the clients' settings.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.suggestion import nearest

_OWN_KEYS = ("output", "timeout")
_BOOTSTRAP = "bootstrap.servers"
_OTHER_NAMES = {"bootstrap-server": _BOOTSTRAP, "bootstrap-servers": _BOOTSTRAP}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The file's contents. ``settings``: client settings by dotted name, including ``bootstrap.servers``."""

    path: Path
    output: Any = None
    timeout: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Where ``key`` was given, for errors."""
        return f"{self.path}: {key}"


def read_config_file() -> ConfigFile:
    """Reads the file and checks each setting by itself. Without a file the result is empty.

    Raises `InvalidConfigError`, which names the file, the key and what is allowed; also where the file that
    `$PYLOG_CONFIG` names does not exist.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    named = os.environ.get("PYLOG_CONFIG")
    path = Path(named) if named else home / "pylog" / "config.toml"
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise InvalidConfigError(f"$PYLOG_CONFIG names {path}, which does not exist") from None
        return ConfigFile(path=path)
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfigError(f"{path}: is not valid TOML: {error}") from None
    try:
        return _checked(path, tree)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: {error.message}") from None


def _checked(path: Path, tree: Mapping[str, Any]) -> ConfigFile:
    from broker_runtime.contract.settings import flatten, settings_of

    known = {**settings_of("producer"), **settings_of("consumer"), **settings_of("admin")}
    own: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for key, value in flatten(tree).items():
        if key in _OWN_KEYS:
            own[key] = value
            continue
        name = key if key in known else key.removeprefix("client.")
        name = _OTHER_NAMES.get(name, name)
        if name not in known:
            raise InvalidConfigError(f"{name!r} is not a setting of this file; {_hint(name, [*_OWN_KEYS, *known])}")
        if name in settings:
            raise InvalidConfigError(f"{name} is given twice")
        known[name].parse(value)
        settings[name] = value
    return ConfigFile(path=path, settings=settings, **own)


def _hint(name: str, known: list[str]) -> str:
    from broker_runtime.contract.settings import settings_of

    if name in settings_of("topic"):
        return "it is a topic setting"
    if name in settings_of("broker"):
        return "it is a broker setting"
    meant = nearest(name, known)
    if meant is not None:
        return f"did you mean {meant!r}?"
    return (
        f"allowed are {', '.join(_OWN_KEYS)} and the settings of producers, consumers and admin clients "
        f"({_BOOTSTRAP} and others)"
    )
