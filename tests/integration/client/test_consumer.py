"""`Consumer` reads records from the log of a real broker."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors
from tests.waiting import SOON_S, take, wait_until


def produce(topic: str, *values: bytes, **options: object) -> None:
    with Producer() as producer:
        for value in values:
            producer.send(topic, value, **options)  # type: ignore[arg-type]


def test_consumer_reads_several_topics_in_order(new_topic: Callable[..., str]) -> None:
    """W2, W16: all records of all partitions are read, each partition's in order and without gaps in its offsets."""
    first, second = new_topic(2), new_topic(1)
    with Consumer(first, second, auto_offset_reset="earliest") as consumer:
        produce(first, *(b"%d" % n for n in range(1000)))
        produce(second, b"x", b"y")
        records = take(consumer, 1002)
    assert len(records) == 1002
    for topic, partition in ((first, 0), (first, 1), (second, 0)):
        own = [r for r in records if (r.topic, r.partition) == (topic, partition)]
        assert [r.offset for r in own] == list(range(len(own)))
    assert sorted(int(r.value) for r in records if r.topic == first) == list(range(1000))
    assert records[0].timestamp.tzinfo is UTC
    assert records[0].headers == ()


def test_consumer_subscribing_begins_at_the_current_offset_and_saves_it(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W17: earlier records are not read, and the offset is in ZooKeeper as soon as subscribe returns."""
    name, group = new_topic(1), new_group()
    at = TopicPartition(name, 0)
    produce(name, b"before")
    with Consumer(name, group_id=group) as consumer:
        assert admin.list_group_offsets(group)[at].committed == 1
        produce(name, b"after")
        assert [r.value for r in take(consumer, 1)] == [b"after"]
        assert consumer.position(at) == 2


def test_consumer_continues_with_the_next_record_after_it_was_away(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18, W19: acknowledged records are not read again; acknowledging a record acknowledges all before it."""
    name, group = new_topic(1), new_group()
    at = TopicPartition(name, 0)
    produce(name, *(b"%d" % n for n in range(10)))
    with Consumer(name, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        records = take(consumer, 10)
        consumer.commit(records[3])
        assert consumer.committed(at) == 4
        assert admin.list_group_offsets(group)[at] == (4, 10, 6)
    with Consumer(name, group_id=group, enable_auto_commit=False) as consumer:
        assert [r.value for r in take(consumer, 6)] == [b"%d" % n for n in range(4, 10)]
        consumer.commit_async({at: 6}).result(10)
    with Consumer(name, group_id=group) as consumer:
        assert [r.value for r in consumer.poll(10, max_records=2)] == [b"6", b"7"]
    with Consumer(name, group_id=group) as consumer:
        assert [r.value for r in take(consumer, 2)] == [b"8", b"9"]


def test_consumer_loop_commits_what_its_body_finished_never_the_record_that_raised(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18: after an exception in the loop's body the group continues with that very record."""
    name, group = new_topic(1), new_group()
    at = TopicPartition(name, 0)
    produce(name, *(b"%d" % n for n in range(5)))

    def fail_at(offset: int, consumer: Consumer) -> None:
        for record in consumer:
            if record.offset == offset:
                raise RuntimeError("the body failed")

    with pytest.raises(RuntimeError), Consumer(name, group_id=group, auto_offset_reset="earliest") as consumer:
        fail_at(2, consumer)
    assert admin.list_group_offsets(group)[at].committed == 2
    consumer = Consumer(name, group_id=group)
    with pytest.raises(RuntimeError):
        fail_at(3, consumer)
    consumer.close()
    assert admin.list_group_offsets(group)[at].committed == 3
    with Consumer(name, group_id=group) as consumer:
        for record in consumer:
            if record.offset == 3:
                break
    assert admin.list_group_offsets(group)[at].committed == 4


def test_consumer_commits_automatically_in_the_background(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18: each interval commits what a later poll proved finished, not what is being processed."""
    name, group = new_topic(1), new_group()
    at = TopicPartition(name, 0)
    produce(name, b"0", b"1", b"2")
    with Consumer(name, group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=20) as consumer:
        assert consumer.poll(10, max_records=2)
        assert consumer.poll(10, max_records=1)
        wait_until(lambda: admin.list_group_offsets(group)[at].committed >= 2, "two are committed", 10)
        assert admin.list_group_offsets(group)[at].committed == 2


def test_consumer_rewinds_and_skips_to_offset_and_time(new_topic: Callable[..., str]) -> None:
    """W20: a consumer can seek to any offset or time at any moment and reads everything from there on."""
    name = new_topic(1)
    at = TopicPartition(name, 0)
    moment = datetime.now(UTC) - timedelta(hours=5)
    with Producer() as producer:
        for n in range(10):
            producer.send(name, b"%d" % n, timestamp=moment + timedelta(minutes=n))
    with Consumer(name, auto_offset_reset="earliest") as consumer:
        assert len(take(consumer, 10)) == 10
        consumer.seek(at, 7)
        assert [r.value for r in take(consumer, 3)] == [b"7", b"8", b"9"]
        consumer.seek_to_time(moment + timedelta(minutes=5, seconds=30), at)
        assert [r.value for r in take(consumer, 4)] == [b"6", b"7", b"8", b"9"]
        consumer.seek_to_beginning()
        assert consumer.position(at) == 0
        assert [r.value for r in consumer.poll(10, max_records=1)] == [b"0"]
        assert consumer.lag(at) == 9
        consumer.seek_to_end(at)
        assert consumer.position(at) == 10
        found = consumer.offsets_for_times({at: moment + timedelta(minutes=9)})[at]
        assert found is not None
        assert found.offset == 9
        assert consumer.offsets_for_times({at: datetime.now(UTC)}) == {at: None}
        assert consumer.beginning_offsets([at]) == {at: 0}


def test_consumer_loop_follows_a_seek_in_its_body(new_topic: Callable[..., str]) -> None:
    """W20: a loop continues from where its body sought to."""
    name = new_topic(1)
    produce(name, *(b"%d" % n for n in range(6)))
    seen = []
    with Consumer(name, auto_offset_reset="earliest") as consumer:
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1]:
                consumer.seek(TopicPartition(name, 0), 5)
            if record.offset == 5:
                break
    assert seen == [0, 1, 5]


def test_consumer_long_poll_answers_when_a_record_comes(new_topic: Callable[..., str]) -> None:
    """W16: an idle poll ends empty after its timeout, a long poll as soon as there is a record."""
    name = new_topic(1)
    with Consumer(name) as consumer, Producer() as producer:
        assert consumer.poll() == []
        timer = threading.Timer(0.3, producer.send, (name, b"x"))
        timer.start()
        assert [r.value for r in consumer.poll(30)] == [b"x"]
        timer.join()


def test_consumer_pauses_and_resumes_partitions(new_topic: Callable[..., str]) -> None:
    """W16: nothing of a paused partition is returned, and nothing of it is lost."""
    name = new_topic(2)
    paused, other = TopicPartition(name, 0), TopicPartition(name, 1)
    with Consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([paused, other])
        consumer.pause(paused)
        produce(name, b"a", b"b", b"c", b"d")
        assert {r.partition for r in take(consumer, 2)} == {1}
        assert consumer.poll(0.2) == []
        assert consumer.paused() == {paused}
        consumer.resume(paused)
        assert [r.offset for r in take(consumer, 2)] == [0, 1]


def test_consumer_reads_new_partitions_and_topics(new_topic: Callable[..., str], admin: Admin) -> None:
    """W16: partitions and topics that are added later are read from their first record, even with ``latest``."""
    prefix = f"{new_topic(1)}-pattern"
    admin.create_topic(f"{prefix}-a")
    assigned: list[TopicPartition] = []
    with Consumer() as consumer:
        consumer.subscribe(pattern=f"{prefix}-.*", on_assign=assigned.extend)
        assert consumer.subscription() == {f"{prefix}-a"}
        admin.create_partitions(f"{prefix}-a", 2)
        admin.create_topic(f"{prefix}-b")
        with Producer() as producer:
            producer.send(f"{prefix}-a", b"new partition", partition=1)
            producer.send(f"{prefix}-b", b"new topic")
        assert {r.value for r in take(consumer, 2)} == {b"new partition", b"new topic"}
        assert len(assigned) == 3
        admin.delete_topic(f"{prefix}-b")
        wait_until(lambda: consumer.poll(0.2) or len(consumer.assignment()) < 3, "a topic goes", SOON_S, pause_s=0)
        assert consumer.assignment() == {TopicPartition(f"{prefix}-a", 0), TopicPartition(f"{prefix}-a", 1)}


def test_consumer_fails_when_its_topic_is_deleted(new_topic: Callable[..., str], admin: Admin) -> None:
    """W16: deleting a topic under a consumer is an error, not silence."""
    name = new_topic(1)
    with Consumer(name) as consumer:
        consumer.poll(0.1)
        admin.delete_topic(name)
        with pytest.raises((errors.UnknownTopicOrPartitionError, errors.InconsistentTopicIdError)):
            take(consumer, 1)


def test_consumer_resets_an_offset_that_is_gone(new_topic: Callable[..., str], admin: Admin) -> None:
    """W20: the reset rule decides about an offset below the log's start; ``none`` raises."""
    name = new_topic(1)
    at = TopicPartition(name, 0)
    produce(name, *(b"%d" % n for n in range(6)))
    admin.delete_records({at: 4})
    with Consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([at])
        consumer.seek(at, 1)
        assert [r.value for r in take(consumer, 2)] == [b"4", b"5"]
    with pytest.raises(errors.NoOffsetForPartitionError, match="none"):
        Consumer(name, auto_offset_reset="none")


def test_consumer_refuses_to_commit_an_invalid_position(
    new_topic: Callable[..., str], new_group: Callable[[], str]
) -> None:
    """W18: the error says which positions are allowed."""
    with Consumer(new_topic(1), group_id=new_group()) as consumer:
        for wrong in (5, "x", []):
            with pytest.raises(errors.InvalidRequestError, match="commit takes"):
                consumer.commit(wrong)  # type: ignore[arg-type]


def test_consumer_without_group_cannot_commit(new_topic: Callable[..., str]) -> None:
    """W18: committing needs a group, and so does asking for committed offsets."""
    name = new_topic(1)
    with Consumer(name) as consumer:
        for call in (consumer.commit, consumer.group_metadata, lambda: consumer.committed(TopicPartition(name, 0))):
            with pytest.raises(errors.InvalidGroupIdError, match="group_id"):
                call()  # type: ignore[operator]


def test_consumer_wakeup_ends_a_poll_from_another_thread(new_topic: Callable[..., str]) -> None:
    """W16: a waiting poll can be ended; the consumer remains usable."""
    name = new_topic(1)
    with Consumer(name) as consumer:
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        with pytest.raises(errors.WakeupError):
            consumer.poll(30)
        timer.join()
        produce(name, b"x")
        assert len(take(consumer, 1)) == 1


def test_consumer_refuses_calls_that_do_not_fit(new_topic: Callable[..., str]) -> None:
    """W16: nothing subscribed, not assigned, both topics and pattern, closed, unknown topic: each has its own error."""
    name = new_topic(1)
    consumer = Consumer()
    with pytest.raises(errors.ClientStateError, match="subscribe"):
        consumer.poll()
    with pytest.raises(errors.InvalidRequestError, match="one of both"):
        consumer.subscribe([name], pattern=".*")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        consumer.subscribe("no-such-topic")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        consumer.assign([TopicPartition(name, 5)])
    consumer.assign([TopicPartition(name, 0)])
    with pytest.raises(errors.ClientStateError, match="not assigned"):
        consumer.seek(TopicPartition(name, 1), 0)
    consumer.close()
    with pytest.raises(errors.ClosedError):
        consumer.poll()


def test_consumer_returns_batches_with_chosen_columns(new_topic: Callable[..., str]) -> None:
    """W16: batches have the frames' columns; only requested columns are fetched, and rows below the position are cut
    off.
    """
    name = new_topic(1, schema="a int64, b string, c binary")
    table = pa.table({"a": range(20_000), "b": ["x" * 30] * 20_000, "c": [b"y" * 50] * 20_000})
    with Producer() as producer:
        producer.send_batch(name, table).result(20)
    with Consumer(columns=["b", "a"], auto_offset_reset="earliest") as consumer:
        at = TopicPartition(name, 0)
        consumer.assign([at])
        consumer.seek(at, 5)
        found = []
        while sum(map(len, found)) < 19_995:
            batches = consumer.poll_batches(10)
            assert batches
            found += batches
        assert found[0].batch.schema.names == ["a", "b"]
        assert found[0].offsets[0].as_py() == 5
        assert found[0].timestamps.type == pa.timestamp("ms", tz="UTC")
        assert pa.concat_arrays([b.batch.column("a") for b in found]).to_pylist() == list(range(5, 20_000))
        assert consumer.position(at) == 20_000
    with Consumer(name, auto_offset_reset="earliest") as consumer:
        record = consumer.poll(10, max_records=1)[0]
        assert record.row == {"a": 0, "b": "x" * 30, "c": b"y" * 50}


def test_consumer_deserializes_keys_and_values(new_topic: Callable[..., str]) -> None:
    """W16: the deserializers turn bytes into values; nulls stay nulls."""
    name = new_topic(1)
    produce(name, b"5", None, key="k")  # type: ignore[arg-type]
    with Consumer(
        name, auto_offset_reset="earliest", key_deserializer=bytes.decode, value_deserializer=int
    ) as consumer:
        assert [(r.key, r.value) for r in take(consumer, 2)] == [("k", 5), ("k", None)]


@pytest.mark.parametrize("has_group", [True, False])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_consumer_keeps_its_positions_when_it_subscribes_to_more(
    new_topic: Callable[..., str], new_group: Callable[[], str], has_group: bool, reset: str
) -> None:
    """W20: nothing is read twice or skipped of a topic that is in both subscriptions."""
    first, second = new_topic(), new_topic()
    group = new_group() if has_group else None
    with Consumer(first, group_id=group, auto_offset_reset=reset) as consumer:
        produce(first, *(b"%d" % n for n in range(10)))
        got = consumer.poll(20, max_records=4)
        consumer.subscribe([first, second])
        got += take(consumer, 10 - len(got))
        assert [int(record.value) for record in got] == list(range(10))


def test_consumer_that_is_assigned_a_recreated_topic_reads_it(new_topic: Callable[..., str], admin: Admin) -> None:
    """W20: after the error about its deleted topic, a new assignment begins with the new topic."""
    name = new_topic()
    at = TopicPartition(name, 0)
    produce(name, b"old", b"older")
    with Consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([at])
        assert len(take(consumer, 2)) == 2
        admin.delete_topic(name)
        admin.create_topic(name, partitions=1)
        with pytest.raises((errors.InconsistentTopicIdError, errors.UnknownTopicOrPartitionError)):
            take(consumer, 1)
        produce(name, b"new")
        consumer.assign([at])
        assert [record.value for record in take(consumer, 1)] == [b"new"]
