"""Source offsets as JSON, and where queries start and end (KafkaSourceOffsetSuite, JsonUtilsSuite)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from pyspark_log.spark.offsets import (
    Position,
    SpecificOffsets,
    expand_limit,
    offset_from_json,
    offset_to_json,
    parse_assignment,
    parse_offset_limit,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_offset_is_written_as_kafkas_source_writes_it() -> None:
    """S3: the checkpoint has ``{"topic": {"0": 12}}``."""
    assert json.dumps(offset_to_json({TopicPartition("topic", 0): 12})) == '{"topic": {"0": 12}}'


def test_offset_json_is_sorted_by_topic_and_by_number() -> None:
    """S3: Spark compares texts, so equal offsets have one text, and partition 10 comes after 9."""
    partitions = [TopicPartition("b", 10), TopicPartition("b", 9), TopicPartition("a", 0)]
    text = json.dumps(offset_to_json(dict.fromkeys(partitions, 1)))
    assert text == '{"a": {"0": 1}, "b": {"9": 1, "10": 1}}'


@settings(deadline=None)
@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text("abc._-", min_size=1, max_size=5), st.integers(0, 99_999)),
        st.integers(0, 2**63 - 1),
        max_size=20,
    )
)
def test_offset_survives_serialization_and_deserialization(offset: dict[TopicPartition, int]) -> None:
    """KafkaSourceOffsetSuite: basic serialization - deserialization."""
    assert offset_from_json(json.loads(json.dumps(offset_to_json(offset)))) == offset


@pytest.mark.parametrize("tree", [7, "x", {"t": 1}, {"t": {"x": 1}}, {"t": {"0": -1}}, {"t": {"0": "1"}}, ["t"]])
def test_offset_of_another_source_is_refused(tree: object) -> None:
    """A checkpoint of another source is a clear error."""
    with pytest.raises(OptionError, match="another source"):
        offset_from_json(tree)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("earliest", Position.EARLIEST),
        (" Latest ", Position.LATEST),
        ("COMMITTED", Position.COMMITTED),
        ('{"a":{"0":23,"1":-1}}', SpecificOffsets(partitions={A0: 23, A1: -1}, topics={})),
        ('{"a":"earliest","b":{"0":5}}', SpecificOffsets(partitions={B0: 5}, topics={"a": EARLIEST})),
    ],
)
def test_offset_limit_is_a_word_or_json(text: str, limit: object) -> None:
    """S4: startingOffsets and endingOffsets are trimmed and case-insensitive; the form per topic works as well."""
    assert parse_offset_limit("startingOffsets", text) == limit


@pytest.mark.parametrize(
    "text",
    ["", "newest", "{", "[]", '{"t":{"0":-3}}', '{"t":{"a":1}}', '{"t":{"0":1.5}}', '{"t":{"0":true}}', '{"t":5}',
     '{"t":{"0":1},"t":{"0":2}}', '{"t":{"0":99999999999999999999}}', "{" * 100_000],
)  # fmt: skip
def test_invalid_offset_limit_is_refused_with_an_example(text: str) -> None:
    """KafkaSourceSuite "bad source options": the message shows what is expected."""
    with pytest.raises(OptionError, match=r"Expected e\.g\."):
        parse_offset_limit("startingOffsets", text)


def test_limit_expands_to_each_assigned_partition() -> None:
    """S4: words, committed offsets and offsets per topic all become one number per partition."""
    assigned = [B0, A1, A0]
    assert expand_limit("startingOffsets", Position.LATEST, assigned, {}) == dict.fromkeys(assigned, LATEST)
    assert expand_limit("startingOffsets", Position.COMMITTED, assigned, {A1: 4}) == {A0: EARLIEST, A1: 4, B0: EARLIEST}
    limit = parse_offset_limit("startingOffsets", '{"a":"latest","b":{"0":5}}')
    assert expand_limit("startingOffsets", limit, assigned, {}) == {A0: LATEST, A1: LATEST, B0: 5}


@pytest.mark.parametrize("text", ['{"a":{"0":1}}', '{"a":{"0":1,"1":1,"2":1},"b":{"0":1}}', '{"a":"earliest"}'])
def test_specific_offsets_must_name_exactly_the_assigned_partitions(text: str) -> None:
    """S4: KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED lists the specified and the assigned partitions."""
    limit = parse_offset_limit("startingOffsets", text)
    with pytest.raises(OptionError, match="you must specify all TopicPartitions") as caught:
        expand_limit("startingOffsets", limit, [A0, A1, B0], {})
    assert "Assigned: a-0, a-1, b-0" in str(caught.value)


def test_assignment_is_read_sorted_and_once() -> None:
    """S4: assign."""
    assert parse_assignment('{"b":[0],"a":[1,0,1]}') == (A0, A1, B0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "No topicpartitions to assign as specified value for option 'assign' is ''"),
        ("a,b", "No topicpartitions to assign"),
        ("{}", "No topicpartitions to assign"),
        ('{"a":[]}', "No topicpartitions to assign"),
        ('{"a":0}', 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"a":0}'),
        ('{"a":[-1]}', "Expected e.g."),
        ("{a}", "Expected e.g."),
    ],
)
def test_invalid_assignment_is_refused(text: str, says: str) -> None:
    """KafkaSourceSuite "bad source options"."""
    with pytest.raises(OptionError) as caught:
        parse_assignment(text)
    assert says in str(caught.value)
