"""Groups while ZooKeeper is away, and while their coordinator is frozen."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from broker_runtime.contract.errors import RetriableError
from broker_runtime.contract.requests import GroupHeartbeatRequest, GroupHeartbeatResponse
from broker_runtime.contract.settings import Address
from pyspark_log import Admin
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.testing import LocalCluster
from tests.integration.groups.members import Member, settle
from tests.waiting import wait_until

ALL = {0, 1, 2}
SESSION_MS = 20_000


@pytest.fixture(scope="module")
def brokers(own_zookeepers_in_module: None) -> Iterator[LocalCluster]:
    """Three brokers with short sessions; each test leaves them running."""
    with LocalCluster(brokers=3, settings={"zookeeper.session.timeout.ms": "4s"}) as made:
        with Admin(made.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=3, replication_factor=3)
        yield made


def answers(member: Member, address: Address) -> str:
    """The broker's answer to the member's heartbeat."""
    request = GroupHeartbeatRequest(group_id=member.group_id, member_id=member.member_id, member_epoch=member.epoch)
    channel = member.cluster._channel(address)
    try:
        channel.call("group_heartbeat", request, GroupHeartbeatResponse, timeout_s=5)
    except RetriableError as error:
        return error.code
    return "OK"


def test_coordinator_answers_briefly_without_zookeeper_and_continues_when_it_is_back(brokers: LocalCluster) -> None:
    """A broker that is unsure whether it is still the coordinator extends no lease; nobody loses anything by that."""
    cluster = Cluster.at(brokers.bootstrap_servers)
    member = Member(cluster, "g", "t", session_timeout_ms=SESSION_MS)
    settle([member], lambda: member.held == ALL, "it has all")
    assert member.commit({0: 5}) == [None]
    coordinator, epoch = member.coordinator, member.epoch
    assert coordinator is not None
    address = cluster.address_of(coordinator)
    brokers.kill_zookeeper(1)
    killed_s = time.monotonic()
    assert answers(member, address) == "OK"
    wait_until(lambda: answers(member, address) != "OK", "it is refused", 15)
    assert time.monotonic() - killed_s > 2
    assert answers(member, address) in {"COORDINATOR_NOT_AVAILABLE", "ZOOKEEPER_UNAVAILABLE", "NOT_COORDINATOR"}
    brokers.start_zookeeper(1)
    member.beat()
    assert (member.held, member.epoch) == (ALL, epoch)
    assert member.committed() == {0: 5}
    assert member.commit({0: 6}) == [None]
    assert member.committed() == {0: 6}
    cluster.close()
    brokers.wait_until_ready()


def test_frozen_coordinator_is_replaced_and_refuses_afterwards(brokers: LocalCluster) -> None:
    """W24: two brokers that both believe to be the coordinator never both answer."""
    cluster = Cluster.at(brokers.bootstrap_servers)
    member = Member(cluster, "standing", "t", session_timeout_ms=SESSION_MS)
    settle([member], lambda: member.held == ALL, "it has all")
    coordinator, epoch = member.coordinator, member.epoch
    assert coordinator is not None
    address = cluster.address_of(coordinator)
    brokers.pause(coordinator)
    try:
        member.beat()
        assert member.coordinator != coordinator
        assert (member.held, member.epoch) == (ALL, epoch)
        assert member.commit({0: 7}) == [None]
        other = Member(cluster, "standing", "t", session_timeout_ms=SESSION_MS)
        settle([member, other], lambda: bool(other.held) and member.held | other.held == ALL, "they share")
    finally:
        brokers.resume(coordinator)
    said: list[str] = []
    wait_until(lambda: said.append(answers(member, address)) or said[-1] == "NOT_COORDINATOR", "it says so")
    assert "OK" not in said
    assert member.committed() == {0: 7}
    cluster.close()
