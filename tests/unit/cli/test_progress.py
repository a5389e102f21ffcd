"""Progress is for people only."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.output import OutputFormat
from pyspark_log.cli.progress import Progress, is_for_people


class Terminal(io.StringIO):
    """A terminal as standard error."""

    def isatty(self) -> bool:
        return True


def invocation(*, quiet: bool = False, output: OutputFormat | None = None) -> Invocation:
    return Invocation(
        bootstrap_servers="localhost:1",
        address_is_given=False,
        flag_settings={},
        file_settings={},
        output=output,
        output_is_option=False,
        timeout_s=1,
        timeout_is_given=False,
        timeout_is_option=False,
        yes=False,
        quiet=quiet,
        verbose=0,
    )


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a terminal that can move its cursor."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


@contextmanager
def terminal() -> Iterator[Terminal]:
    """A terminal as standard error."""
    with redirect_stderr(Terminal()) as made:
        yield made


def test_progress_is_shown_on_a_terminal_and_erased_at_the_end() -> None:
    """It shows what was done; the last output erases it."""
    with terminal() as shown, Progress(invocation(), "Checking flights-0", total=4000, unit="records") as progress:
        progress.advance(1500)
        progress._bar.refresh()
    assert "Checking flights-0" in shown.getvalue()
    assert "1,500 records" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize(
    "quieted",
    [invocation(quiet=True), *(invocation(output=each) for each in OutputFormat if each not in ("table", "wide"))],
    ids=lambda each: str(each.output),
)
def test_progress_is_not_shown_with_q_nor_with_formats_for_programs(quieted: Invocation) -> None:
    """-q, -o json, jsonl, yaml and name show no progress."""
    with terminal() as shown, Progress(quieted, "Checking") as progress:
        progress.advance()
        progress.say("Still checking")
    assert shown.getvalue() == ""


@pytest.mark.parametrize("forced", [{"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1"}, {}])
def test_progress_is_not_shown_in_a_pipe(
    forced: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the environment tells rich about terminals, a progress bar in a log file is noise."""
    for name, value in forced.items():
        monkeypatch.setenv(name, value)
    with Progress(invocation(), "Checking", total=2) as progress:
        progress.advance()
    assert capsys.readouterr() == ("", "")


def test_progress_is_not_shown_on_a_terminal_that_cannot_move_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """TERM=dumb, as in an editor, shows no progress."""
    monkeypatch.setenv("TERM", "dumb")
    with terminal():
        assert not is_for_people(invocation())


def test_standard_output_is_not_redirected_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Data written meanwhile goes to standard output; remarks appear above the bar."""
    with terminal() as shown, Progress(invocation(), "Reading"):
        sys.stdout.write("data\n")
        sys.stderr.write("remark\n")
    assert capsys.readouterr().out == "data\n"
    assert "remark" in shown.getvalue()
    assert "data" not in shown.getvalue()
