"""What Spark shows of our errors: the text that Python prints."""

from __future__ import annotations

import traceback

import pytest

from broker_runtime.contract.errors import OptionError, PylogError
from pyspark_log.spark.plain_errors import said_first


@said_first()
def called_by_spark(error: Exception) -> None:
    try:
        raise ValueError("inside")
    except ValueError:
        raise error  # noqa: B904 - as it happens


def test_text_begins_with_our_line_and_has_the_traceback() -> None:
    """S1: whoever reads only the beginning knows what to do."""
    with pytest.raises(OptionError) as raised:
        called_by_spark(OptionError("columns: no such column"))
    shown = "".join(traceback.format_exception(raised.value))
    first, *_, last = shown.strip().splitlines()
    assert first == last == "pyspark_log.errors.OptionError: [INVALID_OPTION] columns: no such column"
    assert "called_by_spark" in shown


def test_errors_of_others_are_left_alone() -> None:
    with pytest.raises(KeyError) as raised:
        called_by_spark(KeyError("x"))
    assert raised.value.__cause__ is None


def test_error_keeps_its_kind_and_message() -> None:
    """Spark asks for neither, but tests and tools do."""
    with pytest.raises(PylogError, match="no such column") as raised, said_first(), said_first():
        raise OptionError("no such column")
    assert isinstance(raised.value.__cause__, OptionError)
    assert raised.value.__cause__.__traceback__ is None
