"""Ids for idempotent producers are assigned once, also while ZooKeeper is away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker_runtime.contract.errors import BrokerOverloadedError, InvalidRequestError, ZooKeeperUnavailableError
from broker_runtime.contract.requests import InitProducerIdRequest
from broker_runtime.services.producer_ids import BLOCK_SIZE, RESERVE, ProducerIdService
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import Operation
from tests.callers import CLIENT
from tests.clocks import ReadClock


def take(service: ProducerIdService, count: int) -> list[int]:
    return [service.init_producer_id(CLIENT, InitProducerIdRequest()).producer_id for _ in range(count)]


def test_ids_of_two_brokers_are_never_the_same() -> None:
    """Blocks are claimed by compare-and-set."""
    zookeeper = MemoryZooKeeper()
    brokers = [ProducerIdService(zookeeper.client()) for _ in range(2)]
    given = [each for _ in range(3) for broker in brokers for each in take(broker, BLOCK_SIZE // 2 + 1)]
    assert len(set(given)) == len(given)


def test_block_that_another_broker_claimed_between_read_and_write_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second broker claims the next block."""
    zookeeper = MemoryZooKeeper()
    first, client = ProducerIdService(zookeeper.client()), zookeeper.client()
    take(first, 1)
    real = client.transaction
    given: list[int] = []

    def write_later(operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        monkeypatch.setattr(client, "transaction", real)
        given.extend(take(first, BLOCK_SIZE))
        return real(operations, session=session)

    monkeypatch.setattr(client, "transaction", write_later)
    assert set(take(ProducerIdService(client), BLOCK_SIZE)).isdisjoint(given)
    assert len(given) == BLOCK_SIZE


def test_block_whose_claim_was_not_answered_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker's claim of the same block may have been written."""
    zookeeper = MemoryZooKeeper()
    other, client = ProducerIdService(zookeeper.client()), zookeeper.client()
    real = client.transaction
    given: list[int] = []

    def overtaken(operations: Sequence[Operation], *, session: int | None = None) -> list[int]:
        monkeypatch.setattr(client, "transaction", real)
        given.extend(take(other, BLOCK_SIZE))
        raise ZooKeeperUnavailableError("the request was lost")

    monkeypatch.setattr(client, "transaction", overtaken)
    assert set(take(ProducerIdService(client), BLOCK_SIZE)).isdisjoint(given)
    assert len(given) == BLOCK_SIZE


def test_reserve_serves_new_producers_while_zookeeper_is_away() -> None:
    """W26: established leaders continue to serve, also new producers."""
    client = MemoryZooKeeper().client()
    service = ProducerIdService(client)
    service.keep_ready()
    client.suspend()
    service.keep_ready()
    assert take(service, RESERVE) == list(range(RESERVE))


def test_reserve_is_filled_up_before_it_is_used_up() -> None:
    """With ZooKeeper at least `RESERVE` more ids are available at any time."""
    client = MemoryZooKeeper().client()
    service = ProducerIdService(client)
    service.keep_ready()
    take(service, BLOCK_SIZE - RESERVE + 1)
    service.keep_ready()
    client.suspend()
    assert len(take(service, BLOCK_SIZE + RESERVE - 1)) == BLOCK_SIZE + RESERVE - 1
    with pytest.raises(ZooKeeperUnavailableError):
        take(service, 1)


def test_only_ids_from_claimed_blocks_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker's blocks are found with one look, and made-up ids cost few looks."""
    zookeeper = MemoryZooKeeper()
    now_s = 100.0
    client = zookeeper.client()
    looks = []
    find = client.find
    monkeypatch.setattr(client, "find", lambda path: (looks.append(path), find(path))[1])
    broker = ProducerIdService(client, clock=ReadClock(lambda: now_s))
    for number in (0, 7, 2**62):
        with pytest.raises(InvalidRequestError, match=f"producer id {number} was never given out"):
            broker.require_given_out(number)
        with pytest.raises(BrokerOverloadedError):  # not yet again
            broker.require_given_out(number)
        now_s += 1
    assert len(looks) == 3
    given = ProducerIdService(zookeeper.client()).init_producer_id(CLIENT, InitProducerIdRequest()).producer_id
    broker.require_given_out(given)
    assert len(looks) == 4
    for number in range(BLOCK_SIZE):
        broker.require_given_out(number)
    assert len(looks) == 4
    with pytest.raises(BrokerOverloadedError):
        broker.require_given_out(BLOCK_SIZE)


def test_own_blocks_are_known_without_a_look_and_without_zookeeper() -> None:
    """This broker's ids work while ZooKeeper is away; ids that it cannot know are retriable."""
    zookeeper = MemoryZooKeeper()
    client = zookeeper.client()
    broker = ProducerIdService(client)
    given = broker.init_producer_id(CLIENT, InitProducerIdRequest()).producer_id
    client.suspend()
    broker.require_given_out(given)
    with pytest.raises(ZooKeeperUnavailableError):
        broker.require_given_out(given + BLOCK_SIZE)
