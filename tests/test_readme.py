"""README is short, and its blocks and commands, and those of the documentation's pages, are of kinds that are checked:
each is run or excused.

`tests/wheel/run_documents.py` runs the blocks, in an empty virtual environment.
"""

from __future__ import annotations

import codeop
import functools

import pytest
import typer
from typer.core import TyperGroup

from pyspark_log.cli.app import build
from tests.wheel.documents import LANGUAGES, NOT_RUN, Block, NamedCommand, blocks, documents, named_commands
from tests.wheel.run_documents import OUTPUT

DOCUMENTS = documents()
BLOCKS = [block for name, text in DOCUMENTS.items() for block in blocks(text, name)]
COMMANDS = [(name, named) for name, text in DOCUMENTS.items() for named in named_commands(text)]
README_LINES = 300


@functools.cache
def whole_command() -> object:
    """`pylog`."""
    return typer.main.get_command(build())


def problem_of(named: NamedCommand) -> str | None:
    """What is wrong with a command that a document names; None: it exists, with each of its options."""
    places: list[object] = [whole_command()]
    for alternatives in named.words:
        if not all(isinstance(place, TyperGroup) for place in places):
            break  # an argument
        found = [place.commands.get(word) for place in places for word in alternatives]  # type: ignore[attr-defined]
        if None in found:
            return f"{named.text!r}: no such command"
        places = found
    known = {option for place in places for parameter in place.params for option in parameter.opts}  # type: ignore[attr-defined]
    missing = [option for option in named.options if option not in known | {"--help", "--version"}]
    return f"{named.text!r}: no option {', '.join(missing)}" if missing else None


def prompt_problem_of(program: str) -> str | None:
    """The error of Python's prompt when the lines are entered one by one, followed by Enter; None: it accepts them."""
    take = codeop.CommandCompiler()
    entered: list[str] = []
    for line in [*program.splitlines(), ""]:
        entered.append(line)
        try:
            is_whole = take("\n".join(entered)) is not None
        except SyntaxError as error:
            return f"{error.msg}: {line}"
        if is_whole:
            entered.clear()
    return f"it waits for more behind {entered[0]}" if entered else None


def test_readme_is_a_front_page() -> None:
    """What takes more room than that has a page."""
    assert len(DOCUMENTS["README.md"].splitlines()) < README_LINES


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_block_names_its_language(block: Block) -> None:
    """A block without a language would not be run."""
    assert block.language in LANGUAGES
    assert block.text.strip()


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "python"], ids=lambda block: block.place)
def test_python_block_can_be_pasted_at_the_prompt(block: Block) -> None:
    """At the prompt an indented block ends with an empty line, and only there."""
    assert prompt_problem_of(block.text) is None


@pytest.mark.parametrize(
    "wrong",
    ["with a:\n    b\nc = 1", "def a():\n    b = 1\n\n    return b", "if a:\n    b\n\nelse:\n    c", "a = ("],
)
def test_block_that_cannot_be_pasted_would_be_noticed(wrong: str) -> None:
    """This also works for a whole program, and for one without its end."""
    assert prompt_problem_of(wrong) is not None


def test_excused_blocks_exist() -> None:
    """No excuse outlives its block."""
    for begin in NOT_RUN:
        assert [block.first_line for block in BLOCKS if block.first_line.startswith(begin)], begin


@pytest.mark.parametrize("begin", OUTPUT)
def test_expected_output_is_that_of_one_block(begin: str) -> None:
    """None of it outlives its block, nor counts for another."""
    assert len([block for block in BLOCKS if begin in block.text]) == 1


@pytest.mark.parametrize(("name", "named"), COMMANDS, ids=[f"{name}-{named.text[:50]}" for name, named in COMMANDS])
def test_commands_exist_with_their_options(name: str, named: NamedCommand) -> None:
    """Synopses and the commands in the running text are true."""
    assert problem_of(named) is None, name


@pytest.mark.parametrize("wrong", ["pylog topics-list", "pylog topic make a", "pylog topic|nothing x", "pylog up -z"])
def test_wrong_command_would_be_noticed(wrong: str) -> None:
    """The check fails where it should."""
    (named,) = named_commands(f"Run `{wrong}`.")
    assert problem_of(named) is not None
