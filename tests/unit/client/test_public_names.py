"""What ``import pyspark_log`` provides, and what it does not."""

import subprocess
import sys

import pytest

import pyspark_log

HEAVY = ("pyarrow", "numpy", "pyspark", "kazoo", "msgspec", "broker_runtime", "pyspark_log.client")


def test_import_pyspark_log_imports_nothing_heavy() -> None:
    """S1: Spark imports this package in every session, so it must be cheap."""
    code = f"import sys, pyspark_log; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_import_of_clients_needs_no_spark() -> None:
    """None of the Python API needs Spark, nor ZooKeeper's client."""
    code = (
        "import sys; from pyspark_log import Admin, Producer, Consumer, read, errors;"
        "print([m for m in ('pyspark', 'kazoo', 'broker_runtime.broker', 'broker_runtime.log') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in pyspark_log.__all__ if name != "DefaultSource"])
def test_public_names_exist(name: str) -> None:
    """Every promised name can be imported."""
    assert getattr(pyspark_log, name) is not None
    assert name in dir(pyspark_log)


def test_unknown_names_are_attribute_errors() -> None:
    """Spark uses hasattr."""
    assert not hasattr(pyspark_log, "NoSuchName")


@pytest.mark.parametrize("name", ["Admin", "Producer", "Consumer"])
def test_clients_have_no_public_names_for_forks(name: str) -> None:
    """The hooks around `os.fork` are not for callers."""
    assert [found for found in dir(getattr(pyspark_log, name)) if "fork" in found and found[0] != "_"] == []
