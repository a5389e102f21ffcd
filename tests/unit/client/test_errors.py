"""The tree of errors as users see it."""

import pickle

import pytest

from broker_runtime.contract.errors import PylogError, all_error_classes
from pyspark_log import errors


@pytest.mark.parametrize("kind", all_error_classes(), ids=lambda kind: kind.__name__)
def test_errors_pickle_and_keep_what_they_say(kind: type[PylogError]) -> None:
    """Every error crosses processes (Spark's executors) with its class, code and message."""
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


def test_errors_are_also_what_the_standard_library_calls_them() -> None:
    """Timeouts are TimeoutErrors, refused requests ValueErrors."""
    assert issubclass(errors.DeliveryTimeoutError, TimeoutError)
    assert issubclass(errors.RequestTimedOutError, TimeoutError)
    assert issubclass(errors.InvalidPartitionsError, ValueError)
