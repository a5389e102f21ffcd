"""The tree of errors as users see it."""

import pickle
import subprocess
import sys
import traceback

import pytest

from broker_runtime.contract.errors import PylogError, all_error_classes
from pyspark_log import errors


@pytest.mark.parametrize("kind", all_error_classes(), ids=lambda kind: kind.__name__)
def test_errors_survive_pickling(kind: type[PylogError]) -> None:
    """Every error survives the way between processes (Spark's executors) with its class, code and message."""
    original = kind("topic 't' is gone")
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is kind
    assert (copy.code, copy.retriable, copy.message) == (original.code, original.retriable, "topic 't' is gone")
    assert str(copy) == f"[{kind.code}] topic 't' is gone"


def test_errors_module_has_every_class_of_the_tree() -> None:
    """`pyspark_log.errors` is where users find them."""
    assert {name for name in errors.__all__ if name.endswith("Error")} == {k.__name__ for k in all_error_classes()}
    for kind in all_error_classes():
        assert getattr(errors, kind.__name__) is kind


@pytest.mark.parametrize("kind", all_error_classes(), ids=lambda kind: kind.__name__)
def test_errors_print_under_the_name_that_users_import(kind: type[PylogError]) -> None:
    """Tracebacks and pickles name `pyspark_log.errors`, as `except` clauses do."""
    shown = "".join(traceback.format_exception_only(kind("text")))
    assert shown == f"pyspark_log.errors.{kind.__name__}: [{kind.code}] text\n"
    assert b"broker_runtime" not in pickle.dumps(kind("text"))


def test_pickled_errors_load_in_a_fresh_process() -> None:
    """Spark's driver does so with an executor's error."""
    code = f"import pickle; print(pickle.loads({pickle.dumps(errors.ClosedError('gone'))!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[CLIENT_CLOSED] gone\n"


def test_errors_derive_from_the_standard_librarys() -> None:
    """Timeouts are TimeoutErrors, refused requests are ValueErrors."""
    assert issubclass(errors.DeliveryTimeoutError, TimeoutError)
    assert issubclass(errors.RequestTimedOutError, TimeoutError)
    assert issubclass(errors.InvalidPartitionsError, ValueError)
