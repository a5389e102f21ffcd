"""A question to the leaders of many partitions: who is asked, what is asked again, and when it ends."""

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
    """Who leads what, round by round, and what each broker says, request by request."""

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


def test_each_leader_is_asked_once_for_all_that_it_leads() -> None:
    """W9: one request a broker, however many partitions; without a pause where all answer."""
    partitions = Partitions({"a": 1, "b": 2, "c": 1})
    assert partitions.answers(5) == ({"a": 10, "b": 20, "c": 10}, None)
    assert partitions.asked == [(1, ["a", "c"]), (2, ["b"])]
    assert partitions.clock.now == 0


def test_what_was_not_answered_is_asked_again_of_whoever_leads_then() -> None:
    """W9: a leader that is down holds up its own partitions only, until another leads them."""
    partitions = Partitions({"a": 1, "b": 2}, {"a": 2, "b": 2})
    partitions.says[1] = [BrokerUnavailableError("down")]
    assert partitions.answers(5) == ({"a": 20, "b": 20}, None)
    assert partitions.asked == [(1, ["a"]), (2, ["b"]), (2, ["a"])]


def test_answers_before_an_error_of_the_same_leader_are_kept() -> None:
    """An error that comes with one partition's answer, or after some, is no answer for the others."""
    partitions = Partitions({"a": 1, "b": 1, "c": 1})
    partitions.says[1] = [{"a": 1, "b": NotLeaderOrFollowerError("no"), "c": 3}]
    assert partitions.answers(5) == ({"a": 1, "b": 10, "c": 3}, None)
    assert partitions.asked == [(1, ["a", "b", "c"]), (1, ["b"])]


@pytest.mark.parametrize("leader", [None, 1])
def test_what_no_leader_answers_is_said_when_the_time_is_over(leader: int | None) -> None:
    """No leader at all, or one that says nothing of the partition: what others answered is there all the same."""
    partitions = Partitions({"a": leader, "b": 2})
    partitions.says[1] = [{}] * 1_000
    found, failure = partitions.answers(5)
    assert found == {"b": 20}
    assert isinstance(failure, LeaderNotAvailableError)
    assert "a" in failure.message
    assert partitions.clock.now == 5


def test_one_round_where_there_is_no_time() -> None:
    """A deadline of 0 s: everybody is asked, once."""
    partitions = Partitions({"a": 1, "b": 2})
    partitions.says[1] = [BrokerUnavailableError("down")]
    found, failure = partitions.answers(0)
    assert (found, str(failure)) == ({"b": 20}, "[BROKER_UNAVAILABLE] down")
    assert partitions.clock.now == 0


def test_leaders_that_cannot_be_found_out_are_looked_up_again() -> None:
    """ZooKeeper away for a moment."""
    partitions = Partitions(ZooKeeperUnavailableError("away"), {"a": 1})
    assert partitions.answers(5) == ({"a": 10}, None)
    found, failure = Partitions(ZooKeeperUnavailableError("away")).answers(5)
    assert found == {}
    assert isinstance(failure, ZooKeeperUnavailableError)


def test_what_trying_again_would_not_change_is_raised_at_once() -> None:
    """An error that is not retriable, whoever has it."""
    partitions = Partitions({"a": 1, "b": 2})
    partitions.says[1] = [InvalidRequestError("no")]
    with pytest.raises(InvalidRequestError):
        partitions.answers(5)
    assert partitions.asked == [(1, ["a"])]
    with pytest.raises(InvalidRequestError):
        Partitions(InvalidRequestError("no")).answers(5)
