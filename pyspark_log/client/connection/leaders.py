"""A question to the leaders of many partitions: each leader is asked about everything it leads.

Rule: one leader that does not answer keeps nobody from hearing what the others say. What has no answer yet is asked
again, of whoever leads then, until the deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from broker_runtime.contract.errors import LeaderNotAvailableError, RetriableError
from broker_runtime.contract.waiting import Backoff, Deadline

_K = TypeVar("_K", bound=Hashable)  # a partition, in the caller's terms
_A = TypeVar("_A")


def ask_leaders(
    find_leaders: Callable[[Mapping[_K, _A]], Mapping[_K, int | None]],
    ask: Callable[[int, list[_K]], Iterable[tuple[_K, _A | RetriableError]]],
    deadline: Deadline,
) -> tuple[dict[_K, _A], RetriableError | None]:
    """Asks round after round; returns the answers, and the last reason why one is missing (None: none is missing).

    ``find_leaders`` is called at the beginning of each round with the answers so far. It returns the partitions to ask
    about in this round, each with the id of its leader (None: it has none at present). ``ask`` is called once a round
    for each leader, with all its partitions. It yields the answers as they come, and an error in place of an answer
    that may come later.

    Blocks until a round leaves nothing open, or until ``deadline`` has expired after a round; so a deadline of 0 s
    means one round. A `RetriableError` that either function raises leaves what it was about open. Every other error is
    raised at once. The time limits of the requests are the caller's.
    """
    backoff = Backoff()
    found: dict[_K, _A] = {}
    while True:
        failure = _ask_once(find_leaders, ask, found)
        if failure is None or deadline.expired:
            return found, failure
        deadline.sleep(backoff.next_s())


def _ask_once(
    find_leaders: Callable[[Mapping[_K, _A]], Mapping[_K, int | None]],
    ask: Callable[[int, list[_K]], Iterable[tuple[_K, _A | RetriableError]]],
    found: dict[_K, _A],
) -> RetriableError | None:
    """One round, whose answers go to ``found``; returns why one is missing."""
    failure: RetriableError | None = None
    by_leader: dict[int, list[_K]] = {}
    try:
        leaders = find_leaders(found)
    except RetriableError as error:
        return error
    for at, leader in leaders.items():
        if leader is None:
            failure = LeaderNotAvailableError(f"{at} has no leader at present")
        else:
            by_leader.setdefault(leader, []).append(at)
    for leader, led in by_leader.items():
        answered: set[_K] = set()
        try:
            for at, answer in ask(leader, led):
                answered.add(at)
                if isinstance(answer, RetriableError):
                    failure = answer
                else:
                    found[at] = answer
        except RetriableError as error:
            failure = error
        else:
            silent = [at for at in led if at not in answered]
            if silent:
                failure = LeaderNotAvailableError(f"broker {leader} does not say that it leads {silent[0]}")
    return failure
