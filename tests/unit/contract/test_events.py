"""Log events: one a line, verb first, whatever their fields contain."""

from __future__ import annotations

import logging

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.contract.events import MOST_CHARS, event, shown

_logger = logging.getLogger("broker_runtime.test_events")


def _logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_line_begins_with_the_verb_and_has_its_fields_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """An unknown field is left out, and a percent sign is no format."""
    with caplog.at_level(logging.INFO):
        event(_logger, "open stream", kind="produce", client_id="100%s", partition=3, error=None, waited_s=1 / 3)
    assert _logged(caplog) == ["open stream kind=produce client_id=100%s partition=3 waited_s=0.333"]
    assert caplog.records[0].levelno == logging.INFO
    assert caplog.records[0].filename == "test_events.py", "the place is the caller's"


def test_event_below_the_logger_s_level_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The fields are not even converted to text."""

    class Untold:
        def __str__(self) -> str:
            raise AssertionError("made into text")

    with caplog.at_level(logging.INFO):
        event(_logger, "refuse call", level=logging.DEBUG, error=Untold())
    assert _logged(caplog) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("flights", "flights"),
        ("", '""'),
        ("my app", '"my app"'),
        ("a=b", '"a=b"'),
        ("it's", "it's"),
        ('"', r'"\""'),
        ("café", "café"),
        ("a\nERROR forged", r'"a\nERROR forged"'),
        ("a\r", r'"a\r"'),
        ("\x1b[2J", r'"\x1b[2J"'),
        ("\x85", r'"\x85"'),
        ("\u2028", r'"\u2028"'),
        ("\u202etxt", r'"\u202etxt"'),
        ("\ud800", r'"\ud800"'),
        ("\\n", r'"\\n"'),
        (7, "7"),
        (True, "True"),
        ((1, 2), '"(1, 2)"'),
    ],
)
def test_value_is_one_word_or_quoted(value: object, text: str) -> None:
    """Line ends, terminal commands and characters that change the writing direction are escaped."""
    assert shown(value) == text


def test_long_value_is_cut() -> None:
    """Some values are as long as a peer likes."""
    text = shown("x" * 1_000_000)
    assert text == f'"{"x" * (MOST_CHARS - 2)} …"'
    assert shown("x" * MOST_CHARS) == "x" * MOST_CHARS


def test_error_is_shown_by_code_or_class() -> None:
    """Our errors are shown by code, others by class."""
    assert shown(LogStorageError("no disk")) == '"[KAFKA_STORAGE_ERROR] no disk"'
    assert shown(OSError("no\ndisk")) == r'"OSError: no\ndisk"'


def test_traceback_follows_when_requested(caplog: pytest.LogCaptureFixture) -> None:
    """Defects have a traceback."""
    error = ZeroDivisionError("a defect")
    event(_logger, "fail call", level=logging.ERROR, error=error, exc_info=error)
    assert _logged(caplog) == ['fail call error="ZeroDivisionError: a defect"']
    assert caplog.text.splitlines()[-1] == "ZeroDivisionError: a defect"
