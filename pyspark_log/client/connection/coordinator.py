"""Which broker coordinates a group, as one client knows it: looked up once, remembered, forgotten when in doubt.

Rule: a broker that says it is not the coordinator, or cannot be now, or that does not answer, is forgotten; the next
attempt asks any broker again. What is remembered is only a hint: brokers check whether they are the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A target of `Cluster.call`: the broker that coordinates the group."""

    group_id: str


class Coordinators:
    """What one client remembers. Thread-safe: at worst, two threads look up the same coordinator."""

    def __init__(self) -> None:
        self._by_group: dict[str, int] = {}

    def broker_id(self, of: Coordinator, ask: Callable[[str], int]) -> int:
        """The group's coordinator; ``ask`` looks it up if it is not known. Raises as ``ask``."""
        known = self._by_group.get(of.group_id)
        if known is None:
            known = self._by_group[of.group_id] = ask(of.group_id)
        return known

    def forget(self, of: Coordinator) -> None:
        """The group may have another coordinator now."""
        self._by_group.pop(of.group_id, None)

    def clear(self) -> None:
        """All groups may have other coordinators now."""
        self._by_group.clear()
