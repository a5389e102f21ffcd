"""The code blocks of README and of the documentation's pages, and the `pylog` commands that their text names.

`run_documents` runs the blocks.

Every block has a kind: ``sh`` and ``python`` are run unchanged, in order; ``toml`` is a file that a command reads;
``text`` is a drawing, a listing or a synopsis. Blocks that are not run are in `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs" / "pages"

# These begin with an empty machine; every other page goes on where the last of them ends.
BEGINNINGS = ("README.md", "docs/pages/getting-started.md")

LANGUAGES = ("sh", "python", "toml", "text")

# By a block's first line.
NOT_RUN = {
    "make demo    #": "make demo has a test of its own, and make test is what runs this",
}


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line``: where it begins in the document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """The block's first line, by which it is identified."""
        return self.text.split("\n", 1)[0]

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.document} line {self.line}"

    @property
    def is_synopsis(self) -> bool:
        """Whether it shows how commands are called, with placeholders."""
        return self.language == "text" and self.first_line.startswith("pylog ")

    @property
    def reason_not_to_run(self) -> str | None:
        """Why the block is not run; None: it is."""
        return next((reason for begin, reason in NOT_RUN.items() if self.first_line.startswith(begin)), None)


@dataclass(frozen=True)
class NamedCommand:
    """A call of `pylog` as the text shows it: alternatives for its words, and the options beside it."""

    text: str
    words: tuple[tuple[str, ...], ...]
    options: tuple[str, ...]


def documents() -> dict[str, str]:
    """README and all pages: texts by their paths, in the order in which their blocks are run."""
    pages = sorted(str(path.relative_to(ROOT)) for path in PAGES.rglob("*.md"))
    return {name: (ROOT / name).read_text() for name in dict.fromkeys([*BEGINNINGS, *pages])}


def blocks(text: str, document: str = "") -> list[Block]:
    """All blocks in order, without the indentation of a list around them."""
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        fence = re.match(r"( *)```(\S*)\s*$", line)
        if fence:
            inside = itertools.takewhile(lambda each: each[1].strip() != "```", lines)
            content = "\n".join(each.removeprefix(fence[1]) for _, each in inside)
            found.append(Block(document, number, fence[2], content))
    return found


def named_commands(text: str) -> list[NamedCommand]:
    """The commands of synopses and of the running text (`` `pylog …` ``)."""
    calls = [line for block in blocks(text) if block.is_synopsis for line in _joined(block.text)]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    calls += [" ".join(call.split()) for call in re.findall(r"`(pylog\s[^`]+)`", prose)]
    return [_named(call) for call in calls]


def _joined(synopsis: str) -> Iterator[str]:
    yield from (line for line in synopsis.splitlines() if line.strip())


def _named(call: str) -> NamedCommand:
    # Words up to the first that is no plain name (or several, with | between), at most a group and its command.
    words: list[tuple[str, ...]] = []
    for word in call.split()[1:]:
        if not re.fullmatch(r"[a-z][a-z-]*(\|[a-z][a-z-]*)*", word) or len(words) == 2:
            break
        words.append(tuple(word.split("|")))
    options = re.findall(r"(?<![\w|%'\"-])(--[a-z][a-z-]*|-[a-zX])(?![\w-])", call)
    return NamedCommand(call, tuple(words), tuple(dict.fromkeys(options)))


def shell_lines(block: Block) -> list[str]:
    """The block's commands, without remarks for the reader."""
    return [line for line in block.text.splitlines() if shlex.split(line, comments=True)]
