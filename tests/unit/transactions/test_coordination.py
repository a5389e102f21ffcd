"""What a coordinator asks ZooKeeper for, and what it goes by without asking."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker_runtime.contract.errors import ProducerFencedError
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import ZNode
from broker_runtime.zookeeper.znodes import TRANSACTIONS, DecidedPartitions, transaction_path

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS


class Brokers:
    """Two coordinators over one ZooKeeper, a clock that is moved by hand, and how often each has read."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.zookeeper = MemoryZooKeeper()
        self.zookeeper.client().ensure_path(TRANSACTIONS)
        self.reads = [0, 0]
        self.one, self.other = self._coordinator(0), self._coordinator(1)

    def _coordinator(self, number: int) -> TransactionCoordinator:
        client = self.zookeeper.client()
        find, find_all = client.find, client.find_all

        def counted_find(path: str) -> ZNode | None:
            self.reads[number] += 1
            return find(path)

        def counted_find_all(paths: Sequence[str], **options: bool) -> list[ZNode | None]:
            self.reads[number] += 1
            return find_all(paths, **options)

        client.find, client.find_all = counted_find, counted_find_all  # type: ignore[method-assign]
        return TransactionCoordinator(client, steady_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def begin(coordinator: TransactionCoordinator, run_id: str = "r", *, epoch: int = -1, keep_ms: int = DAY_MS) -> int:
    record, batch_id, is_decided = coordinator.begin(
        "x", run_id=run_id, batch_id=-1, epoch=epoch, timeout_ms=1_000, keep_ms=keep_ms
    )
    assert (batch_id >= 0, is_decided) == (True, False)
    return record.epoch


def decide(
    coordinator: TransactionCoordinator,
    batch_id: int,
    run_id: str = "r",
    epoch: int = 0,
    *,
    producer_ids: Sequence[tuple[int, int]] = (),
    partitions: Sequence[DecidedPartitions] = (),
) -> None:
    decided = coordinator.decide(
        "x",
        run_id=run_id,
        epoch=epoch,
        batch_id=batch_id,
        is_commit=True,
        producer_ids=producer_ids or [(batch_id, batch_id)],
        partitions=partitions,
    )
    assert not decided.is_replay


def last_batch(coordinator: TransactionCoordinator) -> int:
    record = coordinator.read("x")
    assert record is not None
    assert record.last is not None
    return record.last.batch_id


def test_decision_is_written_without_reading_what_was_known_a_moment_ago(brokers: Brokers) -> None:
    begin(brokers.one)
    read = brokers.reads[0]
    for batch_id in range(3):
        decide(brokers.one, batch_id)
        brokers.now_ms += 500
    assert brokers.reads[0] == read
    brokers.now_ms += 1
    decide(brokers.one, 3)
    assert brokers.reads[0] == read + 1
    assert last_batch(brokers.other) == 3


def test_decision_of_very_many_scattered_producer_ids_fits_into_a_znode(brokers: Brokers) -> None:
    """Ten thousand tasks whose ids do not make ranges; the next decision does not wait for this one's end."""
    begin(brokers.one)
    scattered = [(10**15 + 977 * each, 10**15 + 977 * each) for each in range(10_000)]
    partitions = [DecidedPartitions(topic="t", topic_id=bytes(16), partitions=tuple(range(100)))]
    decide(brokers.one, 0, producer_ids=scattered, partitions=partitions)
    decide(brokers.one, 1, partitions=partitions)
    record = brokers.other.read("x")
    assert record is not None
    assert [each.batch_id for each in record.unfinished] == [0, 1]
    assert [tuple(each) for each in record.unfinished[0].producer_ids] == scattered


def test_what_another_broker_changed_meanwhile_is_seen(brokers: Brokers) -> None:
    """The znode has another version, so nothing is written over what is there."""
    begin(brokers.one)
    decide(brokers.other, 0)
    decide(brokers.one, 1)
    assert brokers.reads[0] == 2  # at first, and after the conflict
    assert last_batch(brokers.one) == 1


def test_who_was_taken_over_from_elsewhere_decides_nothing(brokers: Brokers) -> None:
    begin(brokers.one)
    assert begin(brokers.other, "later") == 1
    with pytest.raises(ProducerFencedError):
        decide(brokers.one, 0)
    record = brokers.one.read("x")
    assert record is not None
    assert (record.run_id, record.last) == ("later", None)


def test_refusal_is_never_given_by_what_was_known(brokers: Brokers) -> None:
    """The run began elsewhere since: it is no zombie."""
    begin(brokers.one, "earlier")
    assert begin(brokers.other) == 1
    decide(brokers.one, 0, epoch=1)
    assert last_batch(brokers.one) == 0


def test_id_that_is_removed_meanwhile_is_created_again(brokers: Brokers) -> None:
    begin(brokers.one)
    client = brokers.zookeeper.client()
    client.delete(transaction_path("x"))
    assert begin(brokers.one, "later") == 0


@pytest.mark.parametrize(("keep_ms", "idle_ms", "is_read"), [(2_000, 0, True), (2_001, 400, False), (DAY_MS, 0, False)])
def test_id_that_may_be_forgotten_just_now_is_read(brokers: Brokers, keep_ms: int, idle_ms: int, is_read: bool) -> None:
    """Begun anew, its znode could have the same version again, and other contents."""
    begin(brokers.one, keep_ms=keep_ms)
    read = brokers.reads[0]
    brokers.now_ms += idle_ms
    decide(brokers.one, 0)
    assert (brokers.reads[0] > read) is is_read


def test_id_that_was_out_of_use_for_long_is_read(brokers: Brokers) -> None:
    begin(brokers.one)
    brokers.now_ms += DAY_MS // 2
    brokers.one.read("x")
    read = brokers.reads[0]
    decide(brokers.one, 0)
    assert brokers.reads[0] == read + 1


def test_what_is_to_be_ended_is_known_to_the_broker_that_decided(brokers: Brokers) -> None:
    begin(brokers.one)
    decide(brokers.one, 0)
    read = brokers.reads[0]
    record = brokers.one.read_decided("x", epoch=0, batch_id=0)
    assert record is not None
    assert record.last is not None
    assert brokers.reads[0] == read
    decide(brokers.other, 1)
    record = brokers.one.read_decided("x", epoch=0, batch_id=1)
    assert record is not None
    assert record.last is not None
    assert record.last.batch_id == 1


def test_answer_that_writes_nothing_is_not_given_by_what_was_known(brokers: Brokers) -> None:
    """Who was taken over from elsewhere, a moment ago, does not begin."""
    epoch = begin(brokers.one)
    decide(brokers.one, 0)
    assert begin(brokers.other, "later") == epoch + 1
    with pytest.raises(ProducerFencedError):
        begin(brokers.one, epoch=epoch)


def test_partition_lets_a_transaction_begin_by_what_is_known(brokers: Brokers) -> None:
    """Each transaction begins in many partitions: ZooKeeper is asked once in a while, and before one is refused."""
    begin(brokers.one)
    read = brokers.reads[0]
    for producer_id in range(5):
        brokers.one.require_may_begin("x", epoch=0, batch_id=0, producer_id=producer_id)
    assert brokers.reads[0] == read
    brokers.now_ms += 501
    brokers.one.require_may_begin("x", epoch=0, batch_id=0, producer_id=5)
    assert brokers.reads[0] > read
    read = brokers.reads[0]
    with pytest.raises(ProducerFencedError):
        brokers.one.require_may_begin("x", epoch=-1, batch_id=0, producer_id=6)
    assert brokers.reads[0] > read


def test_id_that_is_forgotten_and_begun_anew_fences_nobody(brokers: Brokers) -> None:
    """The broker that forgot it, or saw it before, knows of a higher epoch."""
    for run_id in ("a", "b", "c"):
        begin(brokers.one, run_id, keep_ms=5_000)
    brokers.now_ms += 5_001
    brokers.other.read("x")
    assert brokers.one.forget("x", now_ms=brokers.now_ms)
    assert begin(TransactionCoordinator(brokers.zookeeper.client(), steady_ms=lambda: 0, wall_ms=lambda: 0), "new") == 0
    for coordinator in (brokers.one, brokers.other):
        coordinator.require_may_begin("x", epoch=0, batch_id=0, producer_id=7)
