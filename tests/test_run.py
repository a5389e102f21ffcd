"""Which failures of a whole run are tried once more alone."""

from __future__ import annotations

import pytest

from tests.run import is_worth_another_run

_BUSY = ("tests/spark/test_sink.py::test_rows", "AssertionError: not within 60 s: the query ends")


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], False),
        ([_BUSY], True),
        ([("tests/chaos/test_chaos.py::test_no[1]", "TimeoutError: no broker after 60 s")], True),
        ([_BUSY, ("tests/chaos/test_chaos.py::test_no[1]", "AssertionError: PYLOG_CHAOS_SEED=7: 3 lost")], False),
        ([_BUSY, ("tests/chaos/test_disks.py::test_full", "assert 3 == 4")], False),
        ([_BUSY, ("tests/simulation/test_determinism.py::test_seed", "TimeoutError: 600 s")], False),
        ([(f"tests/cli/test_up.py::test_{number}", "OSError: busy") for number in range(5)], False),
    ],
)
def test_few_failures_that_are_no_verdict_are_tried_again(failures: list[tuple[str, str]], expected: bool) -> None:
    """Lost records are lost however busy the machine was; many failures are no coincidence."""
    assert is_worth_another_run(dict(failures)) is expected
