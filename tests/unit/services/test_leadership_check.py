"""A broker that does not lead any more does not tell a reader that its offset does not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.streams import FetchPartition, FetchRequest, ReadRequest
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.leadership_check import LeadershipCheck
from broker_runtime.services.read import ReadService
from broker_runtime.zookeeper.memory import MemoryClient, MemoryZooKeeper
from broker_runtime.zookeeper.session import Set
from broker_runtime.zookeeper.znodes import CHANGES, PartitionState, partition_path, partition_state_path, to_json
from tests.callers import CLIENT
from tests.unit.replication.partitions import TOPIC_ID, Hosted

_PATH = partition_state_path("t", 0)


def _led_by(leader: int, leader_epoch: int) -> bytes:
    return to_json(PartitionState(leader=leader, leader_epoch=leader_epoch, isr=(leader,), controller_epoch=1))


@pytest.fixture
def hosted() -> Hosted:
    """Broker 1 believes that it leads ``t-0`` in epoch 1, which has one record."""
    made = Hosted()
    made.append(b"a")
    return made


@pytest.fixture
def client() -> MemoryClient:
    """Where ZooKeeper says the same."""
    made = MemoryZooKeeper().client()
    made.ensure_path(CHANGES)
    made.ensure_path(partition_path("t", 0))
    made.create(_PATH, _led_by(1, 1))
    return made


def _fetch_error(hosted: Hosted, client: MemoryClient, offset: int) -> str:
    service = FetchService(
        hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1 << 20), leadership=LeadershipCheck(client, 1)
    )
    wanted = FetchPartition(topic="t", partition=0, topic_id=TOPIC_ID.bytes, offset=offset)
    answer = service.fetch(CLIENT, FetchRequest(request_id=1, partitions=(wanted,), max_wait_ms=0))
    error = answer.response.partitions[0].error
    assert error is not None
    return error.code


def _read_error(hosted: Hosted, client: MemoryClient, offset: int) -> str:
    service = ReadService(hosted.registry, budget=ByteBudget(1 << 20), leadership=LeadershipCheck(client, 1))
    with pytest.raises(errors.PylogError) as caught:
        service.plan(CLIENT, ReadRequest(topic="t", partition=0, start=offset))
    return caught.value.code


@pytest.mark.parametrize("error_of", [_fetch_error, _read_error])
def test_the_leader_says_that_an_offset_does_not_exist(error_of, hosted, client) -> None:
    """W20: it has asked ZooKeeper since."""
    assert error_of(hosted, client, 2) == "OFFSET_OUT_OF_RANGE"


@pytest.mark.parametrize("error_of", [_fetch_error, _read_error])
@pytest.mark.parametrize("now", [(2, 2), (1, 3), (2, 1)])
def test_a_former_leader_sends_readers_to_its_successor(error_of, now, hosted, client) -> None:
    """W20: what they know of was committed since."""
    client.transaction([Set(_PATH, _led_by(*now), 0)])
    assert error_of(hosted, client, 2) == "NOT_LEADER_OR_FOLLOWER"


@pytest.mark.parametrize("error_of", [_fetch_error, _read_error])
def test_a_broker_that_cannot_ask_makes_readers_ask_again(error_of, hosted, client) -> None:
    """W20: also where its session has ended, or the znode cannot be read."""
    client.suspend()
    assert error_of(hosted, client, 2) == "OFFSET_NOT_AVAILABLE"
    client.resume()
    client.transaction([Set(_PATH, b"{", 0)])
    assert error_of(hosted, client, 2) == "OFFSET_NOT_AVAILABLE"


def test_readers_of_a_topic_that_is_gone_are_sent_on(hosted, client) -> None:
    """They find out that it is gone when they ask who leads it."""
    client.delete(_PATH)
    assert _fetch_error(hosted, client, 2) == "NOT_LEADER_OR_FOLLOWER"


def test_zookeeper_is_asked_for_such_answers_alone(hosted, client, monkeypatch) -> None:
    """Each costs a write: what is there is read without any."""

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(MemoryClient, "transaction", refuse)
    service = FetchService(
        hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1 << 20), leadership=LeadershipCheck(client, 1)
    )
    for offset in (0, 1):
        wanted = FetchPartition(topic="t", partition=0, topic_id=TOPIC_ID.bytes, offset=offset)
        service.fetch(CLIENT, FetchRequest(request_id=1, partitions=(wanted,), max_wait_ms=0)).close()
    read = ReadService(hosted.registry, budget=ByteBudget(1 << 20), leadership=LeadershipCheck(client, 1))
    assert read.plan(CLIENT, ReadRequest(topic="t", partition=0, start=0)).end == 1


def test_what_is_read_is_not_older_than_the_question(hosted, client, monkeypatch) -> None:
    """The server that answers may lag behind its ensemble: a write comes first, and the read after it."""
    done: list[str] = []
    transaction, find = MemoryClient.transaction, MemoryClient.find

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting_call(*arguments: object, **more: object) -> Any:
            done.append(name)
            return call(*arguments, **more)

        return noting_call

    monkeypatch.setattr(MemoryClient, "transaction", noting("write", transaction))
    monkeypatch.setattr(MemoryClient, "find", noting("read", find))
    assert _fetch_error(hosted, client, 2) == "OFFSET_OUT_OF_RANGE"
    assert done == ["write", "read"]


def test_zookeeper_that_does_not_answer_is_not_waited_for_by_each_partition(hosted, client, monkeypatch) -> None:
    """A fetch of hundreds would say nothing for minutes, and its client would give it up."""
    asked: list[int] = []

    def fail(*arguments: object, **more: object) -> None:
        asked.append(1)
        raise errors.ZooKeeperUnavailableError("no answer")

    monkeypatch.setattr(MemoryClient, "transaction", fail)
    check = LeadershipCheck(client, 1)
    found = [check.verified(hosted.only, 1, errors.OffsetOutOfRangeError("beyond")) for _ in range(5)]
    assert {type(each) for each in found} == {errors.OffsetNotAvailableError}
    assert len(asked) == 1
