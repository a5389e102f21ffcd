"""The product broken on purpose, in one way at a time: what a checker has to find.

A variant is a generator of patches. Rule: it breaks one promise and nothing else, as somebody might by forgetting one
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

Patches = Iterator[Any]
Make = Callable[[], Patches]


@dataclass(frozen=True, slots=True)
class _Variant:
    make: Make
    faults: tuple[str, ...] | None


class Variants:
    """The variants of one workload, by name."""

    def __init__(self) -> None:
        self._variants: dict[str, _Variant] = {}

    def variant(self, make: Make | None = None, *, faults: tuple[str, ...] | None = None) -> Any:
        """Registers a generator of patches under its name. ``faults``: the kinds of faults that find it soonest; None:
        those of each seed's plan."""
        if make is None:
            return partial(self.variant, faults=faults)
        self._variants[make.__name__] = _Variant(make, faults)
        return make

    def names(self) -> list[str]:
        """All variants."""
        return list(self._variants)

    def faults(self, name: str) -> tuple[str, ...] | None:
        """The kinds of faults that find the variant soonest; None: those of each seed's plan."""
        return self._variants[name].faults

    @contextmanager
    def broken(self, name: str) -> Iterator[None]:
        """Inside, the product is broken in that way."""
        with ExitStack() as stack:
            for patch in self._variants[name].make():
                stack.enter_context(patch)
            yield
