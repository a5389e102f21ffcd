"""The classic stories of replicated logs, each told by a file that reads as prose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.partitions.scenario import UntrueError, tell

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_is_true(path: Path) -> None:
    """W12, W13: replication and failover, told as what happens to a cluster."""
    tell(path)


def test_there_are_ten_stories() -> None:
    """None was lost on the way."""
    assert len(STORIES) >= 10


def test_untrue_story_is_told_with_its_line(tmp_path: Path) -> None:
    """A story that says what does not happen fails, and names the sentence."""
    path = tmp_path / "untrue.txt"
    path.write_text(
        "There are brokers 1.\nThere is a topic t with 1 partition on 1.\nThe log of t-0 on broker 1 holds gold.\n"
    )
    with pytest.raises(UntrueError, match=r"untrue\.txt:3: The log of t-0"):
        tell(path)


def test_sentence_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """A typing error is no story."""
    path = tmp_path / "unknown.txt"
    path.write_text("Broker 1 sings.\n")
    with pytest.raises(UntrueError, match="no such sentence"):
        tell(path)
