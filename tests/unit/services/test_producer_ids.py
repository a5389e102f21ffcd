"""Ids for idempotent producers: given out once, also while ZooKeeper is away."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.contract.requests import InitProducerIdRequest
from broker_runtime.services.producer_ids import BLOCK_SIZE, RESERVE, ProducerIdService
from broker_runtime.zookeeper.memory import MemoryZooKeeper


def take(service: ProducerIdService, count: int) -> list[int]:
    return [service.init_producer_id(InitProducerIdRequest()).producer_id for _ in range(count)]


def test_ids_of_two_brokers_are_never_the_same() -> None:
    """Blocks are claimed by compare-and-set."""
    zookeeper = MemoryZooKeeper()
    brokers = [ProducerIdService(zookeeper.client()) for _ in range(2)]
    given = [each for _ in range(3) for broker in brokers for each in take(broker, BLOCK_SIZE // 2 + 1)]
    assert len(set(given)) == len(given)


def test_block_that_another_broker_claimed_between_read_and_write_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second claims the block behind."""
    zookeeper = MemoryZooKeeper()
    first, client = ProducerIdService(zookeeper.client()), zookeeper.client()
    take(first, 1)
    real = client.set
    given: list[int] = []

    def set_later(path: str, data: bytes, *, version: int, session: int | None = None) -> int:
        monkeypatch.setattr(client, "set", real)
        given.extend(take(first, BLOCK_SIZE))
        return real(path, data, version=version, session=session)

    monkeypatch.setattr(client, "set", set_later)
    assert set(take(ProducerIdService(client), BLOCK_SIZE)).isdisjoint(given)
    assert len(given) == BLOCK_SIZE


def test_reserve_serves_new_producers_while_zookeeper_is_away() -> None:
    """W26: established leaders serve on, new producers too."""
    client = MemoryZooKeeper().client()
    service = ProducerIdService(client)
    service.keep_ready()
    client.suspend()
    service.keep_ready()
    assert take(service, RESERVE) == list(range(RESERVE))


def test_reserve_is_filled_up_before_it_is_used_up() -> None:
    """At any time at least `RESERVE` more are there, with ZooKeeper."""
    client = MemoryZooKeeper().client()
    service = ProducerIdService(client)
    service.keep_ready()
    take(service, BLOCK_SIZE - RESERVE + 1)
    service.keep_ready()
    client.suspend()
    assert len(take(service, BLOCK_SIZE + RESERVE - 1)) == BLOCK_SIZE + RESERVE - 1
    with pytest.raises(ZooKeeperUnavailableError):
        take(service, 1)
