"""The kinds of values a setting can have: how each is read from text or a Python value, and how it is shown.

A parser takes what a user gave (text from a file, an environment, a command line; or a Python value) and returns
the value in its own unit: sizes in bytes, durations in milliseconds. It raises `ValueError` whose text says what is
allowed, as the second half of a sentence ("must be …"); the caller names the setting. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from broker_runtime.contract import DEFAULT_PORT

_SIZE_UNITS = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER_WITH_UNIT = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z")
_LISTENER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


class Address(NamedTuple):
    """Where something listens. Port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listener(NamedTuple):
    """Where something listens under a name, by which it is known elsewhere; upper case."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


class Secret:
    """A password or token. Neither `str` nor `repr` shows it. Pickles, with what it hides."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """What is hidden."""
        return self._value

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class Kind(Enum):
    """What kind of value a setting has. Each member's value is the kind's name in the reference."""

    TEXT = "string"
    INTEGER = "int"
    SIZE = "size"
    DURATION = "duration"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICE_OR_CALLABLE = "choice or callable"
    CALLABLE = "callable"
    NAMES = "list"
    PATHS = "list of paths"
    ADDRESS = "host:port"
    ADDRESSES = "list of host:port"
    LISTENERS = "list of name://host:port"
    PAIRS = "list of name:value"
    PATH = "path"
    SECRET = "text that is not shown"  # noqa: S105 - a kind
    PRINCIPALS = "list of User:name"


def parse_size(value: object) -> int:
    """Bytes: a whole number, or text such as ``16MiB``, ``1GiB`` (powers of 1024), ``100kB``, ``1GB`` (of 1000)."""
    return _with_unit(value, _SIZE_UNITS, "a number of bytes, or one with KiB, MiB, GiB, TiB, kB, MB, GB or TB (16MiB)")


def parse_duration(value: object) -> int:
    """Milliseconds: a whole number, or text such as ``500ms``, ``30s``, ``15m``, ``12h``, ``7d``, ``2w``."""
    return _with_unit(value, _DURATION_UNITS, "a number of milliseconds, or one with ms, s, m, h, d or w (7d)")


def parse_address(value: object) -> Address:
    """``host:port``, ``[ipv6]:port``, with or without ``PLAINTEXT://`` before it."""
    allowed = f"host:port (127.0.0.1:{DEFAULT_PORT})"
    if isinstance(value, Address):
        return value
    text = _text(value, allowed).strip()
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme.upper() != "PLAINTEXT":
            raise ValueError(f"{allowed}, or PLAINTEXT://host:port; {scheme} is not served")
        text = rest
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(allowed)
    if (
        not colon
        or not port.isdecimal()
        or int(port) > 65_535
        or not host
        or any(c.isspace() or c in ",/" for c in host)
    ):
        raise ValueError(allowed)
    return Address(host, int(port))


def parse_addresses(value: object) -> tuple[Address, ...]:
    """A comma list or a sequence of addresses, each as `parse_address` reads it; duplicates are dropped."""
    found = tuple(dict.fromkeys(parse_address(part) for part in _parts(value, "a list of host:port")))
    if not found:
        raise ValueError("host:port, or several with commas between")
    return found


def parse_listeners(value: object) -> tuple[Listener, ...]:
    """A comma list or a sequence of ``NAME://host:port``, each name once; without a name it is ``PLAINTEXT``."""
    allowed = f"a list of name://host:port (PLAINTEXT://127.0.0.1:{DEFAULT_PORT}), each name once"
    found: list[Listener] = []
    for part in _parts(value, allowed):
        name, separator, rest = part.rpartition("://")
        if separator and not _LISTENER_NAME.fullmatch(name):
            raise ValueError(f"{allowed}, the name of letters, digits and _")
        try:
            found.append(Listener(name.upper() or "PLAINTEXT", parse_address(rest)))
        except ValueError:
            raise ValueError(allowed) from None
    if not found or len({each.name for each in found}) < len(found):
        raise ValueError(allowed)
    return tuple(found)


def parse_pairs(value: object) -> tuple[tuple[str, str], ...]:
    """A comma list or a sequence of ``NAME:VALUE``, each name once; both in upper case."""
    allowed = "a list of name:value, each name once"
    pairs = [part.upper().partition(":") for part in _parts(value, allowed)]
    if (
        not pairs
        or not all(name and after for name, _, after in pairs)
        or len({name for name, _, _ in pairs}) < len(pairs)
    ):
        raise ValueError(allowed)
    return tuple((name.strip(), after.strip()) for name, _, after in pairs)


def parse_principals(value: object) -> tuple[str, ...]:
    """``User:alice;User:bob``, as Kafka has it, or with commas, or a sequence: the names without ``User:``."""
    allowed = "User:name, or several with ; between"
    parts = _parts(value.replace(";", ",") if isinstance(value, str) else value, allowed)
    if not parts or not all(part.startswith("User:") and len(part) > len("User:") for part in parts):
        raise ValueError(allowed)
    return tuple(dict.fromkeys(part.removeprefix("User:") for part in parts))


def parse_path(value: object) -> Path:
    """A path; ``~`` is the home directory."""
    return Path(parse_text(value)).expanduser()


def parse_secret(value: object) -> Secret:
    """Text, not empty, which is never shown."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise ValueError("text that is not empty, in valid Unicode")
    return Secret(value)


def is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates, which a variable or an argument has where its bytes are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_boolean(value: object) -> bool:
    """``true`` or ``false`` (any case), also 1/0, yes/no, on/off."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("true or false")


def parse_integer(value: object) -> int:
    """A whole number, also as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,19}\s*", value):
        return int(value)
    raise ValueError("a whole number")


def parse_text(value: object) -> str:
    """Text, not empty."""
    text = _text(value, "text").strip()
    if not text:
        raise ValueError("text that is not empty")
    return text


def parse_choice(value: object) -> str:
    """A word; a whole number stands for its digits (``acks=1``)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return parse_text(value)


def parse_names(value: object) -> tuple[str, ...]:
    """A comma list or a sequence of names, at least one; in the order given, without duplicates."""
    names = tuple(dict.fromkeys(_parts(value, "a list of names, or names with commas between")))
    if not names:
        raise ValueError("at least one name")
    return names


def parse_paths(value: object) -> tuple[Path, ...]:
    """A comma list of directories, or a sequence, in which a name may have a comma; ``~`` is the home directory."""
    if isinstance(value, Path):
        return (value,)
    parts = [str(part) for part in value] if isinstance(value, list | tuple) else value
    return tuple(Path(name).expanduser() for name in parse_names(parts))


def parse_callable(value: object) -> Callable[..., object]:
    """A Python callable; text cannot be one."""
    if not callable(value):
        raise ValueError("a Python callable")
    return value


PARSERS: dict[Kind, Callable[[object], object]] = {
    Kind.TEXT: parse_text,
    Kind.INTEGER: parse_integer,
    Kind.SIZE: parse_size,
    Kind.DURATION: parse_duration,
    Kind.BOOLEAN: parse_boolean,
    Kind.CHOICE: parse_choice,
    Kind.CHOICE_OR_CALLABLE: lambda value: value if callable(value) else parse_choice(value),
    Kind.CALLABLE: parse_callable,
    Kind.NAMES: parse_names,
    Kind.PATHS: parse_paths,
    Kind.ADDRESS: parse_address,
    Kind.ADDRESSES: parse_addresses,
    Kind.LISTENERS: parse_listeners,
    Kind.PAIRS: parse_pairs,
    Kind.PATH: parse_path,
    Kind.SECRET: parse_secret,
    Kind.PRINCIPALS: parse_principals,
}


def show(kind: Kind, value: object) -> str:
    """The value as a user would type it; `PARSERS[kind]` reads it back (callables excepted)."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and kind is Kind.SIZE:
        return _show_with_unit(value, (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)))
    if isinstance(value, int) and kind is Kind.DURATION:
        return _show_with_unit(value, (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)))
    if kind is Kind.PAIRS and isinstance(value, tuple):
        return ",".join(f"{name}:{after}" for name, after in value)
    if kind is Kind.PRINCIPALS and isinstance(value, tuple):
        return ";".join(f"User:{name}" for name in value)
    if isinstance(value, tuple) and not isinstance(value, Address):
        return ",".join(str(part) for part in value)
    return str(value)


def _with_unit(value: object, units: dict[str, int], allowed: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _NUMBER_WITH_UNIT.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(allowed)
    number, unit = match.groups()
    factor = units.get(unit.lower()) if unit else 1
    if factor is None or len(number) > 19:
        raise ValueError(allowed)
    if "." not in number:
        return int(number) * factor
    if not unit:
        raise ValueError(allowed)
    return round(float(number) * factor)


def _show_with_unit(value: int, units: tuple[tuple[str, int], ...]) -> str:
    for unit, factor in units:
        if value > 0 and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def _text(value: object, allowed: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Path):
        return str(value)
    raise ValueError(allowed)


def _parts(value: object, allowed: str) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, Address):
        return [str(value)]
    if not isinstance(value, Iterable):
        raise ValueError(allowed)
    parts = [str(part) if isinstance(part, Address | Listener) else part for part in value]
    if not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError(allowed)
    return [part.strip() for part in parts]
