"""Help: short, plain, and each thing once."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from pyspark_log.cli.app import _help_plainly, build

MOST_LINES = 32
MOST_LINES_OF_ALL = 56
COMMON = ("--bootstrap-server", "--output", "--timeout", "--yes", "--quiet", "--verbose")


@cache
def whole_command() -> Any:
    """`pylog`."""
    command = typer.main.get_command(build())
    _help_plainly(command)
    return command


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All groups and commands that help lists."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from paths(below, (*path, name))


@pytest.fixture(autouse=True)
def small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colours."""
    for name, value in (("COLUMNS", "80"), ("TERMINAL_WIDTH", "80"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)


def help_of(*path: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        whole_command()([*path, "--help"], prog_name="pylog")
    assert ended.value.code in (0, None)
    return shown.getvalue()


@pytest.mark.parametrize("path", list(paths(whole_command())), ids=" ".join)
def test_help_fits_on_a_screen(path: tuple[str, ...]) -> None:
    """The common options take no room in it: `pylog --help` shows them once."""
    shown = help_of(*path)
    assert len(shown.splitlines()) <= (MOST_LINES if path else MOST_LINES_OF_ALL), shown
    assert [option for option in COMMON if option in shown.replace("(-b -X -o --timeout -y", "")] == (
        [] if path else list(COMMON)
    )
    assert "pylog --help" in shown or not path
    assert not re.search(r"<(bool|str|int)>|\{[A-Z]", shown), "words of typer's, not of people"


def test_help_lists_every_command_under_a_heading() -> None:
    """The commands for beginners come first."""
    shown = help_of()
    headings = re.findall(r"─ ([A-Z][^─]*[a-z]) ─", shown)
    assert headings == [
        "Options",
        "Options for every command",
        "Getting started",
        "Records",
        "Topics, groups and cluster",
        "Servers and their files",
        "This program",
    ]
    assert "completion" in shown.split("This program")[1]
    assert shown.index("│ up ") < shown.index("│ produce ") < shown.index("│ topic ") < shown.index("│ broker ")


@pytest.mark.parametrize("arguments", [["--version"], ["-o", "json", "--version"]])
def test_version_is_quick(arguments: list[str]) -> None:
    """It names pylog, Python, pyarrow and PySpark, and imports none of them."""
    code = (
        "import sys; from pyspark_log.cli import app; sys.argv[0] = 'pylog'; app._end = lambda code: None; app.run(); "
        "print([name for name in ('pyarrow', 'numpy', 'pyspark', 'rich') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    versions, imported = answer.stdout.splitlines()
    assert imported == "[]"
    assert re.fullmatch(r"pylog \S+ protocol \d+ python 3\.\S+ pyspark \S+ pyarrow \S+", versions)


def test_version_leaves_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client works without PySpark."""
    import importlib.metadata

    from pyspark_log.cli.shell import _version_line, installed_versions

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert re.fullmatch(r"pylog \S+ protocol \d+ python \S+\n", _version_line(installed_versions()))


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_typers_own_completion_is_refused(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer's script splits words at the colon of `flights:0`; `pylog completion` prints one that does not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        whole_command()([option], prog_name="pylog")
    assert ended.value.code == 2
    assert 'put this into ~/.bashrc: eval "$(pylog completion bash)"' in re.sub(r"[\s│]+", " ", said.getvalue())
    assert list(tmp_path.iterdir()) == []


def test_variables_of_the_environment_are_named_after_what_they_set() -> None:
    """And no two options read the same one."""
    found: dict[str, str] = {}
    for path in paths(whole_command()):
        command = whole_command()
        for name in path:
            command = command.commands[name]
        for parameter in command.params:
            if parameter.envvar:
                assert str(parameter.envvar) not in found
                found[str(parameter.envvar)] = " ".join((*path, str(parameter.name)))
    assert found == {
        "PYLOG_CONSOLE_PORT": "console port",
        "PYLOG_DATA": "up data",
        "PYLOG_PORT": "up port",
        "PYLOG_ZOOKEEPER": "up zookeeper",
    }
