"""What `pylog partition elect --election unclean` prints before it asks for confirmation."""

from __future__ import annotations

import uuid

from broker_runtime.contract.model import PartitionDescription, TopicDescription, TopicPartition
from pyspark_log.cli.partition import choices


def topic(name: str, *leaders: int | None, eligible: tuple[int, ...] = ()) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            partition=number, leader=leader, leader_epoch=1, replicas=(1, 2), isr=(1,), lost=(1,), eligible=eligible
        )
        for number, leader in enumerate(leaders)
    )
    return TopicDescription(name=name, topic_id=uuid.UUID(int=1), partitions=partitions, config={})


def test_each_partition_without_a_leader_is_shown_with_the_cost_of_each_choice() -> None:
    printed = choices([topic("t", 2, None), topic("u", None, eligible=(2,))], None)
    assert [text.partition(" ")[0] for text in printed] == ["t:1", "u:0"]
    assert "what it does not have is lost" in printed[0]
    assert "broker 2 has all that was committed" in printed[1]


def test_only_named_partitions_are_shown() -> None:
    printed = choices([topic("t", None, None)], [TopicPartition("t", 1), TopicPartition("t", 7)])
    assert [text.partition(" ")[0] for text in printed] == ["t:1"]
