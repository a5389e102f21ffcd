"""Where `pylog consume` ends by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_runtime.contract.model import TopicPartition
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.options import GivenOptions
from pyspark_log.cli.records.consume import _bounded

AT = TopicPartition("t", 0)
AT_ONCE = "0.000000001"


class IdleConsumer:
    """A consumer that gets no records."""

    def assignment(self) -> set[TopicPartition]:
        return {AT}

    def position(self, at: TopicPartition) -> int:
        return 0

    def pause(self, *partitions: TopicPartition) -> None:
        pass

    def poll_batches(self, timeout: float) -> list[Any]:
        return []


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hides the environment and the home directory of the user who runs the tests."""
    for name in ("PYLOG_OUTPUT", "PYLOG_TIMEOUT", "PYLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def idle_polls(given: GivenOptions, *, ends: dict[TopicPartition, int] | None, limit: int | None) -> int:
    """How many polls without records there are before the end; at most 5."""
    batches: Iterator[Any] = _bounded(Invocation.resolve(given), IdleConsumer(), ends, limit)  # type: ignore[arg-type]
    return len(list(itertools.islice(batches, 5)))


def test_timeout_of_environment_does_not_end_an_idle_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is meant for requests; without the option --timeout, reading is endless."""
    monkeypatch.setenv("PYLOG_TIMEOUT", AT_ONCE)
    assert idle_polls(GivenOptions(), ends=None, limit=None) == 5
    assert idle_polls(GivenOptions(timeout=AT_ONCE), ends=None, limit=None) == 0


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
    assert idle_polls(GivenOptions(timeout=AT_ONCE), ends=ends, limit=limit) == 0
    shown = capsys.readouterr().err
    assert shown.partition("(--timeout), ")[2] == said
    assert bool(shown) == bool(said)
