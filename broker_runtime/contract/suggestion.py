"""How a message about an unknown name ends: with the name that was probably meant, or with the names to choose from.

Pure. Everything that refuses a name uses it: columns, settings, Spark options, keys of the configuration file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_MOST_NAMES: Final = 50
_LEAST_LIKENESS: Final = 0.5


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to ``name``, ignoring case; None if none is at least half similar."""
    by_lowered: dict[str, str] = {}
    for each in known:
        by_lowered.setdefault(each.lower(), each)
    close = difflib.get_close_matches(name.lower(), by_lowered, n=1, cutoff=_LEAST_LIKENESS)
    return by_lowered[close[0]] if close else None


def suggestion(name: str, known: Iterable[str], *, otherwise: Iterable[str] | None = None, prefix: str = "") -> str:
    """``did you mean 'delay'?``, or if no known name is similar, ``choose from carrier, delay`` (the first fifty).

    ``otherwise``: the names to choose from, if not all the known ones should be offered. ``prefix`` is put before every
    name: the caller's names begin with it, those given here do not.
    """
    known = list(known)
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {prefix + near!r}?"
    names = [prefix + each for each in (known if otherwise is None else otherwise)]
    return f"choose from {', '.join(names[:_MOST_NAMES])}{', …' if len(names) > _MOST_NAMES else ''}"
