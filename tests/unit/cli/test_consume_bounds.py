"""Where `pylog consume` ends by itself, and what it commits then."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from broker_runtime.contract.model import TopicPartition
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import GivenOptions
from pyspark_log.cli.records.consume import _bounded, _Shown

AT = TopicPartition("t", 0)
AT_ONCE = "0.000000001"


class Batch:
    """So many records of ``AT``, which are all that bounds ask about."""

    topic_partition = AT

    def __init__(self, base_offset: int, count: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset + count

    def __len__(self) -> int:
        return self.next_offset - self.base_offset

    def slice(self, first: int, count: int) -> Batch:
        return Batch(self.base_offset + first, count)

    def rows_before(self, offset: int) -> int:
        return min(max(offset - self.base_offset, 0), len(self))


class ScriptedConsumer:
    """Polls return what they are told, and move the position behind what is no record; then nothing more comes."""

    def __init__(self, *polls: list[Batch], position: int = 0, passed: int = 0) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self._polls = list(polls)
        self._position = position
        self._passed = passed

    def assignment(self) -> set[TopicPartition]:
        return {AT}

    def position(self, at: TopicPartition) -> int:
        return self._position

    def pause(self, *partitions: TopicPartition) -> None:
        pass

    def poll_batches(self, timeout: float) -> list[Batch]:
        batches = self._polls.pop(0) if self._polls else []
        self._position = max([self._position, self._passed, *(batch.next_offset for batch in batches)])
        return batches

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.commits.append(offsets)


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hides the environment and the home directory of the user who runs the tests."""
    for name in ("PYLOG_OUTPUT", "PYLOG_TIMEOUT", "PYLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def idle_polls(given: GivenOptions, *, ends: dict[TopicPartition, int] | None, limit: int | None) -> int:
    """How many polls without records there are before the end; at most 5."""
    consumer: Any = ScriptedConsumer()
    return len(list(itertools.islice(_bounded(Invocation.resolve(given), consumer, ends, limit), 5)))


def test_timeout_of_environment_does_not_end_an_idle_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is meant for requests; without the option --timeout, reading is endless."""
    monkeypatch.setenv("PYLOG_TIMEOUT", AT_ONCE)
    assert idle_polls(GivenOptions(), ends=None, limit=None) == 5
    assert idle_polls(GivenOptions(timeout=AT_ONCE), ends=None, limit=None) == 1


@pytest.mark.parametrize(
    ("ends", "limit", "said"),
    [
        ({AT: 3}, None, "before --to was reached.\n"),
        (None, 3, "before -n was reached.\n"),
        ({AT: 3}, 3, "before -n or --to was reached.\n"),
        (None, None, ""),
    ],
)
def test_timeout_names_the_bound_that_was_not_reached(
    capsys: pytest.CaptureFixture[str], ends: dict[TopicPartition, int] | None, limit: int | None, said: str
) -> None:
    """A read that was cut short does not look like a complete one."""
    assert idle_polls(GivenOptions(timeout=AT_ONCE), ends=ends, limit=limit) == 1
    shown = capsys.readouterr().err
    assert shown.partition("(--timeout), ")[2] == said
    assert bool(shown) == bool(said)


@pytest.mark.parametrize(
    ("polls", "start", "ends", "limit", "committed"),
    [
        ([[Batch(0, 6)]], 0, {AT: 12}, None, 12),
        ([[Batch(0, 6)]], 0, None, None, 12),
        ([], 0, {AT: 12}, None, 12),
        ([[Batch(0, 6)]], 0, None, 6, 12),
        ([[Batch(0, 6)]], 0, {AT: 4}, None, 4),
        ([[Batch(0, 6)]], 0, None, 4, 4),
        ([[Batch(0, 3), Batch(3, 3)]], 0, None, 3, 3),
        ([[Batch(0, 3), Batch(3, 3)]], 0, {AT: 3}, None, 3),
        ([], 12, {AT: 12}, None, None),
        ([], 12, None, None, None),
    ],
)
def test_commit_covers_what_was_printed_and_what_is_no_record(
    polls: list[list[Batch]],
    start: int,
    ends: dict[TopicPartition, int] | None,
    limit: int | None,
    committed: int | None,
) -> None:
    """The end is 12, where readers are behind an aborted transaction. No printed record is left out, no other counts,
    and where nothing was passed, nothing is committed."""
    consumer: Any = ScriptedConsumer(*polls, position=start, passed=12)
    shown = _Shown(consumer, has_group=True, is_held_back=False)
    shown.begin([AT])
    invocation = Invocation.resolve(GivenOptions())
    for batch in itertools.islice(_bounded(invocation, consumer, ends, limit), 5):
        if batch is None:
            shown.add_positions(ends)
        else:
            shown.add(batch, ends)
    shown.commit()
    assert consumer.commits == ([] if committed is None else [{AT: committed}])
