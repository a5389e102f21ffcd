"""A decision that all partitions know is finished, and what is written of that, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.transactions import FinishTransactionsRequest, FinishTransactionsResponse
from broker_runtime.transactions import coordination
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.transactions.finishing import PAUSE_S, SWEEP_S, WRITE_AFTER_S, TransactionFinishing
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import (
    TRANSACTIONS,
    DecidedPartitions,
    PartitionState,
    TopicRecord,
    TransactionRecord,
    to_json,
    topic_path,
    transaction_path,
)

DAY_MS = 86_400_000
GONE = DecidedPartitions(topic="gone", topic_id=bytes(16), partitions=(0,))
"""Partitions of a topic that was deleted: they have nothing to be told."""
LED = DecidedPartitions(topic="led", topic_id=bytes([1] * 16), partitions=(0, 1))
"""Two partitions of a topic, led by brokers 1 and 2."""


class Broker:
    """One broker's coordinator and its finishing, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000 * DAY_MS
        self.zookeeper = MemoryZooKeeper()
        self.client = self.zookeeper.client()
        self.client.ensure_path(TRANSACTIONS)
        self.coordinator = self._coordinator()
        self.answers: dict[int, bool | None] = {}  # by leader: whether all is ended there; None: no answer
        self.finishing = TransactionFinishing(
            self.coordinator,
            lambda: ClusterState(topics={"led": _led()}),
            self._ask_leader,
            broker_id=1,
            steady_ms=lambda: self.now_ms,
            believed_ms=lambda: self.now_ms,
        )
        self.begin()

    def _coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.zookeeper.client(), steady_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms
        )

    def _ask_leader(self, broker_id: int, request: FinishTransactionsRequest) -> FinishTransactionsResponse:
        has_ended = self.answers[broker_id]
        if has_ended is None:
            raise NetworkError("no answer")
        return FinishTransactionsResponse(are_finished=tuple(has_ended for _ in request.partitions))

    def begin(self) -> None:
        self.coordinator.begin("x", run_id="r", batch_id=-1, timeout_ms=1_000, keep_ms=DAY_MS)

    def decide(
        self,
        batch_id: int,
        *,
        by: TransactionCoordinator | None = None,
        partitions: DecidedPartitions = GONE,
        is_followed: bool = True,
    ) -> None:
        decided = (by or self.coordinator).decide(
            "x",
            run_id="r",
            epoch=0,
            batch_id=batch_id,
            is_commit=True,
            producer_ids=[(batch_id, batch_id)],
            partitions=[partitions],
        )
        self.finishing.add("x", decided.record, is_followed=is_followed)

    def record(self) -> TransactionRecord:
        found = self._coordinator().read("x")
        assert found is not None
        return found

    def unfinished(self) -> list[int]:
        return [each.batch_id for each in self.record().unfinished]

    def version(self) -> int:
        found = self.client.find(transaction_path("x"))
        assert found is not None
        return found.version


def _led() -> TopicState:
    states = [
        PartitionState(leader=leader, leader_epoch=0, isr=(leader,), controller_epoch=1, leader_broker_epoch=1)
        for leader in (1, 2)
    ]
    return TopicState(
        name="led",
        record=TopicRecord(topic_id=LED.topic_id, assignment=((1,), (2,)), schemas=(), key=None, created_at_ms=0),
        version=0,
        partitions=tuple(VersionedState(state=state, version=0) for state in states),
    )


@pytest.mark.parametrize("written", [(0, 1, 2), (2,)])
@pytest.mark.parametrize("is_recreated", [False, True])
def test_partition_that_this_broker_has_not_heard_of_is_not_passed_over(
    written: tuple[int, ...], is_recreated: bool
) -> None:
    """A producer has written to it: its transaction would be aborted by the next decision. A third partition was added,
    or the topic recreated with three."""
    topic_id = bytes([9] * 16) if is_recreated else LED.topic_id
    broker = Broker()
    broker.answers = {1: True, 2: True}
    record = TopicRecord(topic_id=topic_id, assignment=((1,), (2,), (1,)), schemas=(), key=None, created_at_ms=0)
    broker.client.ensure_path(topic_path("led"))
    broker.client.set(topic_path("led"), to_json(record), version=-1)
    for batch_id, partitions in enumerate((written, (3,))):
        broker.decide(batch_id, partitions=DecidedPartitions(topic="led", topic_id=topic_id, partitions=partitions))
    broker.finishing.step()
    broker.now_ms += 1_000
    broker.finishing.step()
    assert broker.unfinished() == [0], "there is no partition 3 to be told"


@pytest.mark.parametrize("other", [False, None])
def test_decision_is_finished_once_all_leaders_have_ended_it(other: bool | None) -> None:
    broker = Broker()
    broker.answers = {1: True, 2: other}
    broker.decide(0, partitions=LED)
    for _ in range(3):
        broker.now_ms += 1_000
        broker.finishing.step()
        assert broker.unfinished() == [0]
    broker.answers[2] = True
    broker.finishing.step()
    broker.now_ms += 1_000
    broker.finishing.step()
    assert broker.unfinished() == []


def test_finished_decision_that_none_follows_is_written_at_once() -> None:
    """Whoever waits until a batch can be read waits for that."""
    broker = Broker()
    broker.decide(0, is_followed=False)
    broker.finishing.step()
    assert broker.unfinished() == []


def test_finished_decision_is_written_with_the_next_one() -> None:
    """Each of many decisions is one write; no more of them than two are unfinished at a time."""
    broker = Broker()
    for batch_id in range(20):
        broker.decide(batch_id)
        broker.finishing.step()
        assert broker.unfinished() == [batch_id]
    assert broker.version() == 20


def test_finished_decision_without_a_next_one_is_written_after_a_moment() -> None:
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()
    broker.now_ms += int(WRITE_AFTER_S * 1000) - 1
    broker.finishing.step()
    assert broker.unfinished() == [0]
    broker.now_ms += 1
    broker.finishing.step()
    assert (broker.unfinished(), broker.version()) == ([], 2)
    broker.now_ms += DAY_MS // 8
    broker.finishing.step()
    assert broker.version() == 2, "there is nothing left to be written"


def test_finished_decisions_of_which_another_broker_decides_the_next_are_written_at_once_before_they_are_too_many() -> (
    None
):
    """It does not know that they are finished, and refuses the sixth."""
    broker = Broker()
    other = broker._coordinator()
    for batch_id in range(10):
        broker.decide(batch_id, by=other)
        broker.finishing.step()
    assert len(broker.unfinished()) < 3


def test_what_zookeeper_did_not_take_is_written_later() -> None:
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()
    broker.now_ms += 1_000
    broker.coordinator._client.suspend()  # type: ignore[attr-defined]
    broker.finishing.step()
    assert broker.unfinished() == [0]
    broker.coordinator._client.resume()  # type: ignore[attr-defined]
    broker.finishing.step()
    assert broker.unfinished() == []


def test_batch_of_the_same_number_of_an_id_that_has_begun_anew_is_not_finished() -> None:
    """What was noted is one decision, not a number: the other one's partitions may know nothing of it."""
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()  # finished, and not written yet
    broker.client.delete(transaction_path("x"))
    other = broker._coordinator()
    other.begin("x", run_id="r", batch_id=0, timeout_ms=1_000, keep_ms=DAY_MS)
    other.decide("x", run_id="r", epoch=0, batch_id=0, is_commit=True, producer_ids=[(7, 7)], partitions=[GONE])
    broker.now_ms += 1_000
    broker.coordinator.finish("x")
    assert broker.unfinished() == [0]


def test_decision_that_is_made_while_another_is_written_as_finished_stays_unfinished() -> None:
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()
    broker.decide(1, by=broker._coordinator())  # elsewhere: it knows nothing of what is finished
    assert broker.unfinished() == [0, 1]
    broker.coordinator.finish("x")
    assert broker.unfinished() == [1]


def test_record_that_is_older_than_the_one_that_waits_is_not_gone_by() -> None:
    """Two calls that decided one after the other may report their records the other way round."""
    broker = Broker()
    broker.decide(0)
    older = broker.record()
    broker.decide(1)
    broker.finishing.add("x", older, is_followed=True)
    broker.finishing.step()
    broker.now_ms += 1_000
    broker.finishing.step()
    assert broker.unfinished() == []


def test_decision_that_is_noted_while_another_is_written_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was just written is older than it, and does not show that it is finished."""
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()
    real = coordination.change

    def change(*arguments: Any, **fields: Any) -> Any:
        result = real(*arguments, **fields)
        monkeypatch.setattr(coordination, "change", real)
        broker.decide(1, by=broker._coordinator())
        broker.coordinator.note_ended("x", broker.record().unfinished)
        return result

    monkeypatch.setattr(coordination, "change", change)
    broker.coordinator.finish("x")
    assert broker.unfinished() == [1]
    broker.coordinator.finish("x")
    assert broker.unfinished() == []


def test_record_of_a_server_that_lags_does_not_show_that_a_decision_is_finished() -> None:
    """It is from before the decision."""
    broker = Broker()
    client = broker.coordinator._client
    find, path = client.find, transaction_path("x")
    old = find(path)
    broker.decide(0)
    broker.finishing.step()
    client.find = lambda at: old if at == path else find(at)  # type: ignore[method-assign]
    broker.begin()  # writes nothing
    client.find = find  # type: ignore[method-assign]
    broker.coordinator.finish("x")
    assert broker.unfinished() == []


def test_finished_decision_is_written_in_time_though_others_follow() -> None:
    """A broker that decides elsewhere does not write it."""
    broker = Broker()
    other = broker._coordinator()
    broker.decide(0, by=other)
    broker.finishing.step()
    broker.now_ms += int(WRITE_AFTER_S * 1000) - 50
    broker.decide(1, by=other)
    broker.finishing.step()
    broker.now_ms += 50
    broker.finishing.step()
    assert broker.unfinished() == []


def test_finishing_looks_again_soon_while_something_is_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()
    waits: list[float] = []
    monkeypatch.setattr(broker.finishing, "_signal", SimpleNamespace(wait=waits.append))
    broker.finishing.wait()
    broker.now_ms += 1_000
    broker.finishing.step()
    broker.finishing.wait()
    assert waits == [PAUSE_S, SWEEP_S / 3]


def test_abort_in_between_leaves_a_finished_decision_to_be_written() -> None:
    """What is written there says nothing of it."""
    broker = Broker()
    broker.decide(0)
    broker.finishing.step()
    broker.coordinator.abort_run("x")
    assert broker.unfinished() == [0]
    broker.coordinator.finish("x")
    assert broker.unfinished() == []
