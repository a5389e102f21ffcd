"""The outcome of requests to create and change topics, and why they are refused."""

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidSchemaError,
    InvalidTopicError,
)
from broker_runtime.contract.requests import AlterConfigRequest, CreateTopicRequest
from broker_runtime.contract.schema import schema_from_bytes
from broker_runtime.controller.assignment import loads
from broker_runtime.controller.topic_plans import (
    MAX_RECORD_BYTES,
    plan_columns,
    plan_config,
    plan_partitions,
    plan_topic,
)
from broker_runtime.zookeeper.znodes import to_json

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32()), ("ratio", pa.float64())])


def plan(*, brokers=(1,), default_partitions=1, default_replication_factor=1, **request):
    return plan_topic(
        CreateTopicRequest(**{"name": "flights", **request}),
        topic_id=bytes(16),
        brokers=loads(brokers, []),
        default_partitions=default_partitions,
        default_replication_factor=default_replication_factor,
        now_ms=5,
    )


def test_topic_has_one_partition_by_default():
    """W1."""
    assert plan().record.assignment == ((1,),)
    assert plan().record.schemas == ()


def test_defaults_are_the_brokers():
    assert plan(brokers=(1, 2), default_partitions=2, default_replication_factor=2).record.assignment == (
        (1, 2),
        (2, 1),
    )


def test_schema_is_kept_in_normal_form_with_its_key():
    schema = pa.schema([pa.field("carrier", pa.large_string()), pa.field("delay", pa.int32())])
    record = plan(schema=schema.serialize().to_pybytes(), key="carrier").record
    assert record.schemas[0].schema_id == 0
    assert schema_from_bytes(record.schemas[0].arrow).field("carrier").type == pa.string()
    assert record.key == "carrier"


@pytest.mark.parametrize(
    ("request_fields", "error", "problem"),
    [
        ({"name": "a/b"}, InvalidTopicError, "'a/b' cannot name a topic"),
        ({"name": ".."}, InvalidTopicError, "cannot name"),
        ({"name": "x" * 250}, InvalidTopicError, "1 to 249"),
        ({"partitions": 0}, InvalidPartitionsError, "0 partitions: allowed is 1 to 10000"),
        ({"partitions": 10_001}, InvalidPartitionsError, "10001 partitions"),
        ({"replication_factor": 2}, InvalidReplicationFactorError, "allowed is 1 to 1"),
        ({"replica_assignment": ((2,),)}, InvalidReplicaAssignmentError, "not live"),
        ({"replica_assignment": ((1,),), "partitions": 2}, InvalidRequestError, "partitions=2"),
        ({"replica_assignment": ((1,),), "replication_factor": 3}, InvalidRequestError, "replication_factor=3"),
        ({"config": {"retention.msx": "1"}}, InvalidConfigError, "did you mean 'retention.ms'"),
        ({"config": {"retention.ms": "soon"}}, InvalidConfigError, "retention.ms='soon'"),
        ({"config": {"segment.bytes": "1MiB", "max.message.bytes": "2MiB"}}, InvalidConfigError, "fit in a segment"),
        ({"schema": b"junk"}, InvalidSchemaError, "not an Arrow schema"),
        ({"key": "carrier"}, InvalidSchemaError, "needs a schema"),
        ({"schema": FLIGHTS.serialize().to_pybytes(), "key": "tail"}, InvalidSchemaError, "'tail' is not one of"),
        ({"schema": FLIGHTS.serialize().to_pybytes(), "key": "ratio"}, InvalidSchemaError, "string, binary or integer"),
    ],
)
def test_invalid_topic_is_refused_by_name(request_fields, error, problem):
    with pytest.raises(error, match=problem):
        plan(**request_fields)


def test_names_that_differ_by_dots_and_underscores_are_accepted():
    assert plan(name="a.b_c").name == "a.b_c"


def test_ten_thousand_partitions_fit_in_one_znode():
    record = plan(brokers=range(1001, 1004), partitions=10_000, replication_factor=3).record
    assert len(to_json(record)) < MAX_RECORD_BYTES


def test_partitions_are_only_added():
    record = plan(brokers=(1, 2), partitions=2).record
    more = plan_partitions("t", record, 4, loads((1, 2), [record.assignment]))
    assert more.assignment[:2] == record.assignment
    assert len(more.assignment) == 4
    for total in (2, 1, 0, -1, 10_001):
        with pytest.raises(InvalidPartitionsError, match="allowed is 3 to 10000"):
            plan_partitions("t", record, total, loads((1, 2), []))


def test_columns_are_added_as_a_new_version():
    record = plan(schema=FLIGHTS.serialize().to_pybytes(), key="carrier").record
    added = plan_columns("t", record, pa.schema([("tail", pa.string())]).serialize().to_pybytes())
    assert [version.schema_id for version in added.schemas] == [0, 1]
    assert schema_from_bytes(added.schemas[1].arrow).names == ["carrier", "delay", "ratio", "tail"]
    assert added.schemas[0] == record.schemas[0]
    assert (added.key, added.topic_id) == (record.key, record.topic_id)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (pa.schema([pa.field("tail", pa.string(), nullable=False)]), "must allow nulls"),
        (pa.schema([("delay", pa.int64())]), "delay"),
        (pa.schema([]), "no columns"),
    ],
)
def test_invalid_columns_are_refused(columns, problem):
    record = plan(schema=FLIGHTS.serialize().to_pybytes()).record
    with pytest.raises(InvalidSchemaError, match=problem):
        plan_columns("t", record, columns.serialize().to_pybytes())


def test_columns_of_a_topic_without_a_schema_are_refused():
    with pytest.raises(InvalidSchemaError, match="t has no schema"):
        plan_columns("t", plan().record, FLIGHTS.serialize().to_pybytes())


def test_schema_that_outgrows_the_znode_is_refused():
    wide = pa.schema([(f"column_{number:04}_{'x' * 50}", pa.string()) for number in range(1_900)])
    record = plan(schema=wide.serialize().to_pybytes()).record
    one_more = pa.schema([("more", pa.string())]).serialize().to_pybytes()
    with pytest.raises(InvalidRequestError, match=f"allowed: {MAX_RECORD_BYTES}"):
        plan_columns("t", record, one_more)


def test_config_is_set_kept_and_reset():
    present = {"retention.ms": "1d", "flush.mode": "os"}
    changes = {"retention.ms": None, "segment.bytes": "1MiB", "flush.ms": None}
    assert plan_config(present, AlterConfigRequest(topic="t", changes=changes)) == {
        "flush.mode": "os",
        "segment.bytes": "1MiB",
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"acks": "all"}, "'acks' is not a topic setting"),
        ({"retention": None}, "'retention' is not a topic setting"),
        ({"max.message.bytes": "2MiB"}, "more than segment.bytes"),
    ],
)
def test_invalid_config_is_refused_as_a_whole(changes, problem):
    with pytest.raises(InvalidConfigError, match=problem):
        plan_config({"segment.bytes": "1MiB"}, AlterConfigRequest(topic="t", changes=changes))
