"""A streaming query as the only member of its group: joining, refusal, and loss, against the group's state machine."""

from __future__ import annotations

import threading
from itertools import groupby

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    CoordinatorNotAvailableError,
    GroupInUseError,
    InvalidGroupIdError,
    PylogError,
    UnknownServerError,
)
from broker_runtime.contract.model import GroupDescription
from broker_runtime.contract.requests import (
    LEAVES,
    DescribeGroupResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupInfo,
)
from broker_runtime.contract.waiting import CLOCK, Clock
from broker_runtime.groups.group import Group, Limits
from pyspark_log.client.admin.groups import described
from pyspark_log.spark.query_member import QueryMember
from tests.unit.client.channels import FakeClock

LIMITS = Limits(min_session_ms=6_000, max_session_ms=60_000, max_members=10)
LIMIT_S = 20.0


class Coordinator:
    """The group's state machine behind its members' calls; only tests move the clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.clock.now = 1_000.0
        self.limits = LIMITS
        self.group = Group("g", self.limits)
        self.broker_id = 1
        self.error: PylogError | None = None
        self.heartbeats: list[GroupHeartbeatRequest] = []
        self.forgotten = 0

    @property
    def now_s(self) -> float:
        return self.clock.now

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self.clock.now = now_s

    @property
    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def heartbeat(self, request: GroupHeartbeatRequest, *, timeout_s: float = 3.0) -> GroupHeartbeatResponse:
        if self.error is not None:
            raise self.error
        self.heartbeats.append(request)
        self.work()
        answer = self.group.heartbeat(request, self.now_ms)
        self.work()
        return answer

    def forget_coordinator(self) -> None:
        self.forgotten += 1

    def describe_group(self) -> GroupDescription:
        if self.error is not None:
            raise self.error
        members = tuple(self.group.members(self.now_ms, {}))
        info = GroupInfo(
            group_id="g", state=self.group.state, kind=self.group.kind, members=len(members), coordinator=self.broker_id
        )
        return described(DescribeGroupResponse(group=info, epoch=self.group.epoch, members=members))

    def session_limits_ms(self) -> tuple[int, int]:
        return self.limits.min_session_ms, self.limits.max_session_ms

    def work(self) -> None:
        """The work of the broker's thread, as often as there is something to do."""
        while (plan := self.group.plan({}, self.now_ms)) is not None:
            self.record = plan.record
            self.group.adopt(plan)

    def hand_over(self) -> None:
        """The broker dies, and then coordinates the group again: it knows what was written."""
        self.group = Group.restore("g", self.limits, self.record, self.now_ms, 5_000)

    def query(
        self, topics: tuple[str, ...] = ("t",), client_id: str = "pylog", clock: Clock | None = None
    ) -> QueryMember:
        clock = clock or self.clock
        return QueryMember("g", self, lambda: topics, client_id=client_id, client_host="h7", clock=clock)

    def run(self, *queries: QueryMember, until_s: float) -> None:
        """Runs each query's thread, on this one, until a time; a refused query has stopped."""
        due = dict.fromkeys(queries, self.now_s)
        while due and min(due.values()) < until_s:
            query = min(due, key=lambda each: due[each])
            self.now_s = max(self.now_s, due[query])
            wait_s = query.step()
            due[query] = self.now_s + max(wait_s, 0.01)
            if refused(query):
                del due[query]
        self.now_s = until_s


def refused(query: QueryMember) -> bool:
    return query._failure is not None


def admitted(query: QueryMember) -> bool:
    return query._is_decided and not refused(query)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def test_query_joins_and_its_commits_carry_the_membership(coordinator: Coordinator) -> None:
    """S5: a query joins as a member of kind spark, with its topics and a session of 10 s, before it begins."""
    query = coordinator.query(("a", "b"))
    with pytest.raises(CoordinatorNotAvailableError, match="'g'"):
        query.signature()
    coordinator.run(query, until_s=coordinator.now_s + 1)
    query.admit()
    (member,) = coordinator.describe_group().members
    assert (member.kind, member.topics, member.session_timeout_ms, member.state) == (
        "spark",
        ("a", "b"),
        10_000,
        "stable",
    )
    for number in range(2):
        signature = query.signature()
        assert signature.sequence == number
        assert coordinator.group.begin_commit(*signature, [("a", None, 0)], coordinator.now_ms) == [None]


def test_query_sends_its_topics_with_every_heartbeat(coordinator: Coordinator) -> None:
    """A pattern may match another topic; a coordinator that has just taken over may not know the last change."""
    topics = [("a",)]
    query = QueryMember("g", coordinator, lambda: topics[0], clock=coordinator.clock)
    coordinator.run(query, until_s=coordinator.now_s + 10)
    topics[0] = ("a", "b")
    coordinator.run(query, until_s=coordinator.now_s + 10)
    assert [said for said, _ in groupby(request.topics for request in coordinator.heartbeats)] == [("a",), ("a", "b")]
    assert coordinator.describe_group().members[0].topics == ("a", "b")


def test_second_query_is_refused_within_seconds_while_the_first_lives(coordinator: Coordinator) -> None:
    """S5: of two running queries with one id the second is refused; the message names the group and its owner."""
    first, second = coordinator.query(client_id="nightly"), coordinator.query()
    coordinator.run(first, until_s=coordinator.now_s + 20)
    begun_s = coordinator.now_s
    coordinator.run(first, second, until_s=begun_s + 6)
    with pytest.raises(GroupInUseError, match=r"'g'.*'nightly' on host 'h7'"):
        second.admit()
    first.admit()


def test_query_that_waits_for_a_killed_one_gets_the_group_when_its_session_ends(coordinator: Coordinator) -> None:
    """S5: a query restarted after SIGKILL waits for the session, and no longer than that."""
    killed, next_one = coordinator.query(), coordinator.query()
    coordinator.run(killed, until_s=coordinator.now_s + 5)
    begun_s = coordinator.now_s
    coordinator.run(next_one, until_s=begun_s + 5)
    assert not admitted(next_one)
    assert not refused(next_one)
    coordinator.run(next_one, until_s=begun_s + 11)
    assert admitted(next_one)


def test_waiting_query_is_not_misled_by_a_last_heartbeat(coordinator: Coordinator) -> None:
    """S5: a stopping query may send one more heartbeat while the next one begins."""
    stopping, next_one = coordinator.query(), coordinator.query()
    coordinator.run(stopping, until_s=coordinator.now_s + 5)
    next_one.step()
    coordinator.now_s += 0.5
    stopping.step()
    coordinator.run(next_one, until_s=coordinator.now_s + 2)
    assert not refused(next_one)
    stopping.say_goodbye()
    coordinator.run(next_one, until_s=coordinator.now_s + 1)
    assert admitted(next_one)


@pytest.mark.parametrize("broker_id", [1, 2])
def test_waiting_query_is_not_misled_by_a_new_coordinator(coordinator: Coordinator, broker_id: int) -> None:
    """S5: a successor counts every session from the beginning; a dead query remains dead."""
    killed, next_one = coordinator.query(), coordinator.query()
    coordinator.run(killed, until_s=coordinator.now_s + 5)
    coordinator.run(next_one, until_s=coordinator.now_s + 4)
    coordinator.hand_over()
    coordinator.broker_id = broker_id
    coordinator.run(next_one, until_s=coordinator.now_s + 14)
    assert not refused(next_one)
    coordinator.run(next_one, until_s=coordinator.now_s + 2)
    assert admitted(next_one)


def test_query_is_refused_by_live_consumers(coordinator: Coordinator) -> None:
    """S5: a group that consumers share is not available to a query."""
    member = GroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, topics=("t",), client_id="worker")
    epoch = coordinator.heartbeat(member).member_epoch
    query = coordinator.query()
    for _ in range(8):
        coordinator.run(query, until_s=coordinator.now_s + 1)
        answer = coordinator.group.heartbeat(
            GroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch), coordinator.now_ms
        )
        epoch = answer.member_epoch
        coordinator.work()
    with pytest.raises(GroupInUseError, match="worker"):
        query.admit()


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), UnknownServerError("a defect of the broker")])
def test_query_begins_without_a_coordinator_and_is_refused_later_if_it_must(
    coordinator: Coordinator, error: PylogError
) -> None:
    """S5/W26: while no coordinator answers the query continues to read, and its progress waits."""
    coordinator.error = error
    query, other = coordinator.query(), coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 9)
    assert not admitted(query)
    coordinator.run(query, until_s=coordinator.now_s + 2)
    query.admit()
    with pytest.raises(CoordinatorNotAvailableError):
        query.signature()
    coordinator.error = None
    coordinator.run(other, until_s=coordinator.now_s + 1)
    coordinator.run(query, other, until_s=coordinator.now_s + 8)
    with pytest.raises(GroupInUseError):
        query.admit()


def test_query_keeps_its_group_while_the_coordinator_is_away_for_less_than_its_session(
    coordinator: Coordinator,
) -> None:
    """W26: a pause changes nothing."""
    query = coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 5)
    before = query.signature()
    coordinator.error = CoordinatorNotAvailableError("away")
    coordinator.run(query, until_s=coordinator.now_s + 5)
    query.admit()
    coordinator.error = None
    coordinator.run(query, until_s=coordinator.now_s + 5)
    assert query.signature()[:2] == before[:2]


def test_frozen_query_joins_again_or_fails_if_another_took_its_place(coordinator: Coordinator) -> None:
    """S5: of two queries that both believe to own the group one continues, and the other fails."""
    frozen, other = coordinator.query(), coordinator.query()
    coordinator.run(frozen, until_s=coordinator.now_s + 5)
    member_id = frozen.signature().member_id
    coordinator.now_s += 30
    coordinator.run(frozen, until_s=coordinator.now_s + 2)
    assert frozen.signature().member_id != member_id
    coordinator.now_s += 30
    coordinator.run(other, until_s=coordinator.now_s + 5)
    coordinator.run(frozen, other, until_s=coordinator.now_s + 8)
    with pytest.raises(GroupInUseError):
        frozen.admit()
    other.admit()


def test_query_that_is_refused_for_another_reason_fails_with_it(coordinator: Coordinator) -> None:
    """A refusal that a retry would not change ends the query."""
    coordinator.error = InvalidGroupIdError("no such name")
    query = coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 1)
    with pytest.raises(InvalidGroupIdError, match="no such name"):
        query.admit()


@pytest.mark.parametrize(("least_ms", "most_ms", "asked_ms"), [(20_000, 60_000, 20_000), (1_000, 5_000, 5_000)])
def test_query_uses_the_session_that_the_broker_allows(
    coordinator: Coordinator, least_ms: int, most_ms: int, asked_ms: int
) -> None:
    """A broker with other limits is no reason to fail."""
    coordinator.limits = Limits(min_session_ms=least_ms, max_session_ms=most_ms, max_members=10)
    coordinator.group = Group("g", coordinator.limits)
    query = coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 1)
    query.admit()
    assert coordinator.describe_group().members[0].session_timeout_ms == asked_ms


def test_query_keeps_its_membership_when_a_coordinator_is_away_for_longer_than_its_session(
    coordinator: Coordinator,
) -> None:
    """W26: a successor gives each member a new session. A query that waits for the group gains nothing by that."""
    query, other = coordinator.query(), coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 5)
    before = query.signature()
    coordinator.error = CoordinatorNotAvailableError("away")
    coordinator.run(query, other, until_s=coordinator.now_s + 25)
    coordinator.error = None
    coordinator.hand_over()
    coordinator.run(query, other, until_s=coordinator.now_s + 8)
    assert query.signature()[:2] == before[:2]
    with pytest.raises(GroupInUseError):
        other.admit()


def test_query_that_reads_nothing_for_long_stays_a_member(coordinator: Coordinator) -> None:
    """S5: `max.poll.interval.ms` is for consumers; a query's trigger may have any interval."""
    query = coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 5)
    before = query.signature()
    coordinator.run(query, until_s=coordinator.now_s + 400)
    assert query.signature()[:2] == before[:2]


def test_query_looks_up_the_coordinator_when_an_answer_is_outdated(coordinator: Coordinator) -> None:
    """A broker that coordinated the group before knows less than the query: its answers are ignored."""
    query = coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 5)
    assert coordinator.forgotten == 0
    epoch = query.signature().member_epoch
    coordinator.heartbeat = lambda request, **_: GroupHeartbeatResponse(  # type: ignore[method-assign]
        member_epoch=epoch - 1, heartbeat_interval_ms=3_000, session_timeout_ms=10_000
    )
    coordinator.run(query, until_s=coordinator.now_s + 5)
    assert coordinator.forgotten > 0
    assert query.signature().member_epoch == epoch


def test_removed_query_joins_again(coordinator: Coordinator) -> None:
    """A running query that an administrator removed gets the group back when its last lease has ended."""
    query = coordinator.query()
    coordinator.run(query, until_s=coordinator.now_s + 5)
    coordinator.group.remove([query.signature().member_id])
    coordinator.run(query, until_s=coordinator.now_s + 3)
    with pytest.raises(CoordinatorNotAvailableError):
        query.signature()
    coordinator.run(query, until_s=coordinator.now_s + 12)
    query.admit()
    query.signature()


def test_query_thread_joins_and_leaves_at_once_when_it_is_stopped() -> None:
    """S5: an orderly stop frees the group at once; no thread is left."""
    before = threading.active_count()
    coordinator = Coordinator()
    first, second = coordinator.query(clock=CLOCK), coordinator.query(clock=CLOCK)
    first.start()
    first.admit()
    first.stop_heartbeats()
    first.leave(LIMIT_S)
    assert coordinator.heartbeats[-1].member_epoch == LEAVES
    second.start()
    second.admit()
    second.leave(LIMIT_S)
    assert threading.active_count() == before


def test_query_whose_thread_broke_fails() -> None:
    """W16: a query whose group membership nobody maintains must not continue silently."""
    coordinator = Coordinator()
    coordinator.heartbeat = lambda request, **_: 1 // 0  # type: ignore[assignment, method-assign]
    query = coordinator.query(clock=CLOCK)
    query.start()
    with pytest.raises(ZeroDivisionError):
        query.admit()
    query.leave(LIMIT_S)


def test_refused_query_does_not_disturb_the_other() -> None:
    """A refused query has nothing to leave: it is no member, and its thread has ended."""
    coordinator = Coordinator()
    coordinator.error = InvalidGroupIdError("no")
    query = coordinator.query(clock=CLOCK)
    query.start()
    with pytest.raises(InvalidGroupIdError):
        query.admit()
    query.leave(LIMIT_S)
    assert coordinator.heartbeats == []


def test_query_leaves_when_it_is_stopped_while_its_thread_holds_the_lock() -> None:
    """S5: SIGTERM interrupts the main thread anywhere; its handler must not wait for a lock of that thread."""
    coordinator = Coordinator()
    query = coordinator.query(clock=CLOCK)
    query.start()
    query.admit()
    with query._changed:
        query.stop_heartbeats()
        query.signature()
        query.leave(LIMIT_S)
        assert coordinator.heartbeats[-1].member_epoch == LEAVES
