"""What a page is given, and what it returns.

Rule: plain values, so that a test can call a page. A view is a function from a `Visit` to a `Page`. An act changes
something and returns where to redirect to (`Done`), or raises: then the page with the form is shown again, with the
error and what was typed.
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
    """A request for a page. ``parts``: the path's parameters. ``query``, ``form``: the last value of each name;
    ``lists``: all values of each name of the form. ``failed``: the action whose form is shown again, with its ``error``
    and its ``outcome`` (whether it was done)."""

    connection: Connection
    parts: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, list[str]] = field(default_factory=dict)
    failed: str = ""
    error: str = ""
    outcome: str = ""

    def refused(self, action: str, error: str, outcome: str) -> Visit:
        """The same request, for the page that is shown again."""
        return replace(self, failed=action, error=error, outcome=outcome)

    def number(self, name: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
        """A number in the query string. Raises `OptionError`."""
        return number_of(self.query.get(name, ""), name, default, least=least, most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A template and its values. ``title``: the page's only ``h1``. ``every_s``: how often its live part is refreshed;
    0: never."""

    template: str
    title: str
    section: str
    values: Mapping[str, Any]
    every_s: int = 0
    status: int = 200


@dataclass(frozen=True, slots=True)
class Done:
    """Something was changed: where to redirect to, and the notice to show there."""

    path: str
    notice: str


View = Callable[[Visit], Page]
Act = Callable[[Visit], Done]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that a page can do without. ``value`` None: there is none, for the reason in ``why``."""

    value: Any
    why: str = ""


def ask(question: Callable[[], _T]) -> Answer:
    """Asks for something that the page can do without: the user may not be allowed to see it, or no broker answers."""
    try:
        return Answer(value=question())
    except AuthorizationError:
        return Answer(value=None, why="You may not see this.")
    except PylogError as error:
        return Answer(value=None, why=error.message)


def number_of(text: str, name: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
    """A number that the user typed. Raises `OptionError`."""
    text = text.strip().replace(",", "")
    if not text:
        return default
    if not _NUMBER.match(text) or not least <= int(text) <= most:
        raise OptionError(f"{name}: {text[:40]!r} must be a number from {least:,} to {most:,}")
    return int(text)


def whole(name: str, text: str) -> int:
    """A required number. Raises `OptionError`."""
    if not text.strip():
        raise OptionError(f"{name}: must be given")
    return number_of(text, name, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """One page of a long table. ``number``: from 1."""

    rows: list[Any]
    number: int
    pages: int
    total: int


def portion(rows: list[Any], number: int, size: int = 50) -> Portion:
    """Page ``number`` of ``rows``, or the last page if there are fewer."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    return Portion(rows=rows[(number - 1) * size : number * size], number=number, pages=pages, total=len(rows))
