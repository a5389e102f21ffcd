"""`Producer.send` writes records to the log of a real broker."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pyspark_log import Admin, Producer, RecordMetadata, errors, read
from pyspark_log.client.producer.partitioner import partition_for_key
from tests.waiting import SOON_S, wait_until


def values(topic: str) -> list[bytes]:
    return read(topic).read_all()["value"].to_pylist()


def test_producer_spreads_records_without_key_evenly(new_topic: Callable[..., str]) -> None:
    """W7: two records go to two partitions, one each; any number is spread as evenly."""
    name = new_topic(2)
    with Producer() as producer:
        assert sorted(producer.send(name, b"x").result(10).partition for _ in range(2)) == [0, 1]
    name = new_topic(3)
    with Producer() as producer:
        futures = [producer.send(name, b"x") for _ in range(300)]
        assert Counter(f.result(10).partition for f in futures) == {0: 100, 1: 100, 2: 100}


def test_producer_sends_a_key_where_kafka_would(new_topic: Callable[..., str]) -> None:
    """W8: a key, be it bytes, a string or a number, always goes to the partition that Kafka would choose."""
    name = new_topic(5)
    with Producer() as producer:
        for key, as_bytes in ((b"21", b"21"), ("foobar", b"foobar"), (7, (7).to_bytes(8, "big"))):
            sent = {producer.send(name, b"v", key=key).result(10).partition for _ in range(3)}
            assert sent == {partition_for_key(as_bytes, 5)}
        assert producer.send(name, b"v", key="foobar", partition=4).result(10).partition == 4
        with pytest.raises(errors.InvalidPartitionsError, match="0 to 4"):
            producer.send(name, b"v", partition=5)


def test_producer_sends_to_a_partition_added_after_its_last_refresh(
    new_topic: Callable[..., str], admin: Admin
) -> None:
    """W8: the producer refreshes its metadata before it refuses a named partition."""
    name = new_topic(1)
    with Producer() as producer:
        producer.send(name, b"x", partition=0).result(10)
        admin.create_partitions(name, 3)
        assert producer.send(name, b"x", partition=2).result(10).partition == 2
        producer.send_batch(name, pa.table({"value": [b"y"]}), partition=1).result(10)
        with pytest.raises(errors.InvalidPartitionsError, match="0 to 2"):
            producer.send(name, b"x", partition=3)


def test_producer_makes_frames_that_fit_into_small_segments(new_topic: Callable[..., str]) -> None:
    """W3: no frame is larger than a segment, whether made of records, rows or batches."""
    plain, typed = (new_topic(config={"segment.bytes": "16KiB"}, schema=schema) for schema in (None, "l array<string>"))
    with Producer(linger_ms=1000) as producer:
        for n in range(500):
            producer.send(plain, b"%d" % n * 30)
            producer.send(typed, {"l": ["é" * 20] * 10})
        producer.flush(30)
        producer.send_batch(plain, pa.table({"value": [b"x" * 100] * 1000})).result(30)
    assert len(values(plain)) == 1500
    assert read(typed).read_all().num_rows == 500


def test_invalid_unicode_is_refused_and_the_producer_continues(new_topic: Callable[..., str]) -> None:
    """A lone surrogate has no UTF-8 encoding; it must not end the thread that encodes frames, and all other records
    with it.
    """
    name = new_topic()
    with Producer() as producer:
        for wrong in ({"headers": [("\ud800", b"")]}, {"key": "\ud800"}, {"value": "\ud800"}):
            with pytest.raises(errors.SchemaMismatchError, match="surrogates not allowed"):
                producer.send(name, **{"value": b"x", **wrong})
        producer.send(name, b"x", headers=[("é", b"")]).result(10)
    assert values(name) == [b"x"]


def test_producer_counts_headers(new_topic: Callable[..., str]) -> None:
    """Records whose headers are larger than their values form frames that the topic accepts."""
    name = new_topic(config={"max.message.bytes": "64KiB"})
    with Producer(linger_ms=1000) as producer:
        for _ in range(200):
            producer.send(name, b"x", headers=[("h", b"y" * 1000)])
        producer.flush(30)
        with pytest.raises(errors.RecordTooLargeError):
            producer.send(name, b"x", headers=[("h", b"y" * 70_000)])
    assert len(values(name)) == 200


def test_producer_learns_a_smaller_limit_from_the_first_refusal(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: settings can change under a running producer."""
    name = new_topic()
    with Producer(linger_ms=1000) as producer:
        producer.send(name, b"x").result(10)
        admin.alter_config(name, {"max.message.bytes": "16KiB"})

        def errors_of_many() -> set[Exception | None]:
            return {future.exception(10) for future in [producer.send(name, b"x" * 100) for _ in range(500)]}

        wait_until(lambda: errors_of_many() == {None}, "smaller lists are sent", SOON_S)
        with pytest.raises(errors.RecordTooLargeError):
            producer.flush()


def test_producer_knows_a_column_added_after_its_last_refresh(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: the producer refreshes the topic before it refuses a row."""
    name = new_topic(schema="a int")
    with Producer() as producer:
        producer.send(name, {"a": 1}).result(10)
        admin.add_columns(name, "b int")
        producer.send(name, {"a": 2, "b": 2}).result(10)
        with pytest.raises(errors.SchemaMismatchError, match="'c'"):
            producer.send(name, {"c": 1})
    assert read(name).read_all().to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 2}]


def test_columns_can_be_added_while_rows_are_buffered(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: rows from before and after are in separate frames; a row checked in between has nulls."""
    name = new_topic(schema="a int")
    with Producer(linger_ms=60_000) as producer:
        producer.send(name, {"a": 1})
        row_from_before = producer._queues_of(name).rows
        assert row_from_before is not None
        admin.add_columns(name, "b int")
        with pytest.raises(errors.InvalidPartitionsError):
            producer.send(name, {"a": 0}, partition=9)  # refreshes the topic
        producer.send(name, {"a": 2, "b": 2})
        queues = producer._queues_of(name)
        producer._append(queues, queues.partitions[0], row_from_before.row({"a": 3}), None, None, None, 100)
        producer.flush(20)
    assert read(name).read_all().to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 2}, {"a": 3, "b": None}]


def test_producers_write_to_one_topic_concurrently(new_topic: Callable[..., str]) -> None:
    """W6: the records of several producers and threads are all there, once each, each thread's in its order."""
    name = new_topic(1)
    producers = [Producer(linger_ms=1) for _ in range(2)]

    def run(writer: int) -> None:
        for n in range(500):
            producers[writer % 2].send(name, b"%d:%d" % (writer, n))

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for producer in producers:
        producer.close()
    found = [tuple(map(int, value.split(b":"))) for value in values(name)]
    assert len(found) == 2000
    for writer in range(4):
        assert [n for w, n in found if w == writer] == list(range(500))


def test_producer_keeps_nulls_headers_and_timestamps(new_topic: Callable[..., str]) -> None:
    """W2: null keys and values, repeated header names and millisecond timestamps survive, mixed with records that
    have none.
    """
    name = new_topic(1)
    moment = datetime.now(UTC).replace(microsecond=123_000) - timedelta(days=400)
    with Producer() as producer:
        plain = producer.send(name, b"plain")
        dated = producer.send(name, None, key="k", timestamp=moment, headers=[("a", b"1"), ("a", None), ("b", b"")])
        producer.send(name, b"after")
        assert dated.result(10) == RecordMetadata(name, 0, 1, int(moment.timestamp() * 1000))
        now_ms = datetime.now(UTC).timestamp() * 1000
        assert abs(plain.result(10).timestamp - now_ms) < 60_000
    rows = read(name, columns=["key", "value", "timestamp", "headers"]).read_all().to_pylist()
    assert [(r["key"], r["value"]) for r in rows] == [(None, b"plain"), (b"k", None), (None, b"after")]
    assert rows[1]["timestamp"] == moment
    assert [(h["key"], h["value"]) for h in rows[1]["headers"]] == [("a", b"1"), ("a", None), ("b", b"")]
    assert not rows[0]["headers"]


def test_producer_refuses_bad_records_when_they_are_sent(new_topic: Callable[..., str]) -> None:
    """W2: an invalid record is refused by name and affects no other."""
    name = new_topic(1, config={"max.message.bytes": "64KiB"})
    with Producer() as producer:
        with pytest.raises(errors.SchemaMismatchError, match="dict"):
            producer.send(name, {"a": 1})
        with pytest.raises(errors.SchemaMismatchError, match="headers"):
            producer.send(name, b"x", headers=[("a", 1)])  # type: ignore[list-item]
        with pytest.raises(errors.InvalidTimestampError, match="hour"):
            producer.send(name, b"x", timestamp=datetime.now(UTC) + timedelta(hours=2))
        with pytest.raises(errors.InvalidTimestampError, match="time zone"):
            producer.send(name, b"x", timestamp=datetime(2024, 1, 1))
        with pytest.raises(errors.RecordTooLargeError, match=r"max\.message\.bytes"):
            producer.send(name, b"x" * 70_000)
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="no-such-topic"):
            producer.send("no-such-topic", b"x")
        producer.send(name, b"good")
    assert values(name) == [b"good"]


def test_producer_checks_typed_records_by_name(new_topic: Callable[..., str]) -> None:
    """W8: wrong, unknown and missing fields are refused by `send`; the key column chooses the partition."""
    name = new_topic(4, schema="carrier string not null, delay int32, at timestamp", key="carrier")
    with Producer() as producer:
        for row, column in (
            ({"delay": 1}, "carrier"),
            ({"carrier": "UA", "dely": 1}, "delay"),
            ({"carrier": "UA", "delay": "late"}, "delay"),
            ({"carrier": "UA", "delay": 1 << 31}, "delay"),
            ({"carrier": "UA", "at": "noon"}, "at"),
        ):
            with pytest.raises(errors.SchemaMismatchError, match=column):
                producer.send(name, row)
        with pytest.raises(errors.SchemaMismatchError, match="carrier"):
            producer.send(name, {"carrier": "UA"}, key="UA")
        moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
        sent = producer.send(name, {"carrier": "UA", "at": moment}).result(10)
        assert sent.partition == partition_for_key(b"UA", 4)
    assert read(name).read_all().to_pylist() == [{"carrier": "UA", "delay": None, "at": moment}]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_producer_delivers_with_any_acks_and_codec(new_topic: Callable[..., str], acks: str, codec: str) -> None:
    """W9: every record is there, whatever ``acks`` and compression are."""
    name = new_topic(2)
    with Producer(acks=acks, compression_type=codec, batch_size="4KiB") as producer:  # type: ignore[arg-type]
        futures = [producer.send(name, b"%d" % n, key=str(n % 7)) for n in range(2000)]
        producer.flush(20)
        offsets = {f.result().offset for f in futures}
    if acks == "0":
        assert offsets == {-1}
    wait_until(lambda: len(values(name)) == 2000, "all is there", SOON_S)
    assert sorted(map(int, values(name))) == list(range(2000))


def test_producer_calls_back_and_flush_raises_the_first_error(new_topic: Callable[..., str], admin: object) -> None:
    """W9: each record's outcome reaches its callback; flush raises the first error once."""
    name = new_topic(1)
    called_back: list[tuple[RecordMetadata | None, Exception | None]] = []
    with Producer(linger_ms=60_000) as producer:
        producer.send(name, b"1", on_delivery=lambda metadata, error: called_back.append((metadata, error)))
        producer.flush(10)
        assert called_back[0][0] is not None
        assert called_back[0][0].offset == 0
        future = producer.send(name, b"2", on_delivery=lambda metadata, error: called_back.append((metadata, error)))
        admin.delete_topic(name)  # type: ignore[attr-defined]
        with pytest.raises(errors.PylogError) as raised:
            producer.flush(20)
        assert called_back[1] == (None, raised.value)
        assert future.exception(1) is raised.value
        producer.flush(10)


def test_producer_uses_serializers_and_own_partitioners(new_topic: Callable[..., str]) -> None:
    """W8: a callable chooses partitions; serializers make bytes; the sticky partition changes once a frame is full."""
    name = new_topic(3)
    with Producer(
        partitioner=lambda topic, key, count: 2, key_serializer=str.encode, value_serializer=lambda n: b"%d" % n
    ) as producer:
        assert producer.send(name, 5, key="k").result(10).partition == 2
    name = new_topic(3)
    with Producer(partitioner="sticky", linger_ms=1000) as producer:
        first = [producer.send(name, b"x") for _ in range(50)]
        producer.flush(10)
        second = [producer.send(name, b"x") for _ in range(50)]
        producer.flush(10)
    assert len({f.result().partition for f in first}) == len({f.result().partition for f in second}) == 1
    assert first[0].result().partition != second[0].result().partition


def test_producer_refuses_calls_after_close(new_topic: Callable[..., str]) -> None:
    """W9: closing delivers what was sent; afterwards nothing is accepted."""
    name = new_topic(1)
    producer = Producer(linger_ms=60_000)
    producer.send(name, b"last")
    producer.close()
    producer.close()
    assert values(name) == [b"last"]
    with pytest.raises(errors.ClosedError):
        producer.send(name, b"x")
    with pytest.raises(errors.ClosedError):
        producer.send_batch(name, read(name, columns=["value"]).read_all())


def test_producer_continues_with_a_recreated_topic(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: records in no log yet go to the new topic in order, without an error, as with Kafka's producer."""
    name, other = new_topic(1), new_topic(1)
    with Producer() as producer:
        producer.send(name, b"old").result(10)
        admin.delete_topic(name)
        admin.create_topic(name, partitions=2)
        sent = [producer.send(name, b"%d" % n, partition=0) for n in range(500)]
        assert [future.result(20).offset for future in sent] == list(range(500))
        producer.send(other, b"x")
        producer.flush(10)
        assert producer.send(name, b"last", partition=1).result(10).offset == 0
    assert values(name) == [*[b"%d" % n for n in range(500)], b"last"]


def test_producer_sends_buffered_records_when_the_topic_was_recreated(
    new_topic: Callable[..., str], admin: Admin
) -> None:
    """W27: the same holds for records buffered before, and for rows of the same schema."""
    name = new_topic(1, schema="a int")
    with Producer(linger_ms=60_000) as producer:
        producer.send(name, {"a": 0}).result(10)
        held = producer.send(name, {"a": 1})
        admin.delete_topic(name)
        admin.create_topic(name, schema="a int")
        assert held.result(20).offset == 0
        producer.flush(10)
    assert read(name, columns=["a"]).read_all().to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(("before", "after"), [({"schema": "a int"}, {"schema": "a string"}), ({"partitions": 2}, {})])
def test_producer_fails_records_that_do_not_fit_a_recreated_topic(
    new_topic: Callable[..., str], admin: Admin, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """W27: records that do not fit another schema or fewer partitions fail by that name; later ones are sent."""
    name = new_topic(**before)
    first, then = ({"a": 1}, {"a": "x"}) if "schema" in before else (b"1", b"2")
    with Producer(linger_ms=60_000) as producer:
        producer.send(name, first).result(10)
        held = producer.send(name, first)
        admin.delete_topic(name)
        admin.create_topic(name, **after)
        assert isinstance(held.exception(20), errors.InconsistentTopicIdError)
        assert producer.send(name, then).result(10).offset == 0
        with pytest.raises(errors.InconsistentTopicIdError, match="recreated with"):
            producer.flush(10)


class SlowLock:
    """A lock whose holder pauses after acquiring it, as on a busy machine."""

    def __init__(self, lock: threading.Lock) -> None:
        self.acquire = lock.acquire
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        self._lock.release()
        time.sleep(0.001)


def test_batch_is_never_sealed_before_its_first_record(new_topic: Callable[..., str]) -> None:
    """A thread that flushes while another sends never seals an empty batch, whose frame would be refused."""
    name = new_topic()
    with Producer(linger_ms=1000) as producer:
        producer._lock = SlowLock(producer._lock)  # type: ignore[assignment]
        is_done = threading.Event()
        failures: list[errors.PylogError] = []

        def flush() -> None:
            while not is_done.is_set():
                try:
                    producer.flush(30)
                except errors.PylogError as error:
                    failures.append(error)

        flushing = threading.Thread(target=flush)
        flushing.start()
        for n in range(200):
            producer.send(name, b"%d" % n)
        is_done.set()
        flushing.join(60)
    assert failures == []
    assert [int(value) for value in values(name)] == list(range(200))
