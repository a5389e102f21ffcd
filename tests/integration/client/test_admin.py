"""Topics, settings and offsets through `Admin`, on a real broker."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pyspark_log import Admin, Producer, TopicPartition, errors, read


def test_admin_creates_describes_and_deletes_a_topic(admin: Admin) -> None:
    """W1, W27: a topic has one partition by default, and can be described and deleted."""
    made = admin.create_topic("admin-one")
    assert (made.name, len(made.partitions), made.schema, made.key) == ("admin-one", 1, None, None)
    assert (made.partitions[0].log_start, made.partitions[0].high_watermark) == (0, 0)
    assert "admin-one" in admin.list_topics()
    described = admin.describe_topic("admin-one")
    assert described.topic_id == made.topic_id
    assert described.partitions[0].leader == 1
    assert (described.partitions[0].log_start, described.partitions[0].high_watermark) == (0, 0)
    admin.delete_topic("admin-one")
    with pytest.raises(errors.UnknownTopicOrPartitionError, match="admin-one"):
        admin.describe_topic("admin-one")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topic("admin-one")
    admin.delete_topic("admin-one", missing_ok=True)


def test_admin_create_topic_refuses_an_existing_topic_unless_allowed(
    new_topic: Callable[..., str], admin: Admin
) -> None:
    """W27: an existing topic is never replaced by accident, and validate_only creates nothing."""
    name = new_topic(3)
    with pytest.raises(errors.TopicAlreadyExistsError, match=name):
        admin.create_topic(name)
    assert len(admin.create_topic(name, exist_ok=True).partitions) == 3
    admin.create_topic("admin-not-made", partitions=2, validate_only=True)
    assert "admin-not-made" not in admin.list_topics()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"name": "a/b"}, errors.InvalidTopicError),
        ({"partitions": 0}, errors.InvalidPartitionsError),
        ({"schema": "a strin"}, errors.InvalidSchemaError),
        ({"schema": "a int", "key": "b"}, errors.InvalidSchemaError),
        ({"key": "b"}, errors.InvalidSchemaError),
        ({"config": {"retention.m": "7d"}}, errors.InvalidConfigError),
        ({"config": {"retention.ms": "soon"}}, errors.InvalidConfigError),
        ({"replication_factor": 3}, errors.InvalidReplicationFactorError),
    ],
)
def test_admin_create_topic_refuses_wrong_arguments_by_name(admin: Admin, wrong: dict, error: type[Exception]) -> None:
    """W27: each wrong argument has its own error."""
    with pytest.raises(error):
        admin.create_topic(**{"name": "admin-wrong", **wrong})
    assert "admin-wrong" not in admin.list_topics()


def test_admin_keeps_a_typed_topics_schema_and_adds_columns(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: a schema is kept as given; nullable columns can be added and are null in older records."""
    name = new_topic(schema="carrier string not null, delay int32", key="carrier")
    with Producer() as producer:
        producer.send(name, {"carrier": "UA", "delay": 1})
    assert admin.add_columns(name, "dest string, miles decimal(6,1)") == 1
    described = admin.describe_topic(name)
    assert described.schema is not None
    assert described.schema.names == ["carrier", "delay", "dest", "miles"]
    assert described.key == "carrier"
    with Producer() as producer:
        producer.send(name, {"carrier": "AA", "dest": "JFK"})
    assert read(name, columns=["carrier", "dest"]).read_all().to_pylist() == [
        {"carrier": "UA", "dest": None},
        {"carrier": "AA", "dest": "JFK"},
    ]
    with pytest.raises(errors.InvalidSchemaError, match="nulls"):
        admin.add_columns(name, pa.schema([pa.field("must", pa.int32(), nullable=False)]))


def test_admin_alters_and_describes_settings(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: a setting can be changed and reset; wrong settings are refused."""
    name = new_topic(config={"retention.ms": "7d"})
    admin.alter_config(name, {"segment.bytes": "64MiB", "retention.ms": None})
    described = admin.describe_config(name)
    assert described["segment.bytes"].source == "topic"
    assert described["retention.ms"].source == "default"
    with pytest.raises(errors.InvalidConfigError, match="segment"):
        admin.alter_config(name, {"segment.byte": "64MiB"})
    assert admin.describe_config(1)["num.partitions"].value == "1"


def test_admin_adds_partitions_only(new_topic: Callable[..., str], admin: Admin) -> None:
    """W27: partitions can be added, never removed."""
    name = new_topic(2)
    admin.create_partitions(name, 5)
    assert len(admin.describe_topic(name).partitions) == 5
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions(name, 3)


def test_admin_lists_offsets_by_position_and_time(new_topic: Callable[..., str], admin: Admin) -> None:
    """W20: offsets are listed for earliest, latest, the largest timestamp, and the first record at or after a time."""
    name = new_topic()
    at = TopicPartition(name, 0)
    moment = datetime.now(UTC) - timedelta(hours=3)
    with Producer() as producer:
        for minute in range(5):
            producer.send(name, b"x", timestamp=moment + timedelta(minutes=minute))
            producer.flush()
    assert admin.list_offsets({at: "earliest"})[at].offset == 0
    assert admin.list_offsets({at: "latest"})[at].offset == 5
    assert admin.list_offsets({at: "max_timestamp"})[at].offset == 4
    found = admin.list_offsets({at: moment + timedelta(minutes=1, seconds=30)})[at]
    assert (found.offset, found.timestamp) == (2, int((moment + timedelta(minutes=2)).timestamp() * 1000))
    assert admin.list_offsets({at: datetime.now(UTC)})[at].offset == -1
    with pytest.raises(errors.InvalidTimestampError, match="time zone"):
        admin.list_offsets({at: datetime(2024, 1, 1)})
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.list_offsets({TopicPartition(name, 7): "latest"})


def test_admin_deletes_records_up_to_an_offset(new_topic: Callable[..., str], admin: Admin) -> None:
    """W5, W27: records below the offset are gone and the others stay; an offset beyond the end is refused."""
    name = new_topic()
    at = TopicPartition(name, 0)
    with Producer() as producer:
        for n in range(5):
            producer.send(name, b"%d" % n)
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({at: 6})
    assert admin.delete_records({at: 3}) == {at: 3}
    assert read(name).read_all()["value"].to_pylist() == [b"3", b"4"]
    assert admin.delete_records({at: -1}) == {at: 5}


def test_admin_describes_the_cluster(admin: Admin, bootstrap: str) -> None:
    """W25: the description has the brokers, their addresses, their data directories and the controller."""
    cluster = admin.describe_cluster()
    assert cluster.controller_id == 1
    assert cluster.brokers[1].address == bootstrap
    assert admin.describe_log_dirs()[1][0].total_bytes > 0


def test_admin_shows_and_alters_a_groups_offsets(
    new_topic: Callable[..., str], new_group: Callable[[], str], admin: Admin
) -> None:
    """W18, W27: a group's committed offset, end and lag are shown; an unknown group has none."""
    name, group = new_topic(2), new_group()
    assert admin.list_group_offsets(group) == {}
    with Producer() as producer:
        for n in range(6):
            producer.send(name, b"%d" % n)
    admin.alter_group_offsets(group, {TopicPartition(name, 0): 1})
    assert admin.list_group_offsets(group) == {TopicPartition(name, 0): (1, 3, 2)}
