"""A broker's settings from a TOML file.

Dotted names may be quoted (``"broker.id" = 1``), bare (``broker.id = 1``) or nested tables (``[broker]`` ``id = 1``);
all mean the same. Lists stand for comma lists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings.resolution import BrokerSettings, resolve

_MAX_FILE_BYTES = 1 << 20


def load_broker_settings(path: Path, overrides: Mapping[str, object] | None = None) -> BrokerSettings:
    """The broker's settings in ``path``; ``overrides`` (dotted names) win.

    Raises `InvalidConfigError` that names the file and what is wrong: it is missing, is not TOML, or as `resolve`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes, so no file of settings")
    try:
        tree = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path}: not TOML: {error}") from None
    try:
        return resolve("broker", {**flatten(tree), **(overrides or {})})
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: {error.message}") from None


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The values by dotted name. Raises `InvalidConfigError` for a name that is there in two ways."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = prefix + key
        found = flatten(value, name + ".") if isinstance(value, Mapping) else {name: value}
        twice = flat.keys() & found.keys()
        if twice:
            raise InvalidConfigError(f"{min(twice)} is given twice")
        flat.update(found)
    return flat
