"""Situations that the seeds of a workload are to reach: each is counted when it arises (`Trace.situation`).

A checker sees only what happens. Rule: a workload lists whatever a promise is about and no fault brings about for
certain. Counting changes nothing in a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_PREFIX = "situation: "


def key(name: str) -> str:
    """What a situation is counted under."""
    return _PREFIX + name


def never_happened(situations: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    """Those that no seed reached."""
    return [name for name in situations if not counts.get(key(name))]
