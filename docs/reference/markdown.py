"""The little markdown that the generated pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell may have several lines, and pipes."""
    lines = [head, ["---"] * len(head), *([_cell(each) for each in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def sections(*parts: str) -> str:
    """The parts with an empty line between them, ending with one newline."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
