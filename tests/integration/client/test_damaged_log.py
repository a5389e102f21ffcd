"""Readers of a log with a flipped bit learn where it is and never get the damaged rows."""

from pathlib import Path

import pytest

from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors, read
from pyspark_log.testing import LocalCluster


def flip_a_bit_in_the_middle(segment: Path) -> None:
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def test_reader_of_a_damaged_frame_learns_its_position(pylog_cluster: LocalCluster, bootstrap: str) -> None:
    """Damage is reported and never served; other partitions and later records can be read."""
    at = TopicPartition("damaged", 0)
    with Admin() as admin:
        admin.create_topic("damaged", partitions=2)
    with Producer() as producer:
        for partition in (0, 1):
            for number in range(3):
                producer.send("damaged", b"%d" % number * 100, partition=partition).result(30)
    flip_a_bit_in_the_middle(pylog_cluster.log_dirs(1)[0] / "damaged-0" / f"{0:020}.log")

    with pytest.raises(errors.CorruptRecordError, match="damaged-0 is damaged at offset 1 to 1"):
        read("damaged", partitions=[0]).read_all()
    assert read("damaged", partitions=[1]).read_all().num_rows == 3
    with Consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([at])
        consumer.seek(at, 1)
        with pytest.raises(errors.CorruptRecordError, match="damaged-0 is damaged at offset 1 to 1"):
            consumer.poll(20)
        consumer.seek(at, 2)
        assert [record.offset for record in consumer.poll(20)] == [2]
