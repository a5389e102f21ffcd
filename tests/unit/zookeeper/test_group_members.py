"""A group's members as bytes: readable while they are few, compressed when they are many."""

import os
import zlib

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.zookeeper.session import MAX_REQUEST_BYTES
from broker_runtime.zookeeper.znodes import (
    GroupMembers,
    GroupOffsets,
    HeldPartitions,
    MemberRecord,
    from_json,
    to_compact_json,
    to_json,
)


def group(members, topics, partitions):
    """Each member has ``partitions`` of every topic."""
    return GroupMembers(
        epoch=7,
        members=tuple(
            MemberRecord(
                member_id=os.urandom(16).hex(),
                epoch=7,
                state="stable",
                client_id="a-client-of-a-group",
                client_host=f"host-{number}.example.org",
                topics=tuple(f"some-topic-of-many-{topic}" for topic in range(topics)),
                session_timeout_ms=45_000,
                rebalance_timeout_ms=300_000,
                held=tuple(
                    HeldPartitions(
                        topic=f"some-topic-of-many-{topic}",
                        topic_id=os.urandom(16),
                        granted={number * partitions + each: 7 for each in range(partitions)},
                    )
                    for topic in range(topics)
                ),
            )
            for number in range(members)
        ),
    )


def test_few_members_are_plain_json():
    record = group(3, 1, 4)
    assert to_compact_json(record, "/x") == to_json(record)
    assert from_json(to_json(record), GroupMembers, "/x") == record


@pytest.mark.parametrize(("members", "topics", "partitions"), [(1_000, 1, 10), (300, 20, 2)])
def test_many_members_and_partitions_fit_into_a_request(members, topics, partitions):
    record = group(members, topics, partitions)
    data = to_compact_json(record, "/x")
    assert len(data) < MAX_REQUEST_BYTES * 0.8 < len(to_json(record)) or topics == 1
    assert from_json(data, GroupMembers, "/x") == record


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\x78", b"\x78\x01abc", zlib.compress(b"[]"), zlib.compress(b"x" * 10**6)[:20]]
)
def test_damaged_members_are_an_error_that_names_the_znode(data):
    with pytest.raises(CorruptRecordError, match="znode /x: not"):
        from_json(data, GroupMembers, "/x")


@pytest.mark.parametrize(
    ("good", "damaged"),
    [
        (b'{"epoch":7', b'{"epoch":-7'),
        (b'{"epoch":7', b'{"epoch":2147483648'),
        (b',"epoch":7', b',"epoch":-7'),
        (b"45000", b"-45000"),
        (b'"0":7', b'"-1":7'),
        (b'"0":7', b'"0":99999999999'),
        (b"{", b'{"later":' + b"[" * 10_000 + b"]" * 10_000 + b","),
    ],
    ids=range(7),
)
def test_members_with_impossible_values_are_damaged(good, damaged):
    """Otherwise the group would be loaded with it, and its answers could not be decoded."""
    data = to_json(group(1, 1, 1))
    assert good in data
    with pytest.raises(CorruptRecordError, match="znode /x: not a GroupMembers"):
        from_json(data.replace(good, damaged, 1), GroupMembers, "/x")


@pytest.mark.parametrize(
    "offsets", [b'"0":[-1]', b'"0":[9223372036854775808]', b'"-1":[1]', b'"0":[1,0,0,"",3000000000]']
)
def test_impossible_offsets_are_damaged(offsets):
    good = to_json(GroupOffsets(topic_id=bytes(16), offsets={}))
    assert from_json(good, GroupOffsets, "/x").offsets == {}
    with pytest.raises(CorruptRecordError, match="znode /x: not a GroupOffsets"):
        from_json(good.replace(b"{}", b"{" + offsets + b"}"), GroupOffsets, "/x")
