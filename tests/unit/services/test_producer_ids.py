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
