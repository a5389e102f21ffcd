"""The classic scenarios of replicated logs, each a file that reads as prose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.partitions.scenario import UntrueError, run_scenario

pytestmark = pytest.mark.alone

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_is_true(path: Path) -> None:
    """W12, W13: replication and failover, as what happens to a cluster."""
    run_scenario(path)


def test_there_are_ten_scenarios() -> None:
    """None was lost on the way."""
    assert len(SCENARIOS) >= 10


def test_untrue_scenario_fails_with_its_line(tmp_path: Path) -> None:
    """A scenario that says what does not happen fails, and names the sentence."""
    path = tmp_path / "untrue.txt"
    path.write_text(
        "There are brokers 1.\nThere is a topic t with 1 partition on 1.\nThe log of t-0 on broker 1 holds gold.\n"
    )
    with pytest.raises(UntrueError, match=r"untrue\.txt:3: The log of t-0"):
        run_scenario(path)


def test_sentence_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """A typing error is no sentence."""
    path = tmp_path / "unknown.txt"
    path.write_text("Broker 1 sings.\n")
    with pytest.raises(UntrueError, match="no such sentence"):
        run_scenario(path)
