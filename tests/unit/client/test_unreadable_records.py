"""A value that a producer of another release or language stored, and that no reader accepts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import STAMP_BYTES, encode_frame, parse_header, stamp
from broker_runtime.contract.requests import PartitionInfo, TopicInfo
from broker_runtime.contract.schema import SchemaHistory, TopicSchema, parse_schema
from pyspark_log.client.connection.topics import Topic

TOPIC_ID = bytes(16)
SCHEMA = TopicSchema(schema_id=0, arrow=parse_schema("t time"))


@pytest.mark.parametrize(
    ("nanoseconds", "message"),
    [
        (
            [86_400 * 10**9],
            "Record 7 of times-0 holds a value that no reader accepts (t = 24:00:00). To skip it: seek to 8, or "
            "pylog group reset GROUP -t times:0 --to 8 --execute",
        ),
        (
            [0, -1, 0],
            "Record 8 of times-0 holds a value that no reader accepts (t = -00:00:00.000000001). Nor can records 7 to "
            "9 be read, which were sent with it. To skip them: seek to 10, or pylog group reset GROUP -t times:0 "
            "--to 10 --execute",
        ),
    ],
)
def test_value_that_no_reader_accepts_is_named_with_its_record(nanoseconds: list[int], message: str) -> None:
    """No disk is at fault, so nothing is called damaged, and the message says how to go on."""
    times = pa.array(nanoseconds).view(pa.time64("ns"))
    data = encode_frame(pa.record_batch({"t": times}), SCHEMA, timestamps=5).to_pybytes()
    head = stamp(
        data, base_offset=7, leader_epoch=0, append_time_ms=9, high_watermark=0, topic_id=TOPIC_ID, partition=0
    )
    frame = head + data[STAMP_BYTES:]
    info = TopicInfo(
        name="times",
        topic_id=TOPIC_ID,
        partitions=(PartitionInfo(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)),),
    )
    topic = Topic(info, SchemaHistory([SCHEMA]))
    with pytest.raises(CorruptRecordError) as raised:
        topic.decode(pa.py_buffer(frame), parse_header(frame), 0, None)
    assert raised.value.message == message
