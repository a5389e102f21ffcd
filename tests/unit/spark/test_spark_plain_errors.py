"""What Spark shows of our errors: the text that its Python processes send."""

from __future__ import annotations

import gc
import io
import os

import pytest
from pyspark.serializers import read_int
from pyspark.util import handle_worker_exception

from broker_runtime.contract.errors import OptionError
from pyspark_log.spark.plain_errors import plain_errors


@plain_errors()
def called_by_spark(error: Exception) -> None:
    try:
        raise ValueError("inside")
    except ValueError:
        raise error  # noqa: B904 - as it happens


def shown(error: Exception) -> str:
    """What Spark's process sends when ``error`` comes out of our code."""
    sent = io.BytesIO()
    try:
        called_by_spark(error)
    except Exception as raised:  # noqa: BLE001 - as Spark does
        handle_worker_exception(raised, sent)
    sent.seek(4)
    return sent.read(read_int(sent)).decode()


def test_error_of_ours_is_one_line_and_those_of_others_have_their_traceback() -> None:
    """S1: also one after the other in one process."""
    for _ in range(2):
        assert shown(OptionError("columns: none")) == "pyspark_log.errors.OptionError: [INVALID_OPTION] columns: none\n"
        gc.collect()  # here the traceback has the error and the error the traceback
        assert "SPARK_HIDE_TRACEBACK" not in os.environ
        others = shown(KeyError("x"))
        assert others.startswith("Traceback")
        assert "called_by_spark" in others


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "yes")
    assert shown(OptionError("x")).startswith("pyspark_log.errors.OptionError")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "yes"
