"""A request to the leaders of many partitions: who is asked, what is asked again, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    RetriableError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.waiting import Deadline
from pyspark_log.client.connection.leaders import ask_leaders
from tests.unit.client.channels import FakeClock

Answer = tuple[str, int | RetriableError]
Step = Exception | Mapping[str, int | RetriableError]


class Partitions:
    """The leaders, round by round, and each broker's answers, request by request."""

    def __init__(self, *rounds: Exception | dict[str, int | None]) -> None:
        self.rounds = list(rounds)
        self.says: dict[int, list[Step]] = {}
        self.asked: list[tuple[int, list[str]]] = []
        self.clock = FakeClock()

    def find_leaders(self, found: Mapping[str, int]) -> dict[str, int | None]:
        leaders = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
        if isinstance(leaders, Exception):
            raise leaders
        return {at: leader for at, leader in leaders.items() if at not in found}

    def ask(self, leader: int, led: list[str]) -> Iterator[Answer]:
        self.asked.append((leader, led))
        says = self.says.get(leader, [])
        says = says.pop(0) if says else dict.fromkeys(led, leader * 10)
        if isinstance(says, Exception):
            raise says
        yield from says.items()

    def answers(self, timeout_s: float) -> tuple[dict[str, int], RetriableError | None]:
        return ask_leaders(self.find_leaders, self.ask, Deadline(timeout_s, clock=self.clock))


def test_each_leader_is_asked_once_for_all_its_partitions() -> None:
    """W9: a broker gets one request, however many partitions it leads; there is no pause if all answer."""
    partitions = Partitions({"a": 1, "b": 2, "c": 1})
    assert partitions.answers(5) == ({"a": 10, "b": 20, "c": 10}, None)
    assert partitions.asked == [(1, ["a", "c"]), (2, ["b"])]
    assert partitions.clock.now == 0


def test_unanswered_partitions_are_asked_again_of_their_current_leader() -> None:
    """W9: a dead leader holds up its own partitions only, until another broker leads them."""
    partitions = Partitions({"a": 1, "b": 2}, {"a": 2, "b": 2})
    partitions.says[1] = [BrokerUnavailableError("down")]
    assert partitions.answers(5) == ({"a": 20, "b": 20}, None)
    assert partitions.asked == [(1, ["a"]), (2, ["b"]), (2, ["a"])]


def test_answers_before_an_error_of_the_same_leader_are_kept() -> None:
    """An error for one partition, or after some answers, is no answer for the others."""
    partitions = Partitions({"a": 1, "b": 1, "c": 1})
    partitions.says[1] = [{"a": 1, "b": NotLeaderOrFollowerError("no"), "c": 3}]
    assert partitions.answers(5) == ({"a": 1, "b": 10, "c": 3}, None)
    assert partitions.asked == [(1, ["a", "b", "c"]), (1, ["b"])]


@pytest.mark.parametrize("leader", [None, 1])
def test_unanswered_partitions_are_reported_at_the_deadline(leader: int | None) -> None:
    """A partition has no leader, or its leader gives no answer for it: other partitions' answers are returned all
    the same.
    """
    partitions = Partitions({"a": leader, "b": 2})
    partitions.says[1] = [{}] * 1_000
    found, failure = partitions.answers(5)
    assert found == {"b": 20}
    assert isinstance(failure, LeaderNotAvailableError)
    assert "a" in failure.message
    assert partitions.clock.now == 5


def test_one_round_is_made_when_there_is_no_time() -> None:
    """With a deadline of 0 s everybody is asked once."""
    partitions = Partitions({"a": 1, "b": 2})
    partitions.says[1] = [BrokerUnavailableError("down")]
    found, failure = partitions.answers(0)
    assert (found, str(failure)) == ({"b": 20}, "[BROKER_UNAVAILABLE] down")
    assert partitions.clock.now == 0


def test_leaders_that_cannot_be_looked_up_are_looked_up_again() -> None:
    """ZooKeeper is away for a moment."""
    partitions = Partitions(ZooKeeperUnavailableError("away"), {"a": 1})
    assert partitions.answers(5) == ({"a": 10}, None)
    found, failure = Partitions(ZooKeeperUnavailableError("away")).answers(5)
    assert found == {}
    assert isinstance(failure, ZooKeeperUnavailableError)


def test_error_that_is_not_retriable_is_raised_at_once() -> None:
    """An error that is not retriable is raised, whoever reports it."""
    partitions = Partitions({"a": 1, "b": 2})
    partitions.says[1] = [InvalidRequestError("no")]
    with pytest.raises(InvalidRequestError):
        partitions.answers(5)
    assert partitions.asked == [(1, ["a"])]
    with pytest.raises(InvalidRequestError):
        Partitions(InvalidRequestError("no")).answers(5)
