"""Waiting in tests: the one way to look again and again until a condition holds, or time is up.

Rule: every wait has a limit, and a failed wait reports what it waited for and what it last saw.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark_log import Consumer, Record

LIMIT_S = 60.0
"""For what should take a second, on a busy machine."""
SOON_S = 20.0
"""For what a peer or another process does at once."""

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.2
_PAUSE_SHARE = 0.1  # a pause lengthens a wait by at most this share, and a long wait costs no processor time

_T = TypeVar("_T")


def wait_until(
    look: Callable[[], _T],
    what: str,
    limit_s: float = LIMIT_S,
    *,
    pause_s: float | None = None,
    ignoring: tuple[type[Exception], ...] = (),
) -> _T:
    """Looks until the answer is true, and returns it.

    ``what``: for the message of the failure after ``limit_s``. ``pause_s``: between two looks; None: grows with the
    time waited, 0 if a look itself waits. A look that raises one of ``ignoring`` is repeated.
    """
    last: object = None
    for _ in _tries(limit_s, pause_s):
        try:
            answer = look()
        except ignoring as error:
            last = error
            continue
        if answer:
            return answer
        last = answer
    seen = repr(last) if isinstance(last, Exception) else _seen(look, last)
    raise AssertionError(f"not within {limit_s:g} s: {what}; last seen: {seen}")


def comes_true(look: Callable[[], object], limit_s: float = LIMIT_S, *, pause_s: float | None = None) -> bool:
    """The same for a condition that may not come true: returns whether it did in time."""
    return any(look() for _ in _tries(limit_s, pause_s))


def take(consumer: Consumer, count: int, limit_s: float = LIMIT_S) -> list[Record]:
    """Polls until there are at least ``count`` records, and returns them."""
    records: list[Record] = []
    wait_until(
        lambda: records.extend(consumer.poll(0.2)) or len(records) >= count, f"{count} records", limit_s, pause_s=0
    )
    return records


def _tries(limit_s: float, pause_s: float | None) -> Iterator[None]:
    """One iteration for each look, the last when time is up."""
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < limit_s:
        yield
        if pause_s is None:
            time.sleep(min(max(_FIRST_PAUSE_S, _PAUSE_SHARE * waited_s), _LONGEST_PAUSE_S))
        else:
            time.sleep(pause_s)
    yield


def _seen(look: Callable[[], object], answer: object) -> str:
    """What a look compares, evaluated once more: `False` alone explains nothing."""
    if not isinstance(answer, bool) and answer is not None:
        return repr(answer)
    with contextlib.suppress(Exception):
        body = _body(look)
        names = _names(look)
        values = {
            ast.unparse(part): eval(compile(ast.Expression(part), "look", "eval"), names) for part in _parts(body)
        }
        return ", ".join(f"{text} = {value!r}" for text, value in values.items())
    return repr(answer)


def _body(look: Any) -> ast.expr:
    """The expression of a lambda, from the source lines of its code."""
    code = look.__code__
    places = [place for place in code.co_positions() if None not in place and place[1:] != (place[0], 0, 0)]
    first, _, start, _ = min(places, key=lambda place: (place[0], place[2]))
    _, last, _, end = max(places, key=lambda place: (place[1], place[3]))
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return ast.parse(f"({b''.join(lines).decode()})", mode="eval").body


def _names(look: Any) -> dict[str, object]:
    """All names that the lambda's expression can use."""
    code = look.__code__
    enclosed = {name: cell.cell_contents for name, cell in zip(code.co_freevars, look.__closure__ or (), strict=True)}
    return {**look.__globals__, **enclosed, **dict(zip(code.co_varnames, look.__defaults__ or (), strict=False))}


def _parts(condition: ast.expr) -> Iterator[ast.expr]:
    match condition:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _parts(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _parts(operand)
        case ast.Compare(left=left, comparators=others):
            yield from (part for part in (left, *others) if not _is_literal(part))
        case _:
            yield condition


def _is_literal(part: ast.expr) -> bool:
    try:
        ast.literal_eval(part)
    except ValueError:
        return False
    return True
