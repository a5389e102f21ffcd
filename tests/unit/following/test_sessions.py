"""A follower that reports only changes, and a leader that remembers the rest: `begin_session`, `FollowerSession`."""

from __future__ import annotations

import random

import msgspec
import pytest

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.streams import FetchRequest, FetchResponse
from broker_runtime.following import follower
from broker_runtime.following.follower import FIRST_RETRY_MS, REPORT_AGAIN_MS, FollowerFetcher
from broker_runtime.log.faulty_files import Fault
from broker_runtime.rates import RateLimit
from broker_runtime.replication import Role
from broker_runtime.services.follower_session import FollowerSession
from tests import callers
from tests.unit.replication.replicas import Replica, led_by
from tests.unit.replication.test_random_walks import STEPS, Walk


class Connection:
    """A follower's session with a leader, while both are alive."""

    def __init__(self, follower: Replica, leader: Replica) -> None:
        self.follower, self.leader = follower, leader
        self.fetcher: FollowerFetcher = follower.fetchers[leader.broker_id]
        self.fetcher.begin_session()
        caller = callers.follower(follower.broker_id, follower.broker_epoch)
        self.service = leader.service
        self.session: FollowerSession = self.service.follower_session(caller)

    def exchange(self) -> tuple[FetchRequest, FetchResponse] | None:
        """Makes one request and returns its answer; None: nothing to ask."""
        request = self.fetcher.next_request(self.follower.broker_epoch, self.follower.now_ms)
        if request is None:
            return None
        answer = self.session.fetch(request)
        answer.close()
        self.fetcher.handle(answer.response, answer.cells, self.follower.now_ms)
        return request, answer.response

    def numbers(self) -> tuple[list[int], list[int]]:
        """The partitions that an exchange requested, and those that it answered."""
        done = self.exchange()
        assert done is not None
        return [each.partition for each in done[0].partitions], [each.partition for each in done[1].partitions]


def _connected(count: int = 3, throttle: RateLimit | None = None) -> tuple[Replica, Replica, Connection]:
    """Broker 1 leads, broker 2 follows and has reported everything."""
    leader, follower = Replica(1, count), Replica(2, count)
    leader.lead(led_by(1, 1, replicas=(1, 2)))
    follower.follow(led_by(1, 1, replicas=(1, 2)), throttle=throttle)
    assert all(each.log.log_end_offset == 0 for each in follower.partitions)  # loaded
    connection = Connection(follower, leader)
    assert connection.numbers()[0] == list(range(count))
    return leader, follower, connection


def _passes(time_ms: int, *replicas: Replica) -> None:
    for replica in replicas:
        replica.now_ms += time_ms


def test_exchange_covers_only_changed_partitions():
    leader, follower, connection = _connected(count=5)
    assert connection.numbers() == ([], [])
    leader.append(b"a", partition=3)
    assert connection.numbers() == ([], [3])
    assert connection.numbers() == ([3], [3]), "its new end is reported, and so what is committed"
    assert follower.partitions[3].log.high_watermark == leader.partitions[3].high_watermark == 1
    assert connection.numbers() == ([], [])


def test_each_partition_is_reported_again_after_a_while():
    """Leaders track when a follower last reported; followers learn what is committed by now."""
    leader, follower, connection = _connected(count=40)
    third = led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1)
    leader.append(b"a", partition=7)
    for _ in range(2):
        connection.exchange()
    leader.lead(third)
    _passes(REPORT_AGAIN_MS, leader, follower)
    reported: list[int] = []
    for _ in range(3):
        reported += connection.numbers()[0]
    assert sorted(reported) == list(range(40))
    assert connection.numbers()[0] == []


def test_partitions_that_do_not_fit_a_request_are_reported_by_the_next_at_once(monkeypatch: pytest.MonkeyPatch):
    """The leader accepts no longer list; a delayed partition is neither forgotten nor reported last."""
    monkeypatch.setattr(follower, "MOST_ENTRIES", 2)
    leader, followed = Replica(1, 5), Replica(2, 5)
    leader.lead(led_by(1, 1, replicas=(1, 2)))
    followed.follow(led_by(1, 1, replicas=(1, 2)))
    assert all(each.log.log_end_offset == 0 for each in followed.partitions)  # loaded
    connection = Connection(followed, leader)
    connection.fetcher._max_wait_ms = 500
    for reported, wait_ms in (([0, 1], 0), ([2, 3], 0), ([4], 500), ([], 500)):
        request = connection.fetcher.next_request(followed.broker_epoch, followed.now_ms)
        assert request is not None
        assert ([each.partition for each in request.partitions], request.forgotten) == (reported, ())
        assert request.max_wait_ms == wait_ms
        answer = connection.session.fetch(msgspec.structs.replace(request, max_wait_ms=0))
        answer.close()
        connection.fetcher.handle(answer.response, answer.cells, followed.now_ms)
    connection.fetcher._max_wait_ms = 0
    for number in range(5):
        leader.append(b"a", partition=number)
    assert connection.numbers() == ([], [0, 1, 2, 3, 4])
    assert [connection.numbers()[0] for _ in range(3)] == [[0, 1], [2, 3], [4]]
    assert [each.log.high_watermark for each in leader.partitions] == [1] * 5


def test_partitions_to_forget_that_do_not_fit_a_request_are_in_the_next(monkeypatch: pytest.MonkeyPatch):
    _, _, connection = _connected(count=5)
    monkeypatch.setattr(follower, "MOST_ENTRIES", 2)
    for number in range(5):
        connection.fetcher.unfollow(TopicPartition("t", number))
    forgotten = []
    for _ in range(3):
        request, _ = connection.exchange() or pytest.fail("nothing was asked")
        assert not request.partitions
        forgotten.append(len(request.forgotten))
    assert forgotten == [2, 2, 1]
    assert connection.exchange() is None


def test_failed_partition_is_forgotten_by_the_leader_and_fetched_again():
    """Otherwise the leader would answer its data again and again."""
    leader, follower, connection = _connected()
    follower.files.faults.append(Fault("write", matches=lambda path: "t-1" in str(path) and path.suffix == ".log"))
    leader.append(b"a", partition=1)
    assert connection.numbers() == ([], [1])
    request, response = connection.exchange() or pytest.fail("nothing was asked")
    assert (request.forgotten, request.partitions, response.partitions) == ((("t", 1),), (), ())
    leader.append(b"b", partition=1)
    leader.append(b"c", partition=2)
    assert connection.numbers() == ([], [2])


def test_refused_partition_is_fetched_again_after_its_pause():
    leader, follower, connection = _connected()
    leader.partitions[0].step_down()
    assert connection.numbers() == ([], [0])
    request, _ = connection.exchange() or pytest.fail("nothing was asked")
    assert request.forgotten == (("t", 0),)
    leader.partitions[0].become_leader(led_by(1, 1, replicas=(1, 2)), 0)
    leader.append(b"a")
    assert connection.numbers() == ([], [])
    _passes(FIRST_RETRY_MS, leader, follower)
    assert connection.numbers() == ([0], [0])
    assert follower.partitions[0].log.log_end_offset == 1


def test_partition_that_is_no_longer_followed_or_in_another_epoch_is_reported():
    leader, follower, connection = _connected()
    connection.fetcher.unfollow(TopicPartition("t", 1))
    request, _ = connection.exchange() or pytest.fail("nothing was asked")
    assert (request.forgotten, request.partitions) == ((("t", 1),), ())
    leader.lead(led_by(1, 2, replicas=(1, 2)))
    follower.follow(led_by(1, 2, replicas=(1, 2)))
    request, _ = connection.exchange() or pytest.fail("nothing was asked")
    assert [(each.partition, each.leader_epoch) for each in request.partitions] == [(0, 2), (1, 2), (2, 2)]


def test_new_session_reports_everything():
    leader, follower, connection = _connected()
    connection.fetcher.failed(NetworkError("broke"), 0)
    _passes(FIRST_RETRY_MS, leader, follower)
    assert Connection(follower, leader).numbers()[0] == [0, 1, 2]


def test_last_partition_is_forgotten_too():
    """This holds though no partition is left to be fetched."""
    leader, _, connection = _connected(count=1)
    leader.only.step_down()
    assert connection.numbers() == ([], [0])
    request, _ = connection.exchange() or pytest.fail("nothing was asked")
    assert request.forgotten == (("t", 0),)
    assert connection.exchange() is None


def test_large_partition_holds_up_no_other():
    """A byte limit starves none: partitions without room come first in the next answer."""
    leader, _, connection = _connected()
    leader.service._max_bytes = 1  # one frame per answer
    for _ in range(3):
        for number in range(3):
            leader.append(bytes(100), partition=number)
    rows: list[int] = []
    for _ in range(9):
        done = connection.exchange()
        assert done is not None
        rows += [each.partition for each in done[1].partitions if each.row >= 0]
    assert sorted(rows) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(rows[:3]) == [0, 1, 2]


def test_throttle_delays_only_partitions_that_are_not_in_sync():
    throttle = RateLimit(1)
    leader, follower, connection = _connected(throttle=throttle)
    follower.partitions[2].become_follower(led_by(1, 1, replicas=(1, 2), in_sync=(1,), version=1))
    throttle.spend(1_000, 0)
    request, _ = connection.exchange() or pytest.fail("nothing was asked")
    assert request.forgotten == (("t", 2),)
    for number in range(3):
        leader.append(b"a", partition=number)
    assert connection.numbers() == ([], [0, 1])
    _passes(1_000_000, leader, follower)
    connection.exchange()
    assert follower.partitions[2].log.log_end_offset == 1


def test_closed_session_watches_no_partition():
    leader, _, connection = _connected()
    connection.session.close()
    assert all(not partition._append_waiters for partition in leader.partitions)


class SessionWalk(Walk):
    """A random walk in which each follower has a session; a lost answer ends it."""

    def __init__(self, seed: int) -> None:
        self.connections: dict[tuple[int, int], Connection] = {}
        super().__init__(seed)

    def fetch_by(self, broker_id: int, fate: str) -> None:
        replica = self.replicas[broker_id]
        replica.now_ms = self.now_ms
        replica.set_diverged_aside()
        leadership = replica.only.leadership
        if replica.only.role is not Role.FOLLOWER or leadership is None or leadership.leader is None:
            return
        leader = self.replicas[leadership.leader]
        leader.now_ms = self.now_ms
        connection = self.connections.get((broker_id, leader.broker_id))
        fetcher = replica.fetchers[leader.broker_id]
        if connection is None or connection.fetcher is not fetcher or connection.service is not leader.service:
            connection = self.connections[broker_id, leader.broker_id] = Connection(replica, leader)
        if fate in {"comes", "comes twice"}:
            connection.exchange()
            return
        request = fetcher.next_request(replica.broker_epoch, self.now_ms)
        if request is not None:
            answer = connection.session.fetch(request)
            answer.close()
            if fate == "is late":
                self.late.append((fetcher, answer.response, list(answer.cells)))
        fetcher.failed(NetworkError("the connection broke"), self.now_ms)
        connection.session.close()
        del self.connections[broker_id, leader.broker_id]


@pytest.mark.parametrize("seed", range(100, 120))
def test_no_walk_with_sessions_loses_what_was_acknowledged(seed: int) -> None:
    """W9, W13: the same holds for walks in which every request reports everything."""
    walk = SessionWalk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.heal()


@pytest.mark.parametrize("seed", range(10))
def test_many_partitions_end_up_equal_after_any_history(seed: int) -> None:
    """No change in a partition is overlooked because others were busy."""
    rng = random.Random(seed)
    leader, follower, connection = _connected(count=8)
    epoch = 1
    for _ in range(120):
        happening = rng.choices(["append", "exchange", "break", "epoch", "limit", "time"], [6, 8, 1, 0.5, 0.5, 1])[0]
        if happening == "append":
            leader.append(bytes(rng.randrange(300)), partition=rng.randrange(8))
        elif happening == "exchange":
            connection.exchange()
        elif happening == "limit":
            leader.service._max_bytes = rng.choice([1, 500, 1 << 20])
        elif happening == "time":
            _passes(rng.choice([10, 600, REPORT_AGAIN_MS]), leader, follower)
        elif happening == "break":
            connection.fetcher.failed(NetworkError("broke"), follower.now_ms)
            connection.session.close()
            _passes(FIRST_RETRY_MS, leader, follower)
            connection = Connection(follower, leader)
        else:
            epoch += 1
            leader.lead(led_by(1, epoch, replicas=(1, 2)))
            follower.follow(led_by(1, epoch, replicas=(1, 2)))
    for _ in range(80):
        _passes(50, leader, follower)
        connection.exchange()
    assert [follower.records(number) for number in range(8)] == [leader.records(number) for number in range(8)]
    assert [each.log.high_watermark for each in follower.partitions] == [
        each.log.log_end_offset for each in leader.partitions
    ]


def test_request_waits_for_data_only_until_more_can_be_fetched():
    """Partitions whose logs are still being loaded are fetched next, without ending the session."""
    _, follower, _ = _connected(1)
    fetcher = FollowerFetcher(2, 1, max_bytes=1, partition_max_bytes=1, max_wait_ms=500)
    fetcher.follow(follower.partitions[0], 1)
    requests = [fetcher.next_request(1, 0), fetcher.next_request(1, 0, longest_wait_ms=30)]
    assert [request.max_wait_ms for request in requests if request is not None] == [500, 30]
