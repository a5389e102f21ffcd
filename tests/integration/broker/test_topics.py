"""Topics through a real broker and a real ZooKeeper."""

import time

import pyarrow as pa
import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.requests import CommittedOffset, OffsetQuery, PartitionKey, RecordDeletion

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])


def offsets(broker, topic, *timestamps, partition=0):
    at = PartitionKey(topic=topic, partition=partition)
    answers = broker.call(
        "list_offsets", queries=tuple(OffsetQuery(at=at, timestamp=timestamp) for timestamp in timestamps)
    ).answers
    assert all(answer.error is None for answer in answers)
    return [answer.offset for answer in answers]


def commit(broker, group, topic, committed, **fields):
    return broker.call(
        "commit_offsets",
        group_id=group,
        offsets=tuple(
            CommittedOffset(at=PartitionKey(topic=topic, partition=partition), offset=offset)
            for partition, offset in committed.items()
        ),
        **fields,
    ).errors


def committed(broker, group):
    found = broker.call("fetch_offsets", group_id=group).offsets
    return {(offset.at.topic, offset.at.partition): offset.offset for offset in found}


def test_topic_lives_from_its_creation_to_its_deletion_over_restarts(broker):
    """W1–W5, W25, W27, S5's store: a topic is created, described, written, altered, extended, trimmed, committed,
    restarted and deleted.
    """
    created = broker.call("create_topic", name="t", partitions=2, config={"retention.ms": "1d"}).topic
    assert [(p.leader, p.leader_epoch, p.replicas, p.isr) for p in created.partitions] == [(1, 0, (1,), (1,))] * 2
    before_ms = int(time.time() * 1000)
    broker.produce("t", [b"a", b"b", b"c"])
    assert broker.consume("t") == [b"a", b"b", b"c"]
    assert offsets(broker, "t", -2, -1, before_ms - 60_000, before_ms + 60_000_000, -3) == [0, 3, 0, -1, 0]
    with_offsets = broker.topic("t", with_offsets=True)
    assert [(p.log_start, p.high_watermark) for p in with_offsets.partitions] == [(0, 3), (0, 0)]

    broker.call("create_partitions", name="t", total=3)
    broker.produce("t", [b"d"], partition=2)
    assert broker.consume("t", 2) == [b"d"]

    broker.call("alter_config", topic="t", changes={"retention.ms": None, "segment.bytes": "1MiB"})
    entries = broker.call("describe_config", topic="t").entries
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("7d", "default")
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("1MiB", "topic")

    deletion = RecordDeletion(at=PartitionKey(topic="t", partition=0), offset=2)
    assert broker.call("delete_records", deletions=(deletion,)).answers[0].offset == 2
    assert broker.consume("t") == [b"c"]

    assert commit(broker, "g", "t", {0: 3, 2: 1}) == (None, None)
    assert committed(broker, "g") == {("t", 0): 3, ("t", 2): 1}
    sizes = broker.call("describe_log_dirs").log_dirs[0].partitions
    assert set(sizes) == {"t-0", "t-1", "t-2"}
    assert sizes["t-0"] > sizes["t-1"] == 0

    for stop in (broker.stop, broker.kill):
        stop()
        broker.start()
        topic = broker.topic("t")
        assert topic.topic_id == created.topic_id
        assert topic.config == {"segment.bytes": "1MiB"}
        assert broker.consume("t") == [b"c"]
        assert offsets(broker, "t", -2, -1) == [2, 3]
        assert committed(broker, "g") == {("t", 0): 3, ("t", 2): 1}
    assert {p.leader_epoch for p in broker.topic("t").partitions} == {2}
    broker.produce("t", [b"e"])
    assert broker.consume("t") == [b"c", b"e"]

    broker.call("delete_topic", name="t")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        broker.call("delete_topic", name="t")
    assert committed(broker, "g") == {}
    assert not list((broker.directory / "log").glob("t-*"))
    recreated = broker.call("create_topic", name="t").topic
    assert recreated.topic_id != created.topic_id
    assert broker.consume("t") == []
    assert committed(broker, "g") == {}


def test_topic_with_a_schema_gets_columns_that_survive_a_restart(broker):
    """S7: a topic with a schema can gain nullable columns."""
    broker.call("create_topic", name="f", schema=FLIGHTS.serialize().to_pybytes(), key="carrier")
    more = pa.schema([("tail", pa.string())]).serialize().to_pybytes()
    assert broker.call("add_columns", name="f", schema=more).schema_id == 1
    broker.kill()
    broker.start()
    topic = broker.topic("f")
    assert (topic.key, [version.schema_id for version in topic.schemas]) == ("carrier", [0, 1])
    assert pa.ipc.read_schema(pa.py_buffer(topic.schemas[1].arrow)).names == ["carrier", "delay", "tail"]


@pytest.mark.parametrize(
    ("action", "fields", "error"),
    [
        ("create_topic", {"name": "there"}, errors.TopicAlreadyExistsError),
        ("create_topic", {"name": "a b"}, errors.InvalidTopicError),
        ("create_topic", {"name": "n", "partitions": 0}, errors.InvalidPartitionsError),
        ("create_topic", {"name": "n", "replication_factor": 2}, errors.InvalidReplicationFactorError),
        ("create_topic", {"name": "n", "replica_assignment": ((7,),)}, errors.InvalidReplicaAssignmentError),
        ("create_topic", {"name": "n", "config": {"flush.modes": "os"}}, errors.InvalidConfigError),
        ("create_topic", {"name": "n", "schema": b"x"}, errors.InvalidSchemaError),
        ("delete_topic", {"name": "none"}, errors.UnknownTopicOrPartitionError),
        ("create_partitions", {"name": "there", "total": 1}, errors.InvalidPartitionsError),
        ("create_partitions", {"name": "none", "total": 2}, errors.UnknownTopicOrPartitionError),
        ("add_columns", {"name": "there", "schema": FLIGHTS.serialize().to_pybytes()}, errors.InvalidSchemaError),
        ("alter_config", {"topic": "there", "changes": {"acks": "1"}}, errors.InvalidConfigError),
        ("describe_config", {}, errors.InvalidRequestError),
        ("describe_config", {"topic": "none"}, errors.UnknownTopicOrPartitionError),
        ("describe_config", {"broker_id": 9}, errors.InvalidRequestError),
        ("commit_offsets", {"group_id": "a/b", "offsets": ()}, errors.InvalidGroupIdError),
        ("commit_offsets", {"group_id": "g", "offsets": (), "member_id": "m"}, errors.UnknownMemberIdError),
    ],
)
def test_impossible_requests_are_typed_errors(refusing_broker, action, fields, error):
    with pytest.raises(error):
        refusing_broker.call(action, **fields)
    assert [topic.name for topic in refusing_broker.call("metadata").topics] == ["there"]


@pytest.fixture(scope="module")
def refusing_broker(tmp_path_factory, zookeeper_server):
    from tests.integration.broker.running_broker import RunningBroker

    broker = RunningBroker(tmp_path_factory.mktemp("refusing"), f"{zookeeper_server.connect_string}/refusing").start()
    broker.call("create_topic", name="there")
    yield broker
    broker.close()


def test_topic_that_is_only_validated_is_not_created(refusing_broker):
    planned = refusing_broker.call("create_topic", name="planned", partitions=3, validate_only=True).topic
    assert [partition.leader for partition in planned.partitions] == [None] * 3
    assert [topic.name for topic in refusing_broker.call("metadata").topics] == ["there"]


def test_offsets_of_unknown_partitions_are_refused_one_by_one(refusing_broker):
    there = refusing_broker.topic("there").topic_id
    entries = (
        CommittedOffset(at=PartitionKey(topic="there", partition=0, topic_id=there), offset=1),
        CommittedOffset(at=PartitionKey(topic="none", partition=0), offset=1),
        CommittedOffset(at=PartitionKey(topic="there", partition=9), offset=1),
        CommittedOffset(at=PartitionKey(topic="there", partition=0, topic_id=bytes(16)), offset=1),
    )
    found = refusing_broker.call("commit_offsets", group_id="g", offsets=entries).errors
    assert [error and error.code for error in found] == [
        None,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INCONSISTENT_TOPIC_ID",
    ]
    assert committed(refusing_broker, "g") == {("there", 0): 1}
    assert commit(refusing_broker, "g", "there", {0: 0}, only_forward=True) == (None,)
    assert committed(refusing_broker, "g") == {("there", 0): 1}


def test_log_offsets_of_unknown_partitions_are_refused_one_by_one(refusing_broker):
    queries = (
        OffsetQuery(at=PartitionKey(topic="there", partition=0), timestamp=-1),
        OffsetQuery(at=PartitionKey(topic="there", partition=1), timestamp=-1),
        OffsetQuery(at=PartitionKey(topic="there", partition=0), timestamp=-9),
        OffsetQuery(at=PartitionKey(topic="there", partition=0), timestamp=-1, leader_epoch=7),
    )
    answers = refusing_broker.call("list_offsets", queries=queries).answers
    assert [answer.error and answer.error.code for answer in answers] == [
        None,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REQUEST",
        "UNKNOWN_LEADER_EPOCH",
    ]


def test_broker_that_forbids_deletion_keeps_the_topic(new_broker):
    broker = new_broker(**{"delete.topic.enable": False}).start()
    broker.call("create_topic", name="t")
    with pytest.raises(errors.PolicyViolationError, match=r"delete\.topic\.enable=false"):
        broker.call("delete_topic", name="t")
    assert broker.topic("t").name == "t"


def test_partitions_are_spread_over_the_data_directories(new_broker, tmp_path):
    broker = new_broker(**{"log.dirs": [str(tmp_path / "disk1"), str(tmp_path / "disk2")]}).start()
    broker.call("create_topic", name="t", partitions=4)
    broker.kill()
    broker.start()
    broker.produce("t", [b"x"], partition=3)
    assert broker.consume("t", 3) == [b"x"]
    held = [set(found.partitions) for found in broker.call("describe_log_dirs").log_dirs]
    assert [len(partitions) for partitions in held] == [2, 2]
    assert held[0] | held[1] == {"t-0", "t-1", "t-2", "t-3"}


def test_directory_without_room_takes_no_appends_and_can_still_be_read(new_broker):
    broker = new_broker().start()
    broker.call("create_topic", name="t")
    broker.produce("t", [b"x"])
    broker.stop()
    broker.settings["log.dir.min.free.bytes"] = "1000TiB"
    broker.start()
    with pytest.raises(errors.LogStorageError, match=r"log\.dir\.min\.free\.bytes is 1000TiB"):
        broker.produce("t", [b"y"])
    assert broker.consume("t") == [b"x"]
