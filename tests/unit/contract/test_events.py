"""Log events: one a line, verb first, whatever their fields contain."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.contract.events import MOST_CHARS, JsonFormatter, event, shown

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


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _as_json(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    [record] = caplog.records
    line = JsonFormatter().format(record)
    assert line.isascii(), "no character in it ends a line, for whatever reads it"
    assert "\n" not in line
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_json_has_time_level_logger_event_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Numbers stay numbers; an unknown field is left out."""
    with caplog.at_level(logging.INFO):
        event(
            _logger, "change in-sync set", level=logging.WARNING, topic="café", partition=3, in_sync=[1, 2],
            complete=True, waited_s=1 / 3, error=LogStorageError("no room"), path=None, rate=float("inf"),
        )  # fmt: skip
    caplog.records[0].created = 1_700_000_000.25
    assert _as_json(caplog) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "WARNING",
        "logger": "broker_runtime.test_events",
        "event": "change in-sync set",
        "fields": {
            "topic": "café", "partition": 3, "in_sync": [1, 2], "complete": True, "waited_s": 0.333,
            "error": str(LogStorageError("no room")), "rate": "inf",
        },
    }  # fmt: skip


@pytest.mark.parametrize("sent", ['a"\n{"level":"ERROR"}', "\u2028\x85\x00\x1b[2J", "\ud800", "\\", "x" * 5_000])
def test_no_field_forges_a_line_of_json(caplog: pytest.LogCaptureFixture, sent: str) -> None:
    """It comes back as it was sent, cut where it is long."""
    with caplog.at_level(logging.INFO):
        event(_logger, "open stream", client_id=sent)
    found = _as_json(caplog)["fields"]
    assert isinstance(found, dict)
    kept = found["client_id"].removesuffix(" …")
    assert sent.startswith(kept)
    assert len(kept) >= min(len(sent), MOST_CHARS - 2)
    assert len(found["client_id"]) <= MOST_CHARS


def test_tracebacks_and_lines_of_others_are_json_too(caplog: pytest.LogCaptureFixture) -> None:
    """One object each, on one line."""
    with caplog.at_level(logging.INFO):
        logging.getLogger("kazoo").error("lost %s\nERROR forged", "it")
    found = _as_json(caplog)
    assert (found["event"], found["fields"], found["logger"]) == ("lost it\nERROR forged", {}, "kazoo")
    caplog.clear()
    try:
        raise ZeroDivisionError("a defect")
    except ZeroDivisionError:
        error = sys.exc_info()[1]
    with caplog.at_level(logging.INFO):
        event(_logger, "fail call", level=logging.ERROR, exc_info=error)
    assert "ZeroDivisionError: a defect" in str(_as_json(caplog)["traceback"])
