"""A move that is cancelled and begun again: the target has deleted its log in between, and begins with an empty one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.controller import reassignment
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import topic_config_path
from tests.unit.membership.replicated import ReplicatedBroker, live_on

RECORDS = 60


class Cluster:
    """Three brokers; 3 is the controller, 1 leads the only replica of "t", which has records."""

    def __init__(self, replication_factor: int = 1) -> None:
        self.clock = [0]
        server = MemoryZooKeeper()
        self.brokers: dict[int, ReplicatedBroker] = {}
        for number in (3, 1, 2):
            self.brokers[number] = ReplicatedBroker(server, number, self.clock)
        self.live_on(3)
        assert self.controller.member.controller.is_active
        self.controller.create("t", replication_factor=replication_factor)
        self.live_on(3)
        if replication_factor == 1 and self.controller.state("t")[0] != 1:
            self.begin(1)
            self.live_on(10)
        leader = self.controller.state("t")[0]
        assert leader is not None
        self.leader = self.brokers[leader]
        self.target = self.brokers[2]
        self.leader.append(*[b"%d" % number * 50 for number in range(RECORDS)])
        self.live_on(10)

    @property
    def controller(self) -> ReplicatedBroker:
        return self.brokers[3]

    def live_on(self, steps: int) -> None:
        live_on(self.brokers, self.clock, steps)

    def begin(self, *target: int) -> None:
        self._move(lambda topic, epoch: reassignment.begin(topic, {0: target}, self._electorate, epoch))

    def cancel(self) -> None:
        self._move(lambda topic, epoch: reassignment.cancel(topic, [0], self._electorate, epoch))

    def begin_and_fetch_all(self) -> tuple[Any, Any]:
        """The target has everything and is not in sync yet. Returns its last request once more."""
        self.begin(2)
        self.leader.member.step(0)
        self.target.member.step(0)
        while True:
            self.clock[0] += 20
            request, caller = self.target.request(1)
            if self.target.log.log_end_offset == RECORDS:
                return request, caller
            answer = self.leader.answer(request, caller)
            self.target.fetchers[1].handle(answer.response, answer.cells, self.clock[0])

    @property
    def _electorate(self) -> Any:
        return self.controller.member.electorate

    def _move(self, plan: Callable[[Any, int], Any]) -> None:
        member = self.controller.member
        with member.changing() as cluster:
            epoch = member.controller.require_claim().epoch
            refreshed = lambda: member.refresh_topic("t")  # noqa: E731
            member.movements.move(cluster.topics["t"], lambda topic: plan(topic, epoch), refreshed=refreshed)
            member.refresh_topic("t")


@pytest.mark.parametrize("is_heard_of", [False, True])
def test_what_the_target_reported_before_its_log_was_deleted_does_not_count(is_heard_of: bool) -> None:
    """D8 (1): the leader hears of both changes at once, or of each, and a fetch from before arrives after them."""
    cluster = Cluster()
    leader, target = cluster.leader, cluster.target
    request, caller = cluster.begin_and_fetch_all()
    if not is_heard_of:
        leader.answer(request, caller)
    cluster.cancel()
    target.member.step(0)
    assert not target.files.is_directory(Path("/data/t-0"))
    if is_heard_of:
        leader.member.step(0)
    cluster.begin(2)
    leader.member.step(0)
    target.member.step(0)
    assert target.log.log_end_offset == 0
    if is_heard_of:
        leader.answer(request, caller)
    leader.updater.step(cluster.clock[0])
    cluster.controller.member.step(0)
    assert cluster.controller.state("t")[0] == 1, "the target is empty"
    cluster.live_on(60)
    assert cluster.controller.state("t")[0] == 2
    assert target.log.log_end_offset == RECORDS


def test_target_that_was_no_replica_for_a_moment_joins_when_it_is_one_again() -> None:
    """The leader's look found the topic as it was before the cancellation, and its state as it was after it."""
    cluster = Cluster()
    leader, target = cluster.leader, cluster.target
    request, caller = cluster.begin_and_fetch_all()
    leader.answer(request, caller)
    real = leader.client.find_all

    def torn(paths: Any, **options: Any) -> Any:
        found = real(paths, **options)
        if topic_config_path("t") in paths:
            leader.client.find_all = real
            cluster.cancel()
        return found

    leader.client.find_all = torn
    leader.member._board.add(is_stale=True)
    leader.member.step(0)
    leader.updater.step(cluster.clock[0])
    target.member.step(0)
    leader.member.step(0)
    cluster.begin(2)
    cluster.live_on(60)
    assert cluster.controller.state("t")[0] == 2
    assert target.log.log_end_offset == RECORDS


def test_diverged_copy_outlives_the_replica() -> None:
    """It may have records that are nowhere else."""
    cluster = Cluster(replication_factor=3)
    follower = next(each for each in cluster.brokers.values() if each not in (cluster.leader, cluster.controller))
    with pytest.raises(CorruptRecordError):
        follower.log.refuse_to_lose(0, 1)
    cluster.live_on(20)
    (kept,) = [name for name in follower.files.list(Path("/data")) if name.endswith(".diverged")]
    cluster.begin(*(number for number in cluster.brokers if number != follower.broker_id))
    cluster.live_on(20)
    assert not follower.files.is_directory(Path("/data/t-0"))
    assert kept in follower.files.list(Path("/data"))
