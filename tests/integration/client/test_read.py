"""`read`: a bounded range of a real topic as Arrow batches."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_log import Admin, Producer, TopicPartition, errors, read
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.reading import range_reader
from pyspark_log.client.reading.frame_stream import FrameStream


def fill(topic: str, count: int, **options: object) -> None:
    with Producer(batch_size=2000) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, **options)  # type: ignore[arg-type]


def numbers(reader: pa.RecordBatchReader) -> list[int]:
    return [int(v) for v in reader.read_all()["value"].to_pylist()]


def test_read_gives_kafkas_columns_of_a_topic_without_schema(new_topic: Callable[..., str]) -> None:
    """S7: key, value, topic, partition, offset, timestamp, timestampType, with Spark's types."""
    name = new_topic(2)
    fill(name, 100)
    table = read(name).read_all()
    assert table.schema == pa.schema(
        {
            "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(),
            "offset": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC"), "timestampType": pa.int32(),
        }
    )  # fmt: skip
    assert table["partition"].to_pylist() == [0] * 50 + [1] * 50
    assert table["offset"].to_pylist() == [*range(50), *range(50)]
    assert set(table["topic"].to_pylist()) == {name}
    assert sorted(map(int, table["value"].to_pylist())) == list(range(100))


def test_read_gives_columns_and_metadata_of_a_typed_topic(new_topic: Callable[..., str]) -> None:
    """S7: the topic's own columns; ``metadata=True`` adds the struct ``_metadata``."""
    name = new_topic(1, schema="a int32, b string")
    with Producer() as producer:
        producer.send(name, {"a": 1, "b": "x"}, headers=[("h", b"1")], timestamp=1_600_000_000_000)
    assert read(name).read_all().to_pylist() == [{"a": 1, "b": "x"}]
    row = read(name, columns=["b"], metadata=True).read_all().to_pylist()[0]
    assert row["b"] == "x"
    assert {k: row["_metadata"][k] for k in ("topic", "partition", "offset", "timestampType")} == {
        "topic": name, "partition": 0, "offset": 0, "timestampType": 0,
    }  # fmt: skip
    assert row["_metadata"]["timestamp"] == datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
    assert row["_metadata"]["headers"] == [{"key": "h", "value": b"1"}]


def test_read_takes_ranges_by_offset_and_time(new_topic: Callable[..., str], admin: Admin) -> None:
    """W20: any range of offsets can be read, within frames too, and from a time on."""
    name = new_topic(1)
    fill(name, 200)
    assert numbers(read(name)) == list(range(200))
    assert numbers(read(name, start=57, end=143)) == list(range(57, 143))
    assert numbers(read(name, start={0: 199})) == [199]
    assert numbers(read(name, start=5, end=5)) == []
    assert numbers(read(name, start="latest")) == []
    assert numbers(read(name, start=datetime.now(UTC) - timedelta(days=1))) == list(range(200))
    assert numbers(read(name, start=datetime.now(UTC) + timedelta(minutes=5))) == []
    admin.delete_records({TopicPartition(name, 0): 150})
    assert numbers(read(name)) == list(range(150, 200))
    with pytest.raises(errors.OffsetOutOfRangeError, match="150 to 200"):
        read(name, start=3)


def test_read_refuses_wrong_arguments_at_once(new_topic: Callable[..., str]) -> None:
    """S8: unknown topics, partitions and columns are refused by name, and predicates that do not fit."""
    name = new_topic(1)
    for call, error in (
        (lambda: read("no-such-topic"), errors.UnknownTopicOrPartitionError),
        (lambda: read(name, partitions=[3]), errors.UnknownTopicOrPartitionError),
        (lambda: read(name, columns=["valu"]), errors.SchemaMismatchError),
        (lambda: read(name, start="begin"), errors.InvalidRequestError),
        (lambda: read(name, where="a > 1"), errors.InvalidPredicateError),
    ):
        with pytest.raises(error):
            call()


def test_read_gives_only_rows_that_match(new_topic: Callable[..., str]) -> None:
    """S8: by columns that nobody asked for, and by offsets."""
    name = new_topic(2)
    fill(name, 100)
    table = read(
        name, columns=["partition"], where="offset >= 7 AND value IS NOT NULL AND _metadata.offset < 9"
    ).read_all()
    assert table.column_names == ["partition"]
    assert sorted(table["partition"].to_pylist()) == [0, 0, 1, 1]
    assert read(name, where="_metadata.partition = 5").read_all().num_rows == 0


def test_read_range_continues_where_a_broken_stream_ended(
    new_topic: Callable[..., str], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W19: streams that end early again and again lose and repeat nothing."""
    name = new_topic(1)
    fill(name, 3000)
    opened = []
    real_read = FrameStream.read

    def read_twice_then_end(self: FrameStream) -> object:
        opened.append(self)
        return None if opened.count(self) > 2 else real_read(self)

    monkeypatch.setattr(FrameStream, "read", read_twice_then_end)
    monkeypatch.setattr(range_reader, "_MESSAGE_BYTES", 4096)
    cluster = Cluster.at(bootstrap)
    frames = list(range_reader.read_range(cluster, cluster.topic(name), 0, 0, 3000))
    cluster.close()
    assert len(set(map(id, opened))) > 3
    assert [f.header.base_offset for f in frames[1:]] == [f.header.next_offset for f in frames[:-1]]
    assert (frames[0].header.base_offset, frames[-1].header.next_offset) == (0, 3000)


def test_read_range_fails_when_the_log_ends_before_the_range(new_topic: Callable[..., str], bootstrap: str) -> None:
    """S2: missing records of a requested range are an error."""
    name = new_topic(1)
    fill(name, 10)
    cluster = Cluster.at(bootstrap)
    with pytest.raises((errors.DataLossError, errors.OffsetOutOfRangeError)):
        list(range_reader.read_range(cluster, cluster.topic(name), 0, 0, 20))
    cluster.close()
