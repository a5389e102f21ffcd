"""A micro-batch without rows is decided like any other before it passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError, ReplayDiffersError
from pyspark_log.client.producer.attempts import BatchScope
from pyspark_log.spark import sink
from pyspark_log.spark.options import parse_sink_options
from pyspark_log.spark.sink import AttemptWritten, commit_batch

SCOPE = BatchScope(transactional_id="q", run_id="r", batch_id=3, timeout_ms=1_000, keep_ms=1_000)


@pytest.fixture
def commit_when(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[BatchScope]]:
    """Commits a batch of two tasks without rows while brokers answer with ``errors``, one each time; what they were
    asked about."""

    def commit(*errors: Exception) -> list[BatchScope]:
        asked: list[BatchScope] = []
        left = list(errors)

        def decide_empty(cluster: object, scope: BatchScope, **_: object) -> None:
            asked.append(scope)
            if left:
                raise left.pop(0)

        monkeypatch.setattr(sink, "decide_empty", decide_empty)
        options = parse_sink_options({"topic": "t", "pylog.bootstrap.servers": "127.0.0.1:1"})
        commit_batch(options, [AttemptWritten(0, SCOPE), None, AttemptWritten(0, SCOPE)])
        return asked

    return commit


def test_it_is_decided_once(commit_when) -> None:
    assert commit_when() == [SCOPE]


def test_brokers_that_are_away_are_asked_again(commit_when) -> None:
    """S6: a batch that comes back without rows is refused also then."""
    with pytest.raises(ReplayDiffersError):
        commit_when(BrokerUnavailableError("away"), ReplayDiffersError("40 rows, now 0"))
    assert commit_when(BrokerUnavailableError("away")) == [SCOPE, SCOPE]


def test_it_does_not_pass_unseen_when_patience_ends(commit_when, monkeypatch) -> None:
    monkeypatch.setattr(sink, "QUERY_PATIENCE_S", 0.0)
    with pytest.raises(BrokerUnavailableError):
        commit_when(BrokerUnavailableError("away"))
