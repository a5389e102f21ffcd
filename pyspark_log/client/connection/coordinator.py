"""Which broker coordinates a group, as one client knows it: asked once, remembered, forgotten when in doubt.

Rule: a broker that says that it is not the one, that it cannot be at present, or that does not answer, is forgotten;
the next try asks any broker anew. What is remembered is never more than a hint: coordinators themselves know better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Whom `Cluster.call` asks: the broker that coordinates the group, whichever that is."""

    group_id: str


class Coordinators:
    """What one client remembers. Thread-safe: the worst that threads do to each other is to ask once more."""

    def __init__(self) -> None:
        self._by_group: dict[str, int] = {}

    def broker_id(self, of: Coordinator, ask: Callable[[str], int]) -> int:
        """The group's coordinator; ``ask`` finds out who that is if it is not known. Raises as ``ask``."""
        known = self._by_group.get(of.group_id)
        if known is None:
            known = self._by_group[of.group_id] = ask(of.group_id)
        return known

    def forget(self, of: Coordinator) -> None:
        """It may be another by now."""
        self._by_group.pop(of.group_id, None)
