"""A broker that does not lead any more does not tell a reader that its offset does not exist."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.streams import FetchPartition, FetchRequest, ReadRequest
from broker_runtime.services import leadership_check
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.leadership_check import Denied, LeadershipCheck
from broker_runtime.services.read import ReadService
from broker_runtime.zookeeper.memory import MemoryClient, MemoryZooKeeper
from broker_runtime.zookeeper.session import Set
from broker_runtime.zookeeper.znodes import CHANGES, PartitionState, partition_path, partition_state_path, to_json
from tests.callers import CLIENT
from tests.unit.replication.partitions import TOPIC_ID, Hosted
from tests.waiting import wait_until

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


def _denied(hosted: Hosted, number: int = 0) -> Denied:
    return Denied(hosted.partitions[number], 1, errors.OffsetOutOfRangeError("beyond"))


def _count_writes(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None) -> list[float]:
    """When each barrier began."""
    began: list[float] = []
    transaction = MemoryClient.transaction

    def counted(*arguments: Any, **more: Any) -> Any:
        began.append(time.monotonic())
        meanwhile()
        return transaction(*arguments, **more)

    monkeypatch.setattr(MemoryClient, "transaction", counted)
    return began


def test_one_check_is_for_all_partitions_of_a_fetch(client, monkeypatch) -> None:
    """A consumer that was away for longer than retention has hundreds of such offsets at once."""
    hosted = Hosted(3)
    for number, leader in ((1, 2), (2, 1)):
        client.ensure_path(partition_path("t", number))
        client.create(partition_state_path("t", number), _led_by(leader, 1))
    writes = _count_writes(monkeypatch)
    check = LeadershipCheck(client, 1)
    found = check.verified([_denied(hosted, number) for number in (0, 1, 2)])
    assert [each.code for each in found] == ["OFFSET_OUT_OF_RANGE", "NOT_LEADER_OR_FOLLOWER", "OFFSET_OUT_OF_RANGE"]
    assert len(writes) == 1
    assert check.verified([]) == []
    assert len(writes) == 1


def test_all_who_ask_during_a_check_share_the_next(hosted, client, monkeypatch) -> None:
    """However many clients ask, ZooKeeper has one write at a time, and none begins right after the other."""
    monkeypatch.setattr(leadership_check, "ANSWER_LIMIT_S", 30.0)
    goes_on = threading.Event()
    writes = _count_writes(monkeypatch, lambda: goes_on.wait(10) and None)
    check = LeadershipCheck(client, 1)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(check.verified, [_denied(hosted)])
        wait_until(lambda: len(writes) == 1, "the first check is under way", 10)
        others = [pool.submit(check.verified, [_denied(hosted)]) for _ in range(19)]
        wait_until(lambda: len(check._changed._waiters) == 19, "the others wait", 10)  # type: ignore[attr-defined]
        goes_on.set()
        found = [each.result(10)[0].code for each in (first, *others)]
    assert found == ["OFFSET_OUT_OF_RANGE"] * 20
    assert len(writes) == 2
    assert writes[1] - writes[0] >= leadership_check._PAUSE_S


def test_shared_check_is_about_all_that_was_asked(client, monkeypatch) -> None:
    monkeypatch.setattr(leadership_check, "ANSWER_LIMIT_S", 30.0)
    hosted = Hosted(3)
    for number, leader in ((1, 1), (2, 2)):
        client.ensure_path(partition_path("t", number))
        client.create(partition_state_path("t", number), _led_by(leader, 1))
    goes_on = threading.Event()
    writes = _count_writes(monkeypatch, lambda: goes_on.wait(10) and None)
    check = LeadershipCheck(client, 1)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(check.verified, [_denied(hosted)])
        wait_until(lambda: len(writes) == 1, "the first check is under way", 10)
        others = [pool.submit(check.verified, [_denied(hosted, number)]) for number in (1, 2)]
        wait_until(lambda: len(check._changed._waiters) == 2, "the others wait", 10)  # type: ignore[attr-defined]
        goes_on.set()
        found = [each.result(10)[0].code for each in (first, *others)]
    assert found == ["OFFSET_OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE", "NOT_LEADER_OR_FOLLOWER"]
    assert len(writes) == 2


def test_who_asks_during_a_check_gets_no_older_answer(hosted, client, monkeypatch) -> None:
    """The successor may have been elected after that check had read."""
    monkeypatch.setattr(leadership_check, "ANSWER_LIMIT_S", 30.0)
    reading, goes_on = threading.Event(), threading.Event()
    find_all = MemoryClient.find_all

    def slow(*arguments: Any, **more: Any) -> Any:
        found = find_all(*arguments, **more)
        reading.set()
        assert goes_on.wait(10)
        return found

    monkeypatch.setattr(MemoryClient, "find_all", slow)
    check = LeadershipCheck(client, 1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(check.verified, [_denied(hosted)])
        assert reading.wait(10)
        client.set(_PATH, _led_by(2, 2), version=0)
        second = pool.submit(check.verified, [_denied(hosted)])
        wait_until(lambda: check._changed._waiters, "the second waits", 10)  # type: ignore[attr-defined]
        goes_on.set()
        assert first.result(10)[0].code == "OFFSET_OUT_OF_RANGE"
        assert second.result(10)[0].code == "NOT_LEADER_OR_FOLLOWER"


def test_nobody_waits_for_a_zookeeper_that_is_silent(hosted, client, monkeypatch) -> None:
    """A fetch has other partitions, too; and a client that hears nothing gives its session up."""
    monkeypatch.setattr(leadership_check, "ANSWER_LIMIT_S", 0.2)
    goes_on = threading.Event()
    writes = _count_writes(monkeypatch, lambda: goes_on.wait(30) and None)
    check = LeadershipCheck(client, 1)
    try:
        assert check.verified([_denied(hosted)])[0].code == "OFFSET_NOT_AVAILABLE"
        monkeypatch.setattr(leadership_check, "ANSWER_LIMIT_S", 3_600.0)
        assert check.verified([_denied(hosted)])[0].code == "OFFSET_NOT_AVAILABLE"  # at once
        assert len(writes) == 1
    finally:
        goes_on.set()
    wait_until(lambda: check._running is None, "the silent check has ended", 10)
    assert check.verified([_denied(hosted)])[0].code == "OFFSET_OUT_OF_RANGE"


def test_check_that_fails_leaves_the_next_to_others(hosted, client, monkeypatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise errors.ZooKeeperUnavailableError("no answer")

    check = LeadershipCheck(client, 1)
    with monkeypatch.context() as failing:
        failing.setattr(MemoryClient, "transaction", fail)
        assert check.verified([_denied(hosted)])[0].code == "OFFSET_NOT_AVAILABLE"
    assert check.verified([_denied(hosted)])[0].code == "OFFSET_OUT_OF_RANGE"


def test_defect_of_a_check_is_not_hidden(hosted, client, monkeypatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(MemoryClient, "transaction", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        LeadershipCheck(client, 1).verified([_denied(hosted)])
