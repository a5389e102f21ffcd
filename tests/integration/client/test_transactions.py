"""Transactions of Python producers over real brokers: all of it or nothing, whoever dies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from broker_runtime.contract.waiting import Deadline
from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors, read
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.records import GroupMetadata
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

LIMIT_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as started:
        yield started


@pytest.fixture
def bootstrap(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    return cluster.bootstrap_servers


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.originalname}"
    with Admin() as admin:
        admin.create_topic(name, partitions=3, replication_factor=3)
    return name


def committed(topic: str) -> list[bytes]:
    """The values that a reader of committed records gets, sorted."""
    return sorted(read(topic).read_all().column("value").to_pylist())


def wait_for(topic: str, values: list[bytes]) -> None:
    wait_until(lambda: committed(topic) == sorted(values), f"{topic} has what was committed", LIMIT_S)


def values(name: str, count: int) -> list[bytes]:
    return [b"%s-%d" % (name.encode(), n) for n in range(count)]


def test_commit_shows_all_and_abort_nothing(topic: str) -> None:
    with Producer(transactional_id=topic) as producer:
        with producer.transaction():
            for value in values("a", 30):
                producer.send(topic, value)
        wait_for(topic, values("a", 30))
        producer.begin_transaction()
        sent = [producer.send(topic, value) for value in values("b", 30)]
        producer.flush()
        assert all(future.done() for future in sent)
        assert committed(topic) == sorted(values("a", 30))
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"c")
        wait_for(topic, [*values("a", 30), b"c"])


def test_body_that_raises_aborts(topic: str) -> None:
    with Producer(transactional_id=topic) as producer:

        def fail() -> None:
            with producer.transaction():
                producer.send(topic, b"no")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with producer.transaction():
            producer.send(topic, b"yes")
        wait_for(topic, [b"yes"])


def test_reader_of_uncommitted_records_gets_all(topic: str) -> None:
    with Producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        for value in values("a", 10):
            producer.send(topic, value)
        producer.flush()
        with Consumer(isolation_level="read_uncommitted", auto_offset_reset="earliest") as all_of_it:
            all_of_it.assign([TopicPartition(topic, n) for n in range(3)])
            found: list[bytes] = []

            def has_all() -> bool:
                found.extend(record.value for record in all_of_it.poll(0.1))
                return sorted(found) == sorted(values("a", 10))

            wait_until(has_all, "all records are read", LIMIT_S)
        producer.abort_transaction()
    assert committed(topic) == []


def test_reader_comes_to_the_end_of_a_log_that_ends_with_no_record_for_it(topic: str) -> None:
    """W19: a transaction's end is an offset without a record, as is what was aborted; a group's lag becomes 0."""
    at = TopicPartition(topic, 0)
    with Producer(transactional_id=topic) as producer:
        for is_committed in (True, False):
            producer.begin_transaction()
            producer.send(topic, b"v", partition=0)
            producer.flush()
            producer.commit_transaction() if is_committed else producer.abort_transaction()
    with Admin() as admin:

        def all_has_ended() -> bool:
            partition = admin.describe_topic(topic).partitions[0]
            return partition.high_watermark == partition.last_stable_offset == 6

        wait_until(all_has_ended, "both transactions have ended", LIMIT_S)
        for isolation in ("read_committed", "read_uncommitted"):
            group = f"{topic}-{isolation}"
            with Consumer(
                group_id=group, isolation_level=isolation, auto_offset_reset="earliest", enable_auto_commit=False
            ) as consumer:
                consumer.assign([at])
                deadline = Deadline(LIMIT_S)
                while consumer.position(at) < 6 and not deadline.expired:
                    consumer.poll(0.2)
                assert (consumer.position(at), consumer.lag(at)) == (6, 0)
                consumer.commit()
            assert admin.list_group_offsets(group)[at].lag == 0


def test_second_producer_of_an_id_takes_over_and_fences_the_first(topic: str) -> None:
    """What the first one has open is aborted; nothing that it does later counts."""
    with Producer(transactional_id=topic) as first, Producer(transactional_id=topic) as second:
        first.begin_transaction()
        first.send(topic, b"of the first").result(LIMIT_S)
        with second.transaction():
            second.send(topic, b"of the second")
        wait_for(topic, [b"of the second"])
        with pytest.raises(errors.ProducerFencedError):
            first.commit_transaction()
        with pytest.raises(errors.ProducerFencedError, match="close"):
            first.begin_transaction()
        with pytest.raises(errors.ProducerFencedError, match="close"):
            first.abort_transaction()
        with pytest.raises(errors.ProducerFencedError, match="close"):
            first.send(topic, b"of the first, later")
    assert committed(topic) == [b"of the second"]


def test_fenced_producer_learns_it_from_its_records_too(topic: str) -> None:
    """Which call finds out does not matter: it says PRODUCER_FENCED, not what became of a batch."""
    with Producer(transactional_id=topic) as first, Producer(transactional_id=topic) as second:
        first.begin_transaction()
        with second.transaction():
            second.send(topic, b"of the second")

        def is_refused() -> bool:
            return isinstance(first.send(topic, b"of the first").exception(LIMIT_S), errors.ProducerFencedError)

        wait_until(is_refused, "a record of the first is refused", LIMIT_S)
        with pytest.raises(errors.ProducerFencedError):
            first.commit_transaction()
        with pytest.raises(errors.ProducerFencedError):
            first.begin_transaction()
        wait_for(topic, [b"of the second"])
        with pytest.raises(errors.ProducerFencedError):
            first.close()


def test_transaction_that_is_open_for_too_long_is_aborted_and_holds_nobody_back(topic: str) -> None:
    with Producer(transactional_id=topic, transaction_timeout_ms=1000) as producer, Producer() as other:
        producer.begin_transaction()
        producer.send(topic, b"late", partition=0).result(LIMIT_S)
        other.send(topic, b"behind", partition=0).result(LIMIT_S)
        wait_for(topic, [b"behind"])
        with pytest.raises(errors.ProducerFencedError, match="1000 ms"):
            producer.commit_transaction()


def test_calls_out_of_order_are_refused_by_what_is_wrong(topic: str) -> None:
    with Producer() as plain, pytest.raises(errors.ClientStateError, match="transactional_id"):
        plain.begin_transaction()
    with Producer(transactional_id=topic) as producer:
        with pytest.raises(errors.ClientStateError, match="begin_transaction"):
            producer.send(topic, b"v")
        with pytest.raises(errors.ClientStateError, match="begin_transaction"):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(errors.ClientStateError, match="commit or abort"):
            producer.begin_transaction()
        producer.abort_transaction()
    assert committed(topic) == []


class LostAnswers:
    """Loses the answers of decisions: the next ``count`` calls are carried out, or not, and fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.arrives = True
        ask = Cluster.call

        def call(cluster: Cluster, action: str, *arguments: Any, **named: Any) -> Any:
            is_lost = action == "end_transaction" and self.count > 0
            answer = ask(cluster, action, *arguments, **named) if self.arrives or not is_lost else None
            if is_lost:
                self.count -= 1
                raise errors.NetworkError("the answer was lost")
            return answer

        monkeypatch.setattr(Cluster, "call", call)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(monkeypatch)


def test_commit_whose_answer_was_lost_is_found_out(topic: str, lost: LostAnswers) -> None:
    """S6: a commit again, an abort, and the end of `with` each find out what was decided."""
    with Producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"again")
        lost.count = 1
        with pytest.raises(errors.NetworkError):
            producer.commit_transaction()
        with pytest.raises(errors.ClientStateError, match="commit_transaction"):
            producer.send(topic, b"too late")
        with pytest.raises(errors.ClientStateError, match="commit_transaction"):
            producer.begin_transaction()
        producer.commit_transaction()

        producer.begin_transaction()
        producer.send(topic, b"abort")
        lost.count = 1
        with pytest.raises(errors.NetworkError):
            producer.commit_transaction()
        with pytest.raises(errors.InvalidTxnStateError, match="committed"):
            producer.abort_transaction()

        lost.count = 1
        with producer.transaction():
            producer.send(topic, b"with")

        lost.count, lost.arrives = 1, False

        def fail() -> None:
            with producer.transaction():
                producer.send(topic, b"never")

        with pytest.raises(errors.NetworkError):
            fail()
        with producer.transaction():
            producer.send(topic, b"after")
        wait_for(topic, [b"again", b"abort", b"with", b"after"])


def test_abort_whose_answer_was_lost_can_only_be_repeated(topic: str, lost: LostAnswers) -> None:
    """What was dropped cannot be committed by a call that follows."""
    with Producer(transactional_id=topic) as producer:
        for lost.arrives in (False, True):
            producer.begin_transaction()
            producer.send(topic, b"no").result(LIMIT_S)
            lost.count = 1
            with pytest.raises(errors.NetworkError):
                producer.abort_transaction()
            with pytest.raises(errors.ClientStateError, match="abort_transaction"):
                producer.commit_transaction()
            with pytest.raises(errors.ClientStateError, match="abort_transaction"):
                producer.send(topic, b"no")
            producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"yes")
        wait_for(topic, [b"yes"])


def joined(consumer: Consumer) -> None:
    wait_until(lambda: consumer.poll(0.2) or consumer.assignment(), "the consumer has its partitions", LIMIT_S)


def test_commit_whose_answer_was_lost_is_found_out_though_the_member_has_left(topic: str, lost: LostAnswers) -> None:
    """The offsets are committed with the decision; who commits again need not be a member any more."""
    group, first = f"{topic}.group", TopicPartition(topic, 0)
    with Producer(transactional_id=topic) as producer:
        with Consumer(topic, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            joined(consumer)
            producer.begin_transaction()
            producer.send(topic, b"v", partition=0).result(LIMIT_S)
            producer.send_offsets_to_transaction({first: 1}, consumer.group_metadata())
            lost.count = 1
            with pytest.raises(errors.NetworkError):
                producer.commit_transaction()
        producer.commit_transaction()
    with Admin() as admin:
        assert admin.list_group_offsets(group)[first].committed == 1
    wait_for(topic, [b"v"])


def test_consumer_that_lost_its_place_commits_no_offsets(topic: str) -> None:
    """A worker that stood still is refused even if the group is empty by then: others may have done its work."""
    group, first = f"{topic}.group", TopicPartition(topic, 0)
    with (
        Admin() as admin,
        Producer(transactional_id=topic) as producer,
        Consumer(topic, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest") as consumer,
    ):
        joined(consumer)
        held = consumer.group_metadata()
        admin.remove_group_members(group, [held.member_id])
        wait_until(lambda: not admin.describe_group(group).members, "the group is empty", LIMIT_S)
        for _ in range(2):
            producer.begin_transaction()
            producer.send(topic, b"no")
            producer.send_offsets_to_transaction({first: 1}, consumer.group_metadata())
            with pytest.raises(errors.UnknownMemberIdError):
                producer.commit_transaction()
            with pytest.raises(errors.ClientStateError, match="UNKNOWN_MEMBER_ID"):
                producer.begin_transaction()
            producer.abort_transaction()
        assert admin.list_group_offsets(group)[first].committed == 0
        assert committed(topic) == []


def test_offsets_that_cannot_be_committed_are_refused_at_once(topic: str) -> None:
    """By what is wrong with them; the transaction goes on without."""
    mine = TopicPartition(topic, 0)
    with Producer(transactional_id=topic) as producer, producer.transaction():
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="nowhere"):
            producer.send_offsets_to_transaction({TopicPartition("nowhere", 0): 1}, GroupMetadata("g"))
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="77"):
            producer.send_offsets_to_transaction({TopicPartition(topic, 77): 1}, GroupMetadata("g"))
        with pytest.raises(errors.InvalidRequestError, match="-1"):
            producer.send_offsets_to_transaction({mine: -1}, GroupMetadata("g"))
        with pytest.raises(errors.InvalidRequestError, match="group_metadata"):
            producer.send_offsets_to_transaction({mine: 1}, "g")  # type: ignore[arg-type]
        producer.send(topic, b"v")
    wait_for(topic, [b"v"])


def test_transaction_without_records_is_one(topic: str) -> None:
    """With offsets only it commits them; without, nothing; and what is open when a producer is closed is aborted."""
    group, first = f"{topic}.group", TopicPartition(topic, 0)
    with Producer(transactional_id=topic) as producer, Admin() as admin:
        with producer.transaction():
            pass
        with Producer() as source:
            source.send(topic, b"v", partition=0)
        with producer.transaction():
            producer.send_offsets_to_transaction({first: 1}, GroupMetadata(group))
        assert admin.list_group_offsets(group)[first].committed == 1
        producer.begin_transaction()
        producer.send(topic, b"open").result(LIMIT_S)
    wait_for(topic, [b"v"])
    with pytest.raises(errors.ClosedError):
        producer.send(topic, b"closed")
    with pytest.raises(errors.ClosedError):
        producer.begin_transaction()


def test_consumer_comes_to_the_end_of_the_log_though_that_is_no_record(topic: str) -> None:
    """Positions pass marks and aborted records, so a consumer that has everything has no lag, however it reads."""
    at = TopicPartition(topic, 0)
    with Producer(transactional_id=topic) as producer, Consumer() as consumer:
        with producer.transaction():
            producer.send(topic, b"yes", partition=0)
        wait_for(topic, [b"yes"])
        producer.begin_transaction()
        producer.send(topic, b"no", partition=0).result(LIMIT_S)
        producer.abort_transaction()
        consumer.assign([at])
        wait_until(lambda: consumer.end_offsets([at])[at] == 6, "the aborted transaction has ended", LIMIT_S)
        for read_on in (consumer.poll, consumer.poll_batches, lambda timeout: next(iter(consumer))):
            consumer.seek_to_beginning(at)
            wait_until(lambda read_on=read_on: read_on(timeout=0.2), "there are records", LIMIT_S)
            wait_until(lambda: consumer.poll(0.1) or consumer.position(at) == 6, "the position is the end", LIMIT_S)
            assert consumer.lag(at) == 0


def test_offsets_are_committed_with_the_transaction_or_not_at_all(topic: str) -> None:
    """Consume, transform, produce: after an abort the group reads the same records again."""
    out, group = f"{topic}.out", f"{topic}.group"
    with Admin() as admin:
        admin.create_topic(out, partitions=2, replication_factor=3)
        with Producer() as source:
            for value in values("a", 60):
                source.send(topic, value)
        with Producer(transactional_id=topic) as producer:
            for is_commit in (False, True):
                with Consumer(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
                    consumer.subscribe([topic])
                    positions: dict[TopicPartition, int] = {}
                    producer.begin_transaction()
                    seen = 0

                    def has_all(
                        consumer: Consumer = consumer, positions: dict[TopicPartition, int] = positions
                    ) -> bool:
                        nonlocal seen
                        for record in consumer.poll(0.2):
                            producer.send(out, record.value)
                            positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                            seen += 1
                        return seen == 60

                    wait_until(has_all, "all records are copied", LIMIT_S)
                    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
                    if is_commit:
                        producer.commit_transaction()
                    else:
                        producer.abort_transaction()
                        assert sum(each.committed or 0 for each in admin.list_group_offsets(group).values()) == 0
        wait_for(out, values("a", 60))
        assert sum(each.committed or 0 for each in admin.list_group_offsets(group).values()) == 60


def test_transactions_are_whole_whichever_broker_dies(cluster: LocalCluster, topic: str) -> None:
    """Leaders are killed in the middle of transactions; each is in the log once and whole, or not at all."""
    kept: list[bytes] = []
    stop = threading.Event()
    failures: list[errors.PylogError] = []

    def run() -> None:
        try:
            with Producer(transactional_id=topic) as producer:
                number = 0
                while not stop.is_set():
                    number += 1
                    mine = values(f"t{number}", 12)
                    producer.begin_transaction()
                    for value in mine:
                        producer.send(topic, value)
                    if number % 4:
                        commit(producer)
                        kept.extend(mine)
                    else:
                        producer.abort_transaction()
        except errors.PylogError as error:
            failures.append(error)

    def commit(producer: Producer) -> None:
        for _ in range(5):
            try:
                producer.commit_transaction()
            except errors.RetriableError:
                continue
            return
        producer.commit_transaction()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for broker_id in cluster.broker_ids[:2]:
            before = len(kept)
            wait_until(lambda before=before: failures or len(kept) > before + 60, "transactions are committed", LIMIT_S)
            cluster.kill(broker_id)
            before = len(kept)
            wait_until(lambda before=before: failures or len(kept) > before + 60, "they go on without it", LIMIT_S)
            cluster.start(broker_id)
            cluster.wait_until_ready()
    finally:
        stop.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert failures == []
    wait_for(topic, kept)
    assert set(Counter(committed(topic)).values()) == {1}


def test_what_was_decided_is_committed_though_all_brokers_die(cluster: LocalCluster, topic: str) -> None:
    """The decision is in ZooKeeper: whoever leads later reads it there."""
    with Producer(transactional_id=topic) as producer:
        with producer.transaction():
            for value in values("a", 30):
                producer.send(topic, value)
        for broker_id in cluster.broker_ids:
            cluster.kill(broker_id)
        for broker_id in cluster.broker_ids:
            cluster.start(broker_id)
        cluster.wait_until_ready()
        wait_for(topic, values("a", 30))
        with producer.transaction():
            producer.send(topic, b"later")
        wait_for(topic, [*values("a", 30), b"later"])
