"""Which exception ends a command with which exit status."""

from __future__ import annotations

import pytest
import typer

from broker_runtime.contract.errors import UnknownTopicOrPartitionError
from pyspark_log.cli.exit_status import translated_errors
from pyspark_log.local.foreground import TerminatedError


def end_with(raised: BaseException, behind: BaseException | None) -> None:
    """Raises ``raised`` from a command while ``behind`` is being handled."""
    with translated_errors(verbose=0):
        try:
            if behind is not None:
                raise behind
        finally:
            raise raised


def status_of(raised: BaseException, behind: BaseException | None = None) -> int:
    """The exit status that the command ends with."""
    with pytest.raises(typer.Exit) as ended:
        end_with(raised, behind)
    return ended.value.exit_code


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), 130), (TerminatedError(), 143), (UnknownTopicOrPartitionError("t"), 3), (OSError("x"), 1)],
)
def test_expected_errors_have_their_status(error: BaseException, status: int) -> None:
    """W27: the exit statuses are those that the guide Command line lists."""
    assert status_of(error) == status


@pytest.mark.parametrize(("interrupt", "status"), [(KeyboardInterrupt(), 130), (TerminatedError(), 143)])
def test_signal_while_a_lock_is_taken_is_no_defect(
    interrupt: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal between taking a lock and its `with` makes Python complain about the lock."""
    assert status_of(RuntimeError("cannot release un-acquired lock"), interrupt) == status
    assert capsys.readouterr().err == ""


def test_interrupted_command_may_choose_its_exit_status() -> None:
    """The command's own exit status is kept."""
    assert status_of(typer.Exit(5), KeyboardInterrupt()) == 5


def test_defect_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback reaches a user who did not ask for one."""
    monkeypatch.delenv("PYLOG_DEBUG", raising=False)
    assert status_of(RuntimeError("a defect\nof two lines")) == 1
    said = capsys.readouterr().err
    assert said.startswith("[UNEXPECTED_ERROR] RuntimeError: a defect of two lines")
    assert said.count("\n") == 1
    monkeypatch.setenv("PYLOG_DEBUG", "1")
    assert status_of(RuntimeError("a defect")) == 1
    assert "Traceback" in capsys.readouterr().err
