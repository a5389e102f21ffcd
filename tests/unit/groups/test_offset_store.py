"""Groups' committed offsets: what is written, when, and when not."""

import json
import random
import threading
from functools import partial

import pytest

from broker_runtime.contract.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.groups import offsets
from broker_runtime.groups.offsets import OffsetStore, _Commit, _Queue
from broker_runtime.zookeeper.guarded import Guard
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import MAX_REQUEST_BYTES, BadVersionError, Check
from broker_runtime.zookeeper.znodes import StoredOffset, TopicRecord, group_offsets_path, to_json

ID, OTHER_ID = b"\x01" * 16, b"\x02" * 16


@pytest.fixture
def client():
    client = MemoryZooKeeper().client()
    client.ensure_path("/topics/t")
    client.ensure_path("/consumers")
    return client


@pytest.fixture
def store(client):
    return OffsetStore(client)


def at(offset, **fields):
    return StoredOffset(offset=offset, **fields)


def committed(store, topic_id=ID):
    found = store.fetch("g", ["t"]).get("t")
    return {} if found is None or found.topic_id != topic_id else {p: o.offset for p, o in found.offsets.items()}


def test_committed_offsets_are_in_one_znode_of_group_and_topic(client, store):
    """W18, W25."""
    store.commit("g", "t", ID, {0: at(5), 1: at(7)})
    store.commit("g", "t", ID, {1: at(8)})
    assert committed(store) == {0: 5, 1: 8}
    assert client.children("/consumers/g/offsets") == ["t"]
    assert client.get(group_offsets_path("g", "t")).version == 1


def test_offsets_written_by_another_between_read_and_write_are_kept(client, store, monkeypatch):
    """A commit is a compare-and-set of the whole znode: it is merged again into the current content."""
    store.commit("g", "t", ID, {0: at(5), 1: at(5)})
    real, other = client.transaction, OffsetStore(client)

    def transaction(operations, *, session=None):
        monkeypatch.setattr(client, "transaction", real)
        other.commit("g", "t", ID, {1: at(9)})
        return real(operations, session=session)

    monkeypatch.setattr(client, "transaction", transaction)
    store.commit("g", "t", ID, {0: at(8)})
    assert committed(store) == {0: 8, 1: 9}


def test_offsets_of_a_large_topic_with_metadata_fit_into_a_znode(client, store):
    """Large ones are compressed, and read and merged like others."""
    metadata = json.dumps({"job": "a-job-that-says-where-it-is", "checkpoint": "s3://a-bucket/and/a/path"})
    store.commit("g", "t", ID, {partition: at(partition, metadata=metadata) for partition in range(10_000)})
    assert len(client.get(group_offsets_path("g", "t")).data) < MAX_REQUEST_BYTES // 2
    store.commit("g", "t", ID, {7: at(70)})
    assert committed(store) == {partition: 70 if partition == 7 else partition for partition in range(10_000)}


def test_unchanged_offsets_write_nothing(client, store):
    """An unchanged commit causes no write."""
    store.commit("g", "t", ID, {0: at(5, committed_at_ms=1)})
    store.commit("g", "t", ID, {0: at(5, committed_at_ms=2)})
    assert (store.writes, client.get(group_offsets_path("g", "t")).version) == (1, 0)
    store.commit("g", "t", ID, {0: at(5, metadata="x")})
    assert store.writes == 2


def test_offsets_may_go_back_unless_only_forward_is_set(store):
    """W20: rewinding is committed as well; S5: a source that republishes moves nothing back."""
    store.commit("g", "t", ID, {0: at(5), 1: at(5)})
    store.commit("g", "t", ID, {0: at(3), 1: at(9)}, only_forward=True)
    assert committed(store) == {0: 5, 1: 9}
    store.commit("g", "t", ID, {0: at(3)})
    assert committed(store) == {0: 3, 1: 9}


def test_commit_for_an_earlier_topic_of_the_name_changes_nothing_of_the_current_one(client, store):
    """Its caller looked up the topic before it was recreated, and the commit arrived after later lookups."""
    client.set("/topics/t", to_json(TopicRecord(topic_id=OTHER_ID, assignment=((1,),))), version=-1)
    store.commit("g", "t", ID, {0: at(9)})
    store.commit("g", "t", OTHER_ID, {0: at(5)})
    with pytest.raises(InconsistentTopicIdError, match="recreated"):
        store.commit("g", "t", ID, {0: at(9)})
    assert committed(store, OTHER_ID) == {0: 5}


def test_commit_that_arrives_after_a_later_one_changes_nothing(store):
    """It was stuck while another broker coordinated the group. A rewind is a later commit."""
    store.commit("g", "t", ID, {0: at(7, member_epoch=3, sequence=24), 1: at(7, member_epoch=3, sequence=20)})
    store.commit("g", "t", ID, {0: at(5, member_epoch=3, sequence=22), 1: at(9, member_epoch=3, sequence=22)})
    assert committed(store) == {0: 7, 1: 9}
    store.commit("g", "t", ID, {0: at(8, member_epoch=2, sequence=99)})
    assert committed(store) == {0: 7, 1: 9}, "of a member that had it before"
    store.commit("g", "t", ID, {0: at(3, member_epoch=4, sequence=0)})
    assert committed(store) == {0: 3, 1: 9}
    store.commit("g", "t", ID, {0: at(1)})
    assert committed(store) == {0: 1, 1: 9}, "an administrator's"
    store.commit("g", "t", ID, {0: at(2, member_epoch=1, sequence=0)})
    assert committed(store) == {0: 2, 1: 9}


def test_offsets_of_an_earlier_topic_of_the_name_are_replaced(client, store):
    store.commit("g", "t", ID, {0: at(5), 1: at(6)})
    client.set("/topics/t", to_json(TopicRecord(topic_id=OTHER_ID, assignment=((1,),))), version=-1)
    store.commit("g", "t", OTHER_ID, {0: at(1)})
    assert committed(store) == {}
    assert committed(store, OTHER_ID) == {0: 1}


def test_offsets_of_a_deleted_topic_are_refused_and_leave_nothing(client, store):
    client.delete("/topics/t")
    with pytest.raises(UnknownTopicOrPartitionError, match="'t'"):
        store.commit("g", "t", ID, {0: at(5)})
    assert committed(store) == {}


def test_groups_are_separate(store):
    """W21: consumers of other groups each get all records."""
    store.commit("g", "t", ID, {0: at(5)})
    assert store.fetch("h", ["t"]) == {}
    assert (store.topics_of("g"), store.topics_of("h")) == (["t"], [])


def test_too_many_offsets_for_a_znode_are_refused_and_the_store_continues(store):
    with pytest.raises(InvalidRequestError, match="at most 524288"):
        store.commit("g", "t", ID, {number: at(1, metadata=random.randbytes(2048).hex()) for number in range(400)})
    store.commit("g", "t", ID, {0: at(5)})
    assert committed(store) == {0: 5}


def test_ten_thousand_partitions_fit(store):
    store.commit(
        "g", "t", ID, {number: at(10**12 + number, committed_at_ms=1_800_000_000_000) for number in range(10_000)}
    )
    assert len(committed(store)) == 10_000


def test_commit_without_zookeeper_is_an_error_and_the_next_succeeds(client, store):
    client.suspend()
    with pytest.raises(ZooKeeperUnavailableError):
        store.commit("g", "t", ID, {0: at(5)})
    client.resume()
    store.commit("g", "t", ID, {0: at(6)})
    assert committed(store) == {0: 6}


class Interferes:
    """A client that does something else first: makes another broker's write, or loses a reply."""

    def __init__(self, client, before=(), loses=0):
        self._client = client
        self.before = list(before)
        self.loses = loses

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        if self.before:
            self.before.pop(0)()
            raise BadVersionError("/other")
        versions = self._client.transaction(operations, session=session)
        if self.loses:
            self.loses -= 1
            raise ZooKeeperUnavailableError("the reply was lost")
        return versions


def test_commits_that_waited_for_a_failed_write_are_not_acknowledged(client):
    """W17: an acknowledgement follows the write, even when the failure was unforeseen."""
    store = OffsetStore(Interferes(client, before=[lambda: 1 / 0]))
    first, second = (_Commit(topic_id=ID, offsets={0: at(offset)}, only_forward=False) for offset in (5, 6))
    queue = store._queues["g", "t"] = _Queue(waiting=[first, second], is_writing=True)
    with pytest.raises(ZeroDivisionError):
        store._write_waiting(("g", "t"), queue)
    assert second.news.is_set()
    assert isinstance(second.error, UnknownServerError)
    store.commit("g", "t", ID, {0: at(7)})
    assert committed(store) == {0: 7}


def test_commit_concurrent_with_another_brokers_keeps_both(client, store):
    other = Interferes(client, before=[lambda: store.commit("g", "t", ID, {1: at(9)})])
    OffsetStore(other).commit("g", "t", ID, {0: at(5)})
    assert committed(store) == {0: 5, 1: 9}


def test_commit_whose_reply_was_lost_is_read_back(client, store):
    client.ensure_path("/consumers/g/offsets")
    losing = OffsetStore(Interferes(client, loses=1))
    losing.commit("g", "t", ID, {0: at(5)})
    assert committed(store) == {0: 5}
    assert client.get(group_offsets_path("g", "t")).version == 0


def test_commit_that_is_being_written_when_its_time_is_over_is_waited_for(store, monkeypatch):
    """Who is told that a commit failed relies on it never being applied later."""
    queue = store._queues["g", "t"] = _Queue(is_writing=True)
    taken = []

    class TakenJustNow(threading.Event):
        def wait(self, timeout=None):
            if queue.waiting:
                taken.extend(queue.waiting)
                queue.waiting.clear()
                return False
            assert timeout == offsets._WRITE_END_S
            for commit in taken:
                commit.is_done = True
            return True

    monkeypatch.setattr(offsets, "_Commit", partial(_Commit, news=TakenJustNow()))
    store.commit("g", "t", ID, {0: at(5)})
    assert [commit.offsets for commit in taken] == [{0: at(5)}]


def test_transaction_does_not_drop_offsets_that_a_later_assignment_has_passed(client, store):
    """Without them it would commit what another member has processed, too."""
    store.commit("g", "t", ID, {0: at(10, member_epoch=6), 1: at(3, member_epoch=4)})
    client.set("/topics/t", to_json(TopicRecord(topic_id=ID, assignment=((1,),))), version=-1)
    guard = Guard(Check("/topics", -1), 0)
    assert store.planned("g", {"t": (ID, {1: at(5, member_epoch=5)})}, guard)
    with pytest.raises(StaleMemberEpochError, match="offsets of t-0 were committed under a later assignment"):
        store.planned("g", {"t": (ID, {0: at(50, member_epoch=5), 1: at(5, member_epoch=5)})}, guard)


def test_offsets_that_compress_well_are_refused_where_they_would_be_too_large_to_read_again(client, store):
    """A group's offsets are decoded for each commit: a few kilobytes must not become hundreds of megabytes."""
    bomb = {partition: at(1, metadata="\x01" * 4096) for partition in range(2_000)}
    with pytest.raises(InvalidRequestError, match=r"/consumers/g/offsets/t would have \d+ bytes; at most 8388608"):
        store.commit("g", "t", ID, bomb)
    store.commit("g", "t", ID, {0: at(5)})
    assert committed(store) == {0: 5}
