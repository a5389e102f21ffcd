"""What a page is given, and what it answers.

Rule: plain values, so that a page is tested by calling it. A page that only shows is a function of a `Visit` to a
`Page`; one that changes something returns where to go then (`Done`), or raises, and the page it came from is shown
again with the error and what was typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from broker_runtime.contract.errors import AuthorizationError, OptionError, PylogError
from pyspark_log.console.connection import Connection

MOST_TEXT: Final = 1_000_000
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request for a page. ``parts``: of its path. ``query``, ``form``: the last value of each name; ``lists``: all
    values of the form's. ``error``: what the form named ``failed`` was refused with; ``outcome``: what of
    it was done all the same."""

    connection: Connection
    parts: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, list[str]] = field(default_factory=dict)
    failed: str = ""
    error: str = ""
    outcome: str = ""

    def refused(self, action: str, error: str, outcome: str) -> Visit:
        """The same, for the page that is shown again."""
        return replace(self, failed=action, error=error, outcome=outcome)

    def number(self, name: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
        """A number of the query. Raises `OptionError`."""
        return number_of(self.query.get(name, ""), name, default, least=least, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A template and what is in it. ``title`` is the page's only heading of the first level; ``every_s``: how often it
    renews what is live, 0: nothing is."""

    template: str
    title: str
    section: str
    values: Mapping[str, Any]
    every_s: int = 0
    status: int = 200


@dataclass(frozen=True, slots=True)
class Done:
    """Something was changed: where to go, and what to say there."""

    path: str
    notice: str


View = Callable[[Visit], Page]
Act = Callable[[Visit], Done]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was asked beside the main thing: ``value`` None where it could not be had, with the reason in ``why``."""

    value: Any
    why: str = ""


def ask(question: Callable[[], _T]) -> Told:
    """An answer without which the page is still worth showing: the user may not know it, or nobody answers."""
    try:
        return Told(value=question())
    except AuthorizationError:
        return Told(value=None, why="You may not see this.")
    except PylogError as error:
        return Told(value=None, why=error.message)


def number_of(text: str, name: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
    """A number that somebody typed. Raises `OptionError`."""
    text = text.strip().replace(",", "")
    if not text:
        return default
    if not _NUMBER.match(text) or not least <= int(text) <= most:
        raise OptionError(f"{name}: {text[:40]!r} must be a number from {least:,} to {most:,}")
    return int(text)


def whole(name: str, text: str) -> int:
    """A number that has to be given. Raises `OptionError`."""
    if not text.strip():
        raise OptionError(f"{name}: must be given")
    return number_of(text, name, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """A part of a long table. ``number``: which, from 1."""

    rows: list[Any]
    number: int
    pages: int
    total: int


def portion(rows: list[Any], number: int, size: int = 50) -> Portion:
    """The part with that number; the last one where there are fewer."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    return Portion(rows=rows[(number - 1) * size : number * size], number=number, pages=pages, total=len(rows))
