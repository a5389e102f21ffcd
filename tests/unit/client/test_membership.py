"""What a member of a group sends, and what it makes of the answers; time is a number here."""

from __future__ import annotations

import itertools
import random
from math import inf

import pytest

from broker_runtime.contract.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupInUseError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NetworkError,
    PylogError,
    UnknownMemberIdError,
    UnknownServerError,
)
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import (
    AssignedPartitions,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    MemberKind,
    decode,
    encode,
)
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.consumer.membership import Granted, Membership, Phase, Sent, Stay, Told

TOPIC_ID = b"t" * 16
SESSION_S = 6.0


def made(*, instance_id: str | None = None, max_poll_interval_ms: int = 300_000) -> Membership:
    ids = itertools.count(1)
    return Membership(
        Stay(
            group_id="g",
            instance_id=instance_id,
            session_timeout_ms=int(SESSION_S * 1000),
            max_poll_interval_ms=max_poll_interval_ms,
        ),
        new_member_id=lambda: f"m{next(ids)}",
        backoff=Backoff(first_s=0.1, limit_s=0.5, rng=random.Random(1)),
    )


def told(epoch: int, *numbers: int) -> Told:
    return Told(epoch, frozenset(Granted(TopicPartition("t", number), TOPIC_ID) for number in numbers))


def answer(
    epoch: int, *numbers: int, same: bool = False, settled: bool = True, interval_ms: int = 2000
) -> GroupHeartbeatResponse:
    """``same``: the assignment is as the member said."""
    assignment = (AssignedPartitions(topic="t", topic_id=TOPIC_ID, partitions=numbers),) if numbers else ()
    return GroupHeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=interval_ms,
        session_timeout_ms=int(SESSION_S * 1000),
        assignment=None if same else assignment,
        is_settled=settled,
    )


def sent(machine: Membership, now_s: float) -> Sent:
    request = machine.next_request(now_s)
    assert request is not None
    return request


def member(*numbers: int, instance_id: str | None = None, max_poll_interval_ms: int = 300_000) -> Membership:
    """Holds these in epoch 1; heard of at 0."""
    machine = made(instance_id=instance_id, max_poll_interval_ms=max_poll_interval_ms)
    machine.join(["t"], 0.0)
    machine.answered(sent(machine, 0.0), answer(1, *numbers), 0.0)
    assert machine.carried_out(told(1, *numbers), 0.0)
    machine.answered(sent(machine, 0.0), answer(1, same=True), 0.0)
    return machine


# --- joining --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["consumer", "spark"])
def test_long_names_are_cut_to_what_a_heartbeat_may_say(kind: MemberKind) -> None:
    """Bad input: they are for display, and no reason to be refused by the group."""
    machine = Membership(Stay(group_id="g", kind=kind, client_id="c" * 300, client_host="h" * 300))
    machine.join(["t"], 0.0)
    request = sent(machine, 0.0).request
    assert (request.client_id, request.client_host) == ("c" * 255, "h" * 255)
    assert decode(encode(request), GroupHeartbeatRequest) == request


def test_member_joins_is_told_and_acknowledges() -> None:
    """W21: it says epoch 0 until it is told something, and at once when it holds what it was told."""
    machine = made()
    assert (machine.phase, machine.next_request(0.0), machine.signature()) == (Phase.OUT, None, None)
    machine.join(["u", "t"], 0.0)
    first = sent(machine, 0.0)
    assert (first.request.member_epoch, first.request.member_id, first.request.topics) == (0, "m1", ("t", "u"))
    machine.answered(first, answer(0, same=True, settled=False, interval_ms=200), 0.01)
    assert (machine.phase, machine.was_answered, machine.has_assignment) == (Phase.JOINING, True, False)
    assert machine.next_request(0.1) is None
    second = sent(machine, 0.2)
    assert (second.request.member_epoch, second.request.member_id) == (0, "m1")
    machine.answered(second, answer(1, 0, 1), 0.21)
    assert (machine.phase, machine.pending, machine.is_settled) == (Phase.MEMBER, told(1, 0, 1), False)
    assert machine.has_news
    assert machine.identity == ("m1", 1)
    assert machine.carried_out(told(1, 0, 1), 0.3)
    assert (machine.pending, machine.is_settled, machine.has_news) == (None, True, False)
    assert sent(machine, 0.3).request.member_epoch == 1


def test_what_is_only_added_is_acknowledged_without_the_caller() -> None:
    """W22: a caller who is busy holds up nobody."""
    machine = member(0)
    machine.answered(sent(machine, 2.0), answer(2, 0, 1), 2.0)
    assert sent(machine, 2.0).request.member_epoch == 2
    assert machine.pending == told(2, 0, 1)


def test_what_is_taken_away_is_acknowledged_when_the_caller_has_released_it() -> None:
    """W24: until then the member says its old epoch, and is told again and again."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(2, 0, interval_ms=200), 2.0)
    for now_s in (2.25, 2.5):
        again = sent(machine, now_s)
        assert again.request.member_epoch == 1
        machine.answered(again, answer(2, 0, interval_ms=200), now_s)
        assert machine.pending == told(2, 0)
    assert machine.carried_out(told(2, 0), 2.6)
    assert sent(machine, 2.6).request.member_epoch == 2


def test_caller_that_carried_out_an_older_epoch_begins_nothing_of_it() -> None:
    """W24: what came meanwhile counts, and is acknowledged only when the caller holds nothing else."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(2, 0, 2), 2.0)  # the caller is at it: 1 goes, 2 comes
    machine.answered(sent(machine, 4.0), answer(3, 1, 2), 4.0)
    assert not machine.carried_out(told(2, 0, 2), 4.1)
    request = sent(machine, 6.0)
    assert request.request.member_epoch == 1
    machine.answered(request, answer(3, 1, 2), 6.0)
    assert machine.pending == told(3, 1, 2)
    assert machine.carried_out(told(3, 1, 2), 6.1)
    assert sent(machine, 6.1).request.member_epoch == 3


def test_caller_that_released_what_a_newer_epoch_takes_has_carried_that_out_too() -> None:
    """W22: nobody waits for the caller once more."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(2, 0, 2), 2.0)
    machine.answered(sent(machine, 4.0), answer(3, 0), 4.0)
    assert not machine.carried_out(told(2, 0, 2), 4.1)
    assert sent(machine, 4.1).request.member_epoch == 3


def test_epoch_that_came_meanwhile_is_acknowledged_if_it_takes_nothing_that_is_held() -> None:
    """W24: of what was added in between, the caller has begun nothing."""
    machine = member(0)
    machine.answered(sent(machine, 2.0), answer(2, 0, 1), 2.0)
    machine.answered(sent(machine, 2.0), answer(3, 0), 2.1)
    assert sent(machine, 2.2).request.member_epoch == 3
    assert not machine.carried_out(told(2, 0, 1), 2.3)  # so it must not begin 1
    assert machine.pending == told(3, 0)


def test_subscription_that_changes_is_told_at_once() -> None:
    """W16: also when it changes while a heartbeat is under way."""
    machine = member(0)
    machine.subscribe_to(["t"], 0.5)
    assert machine.next_request(0.5) is None
    machine.subscribe_to(["t", "u"], 0.5)
    request = sent(machine, 0.5)
    assert request.request.topics == ("t", "u")
    machine.subscribe_to(["u"], 0.6)
    machine.answered(request, answer(1, same=True), 0.6)
    assert sent(machine, 0.6).request.topics == ("u",)


def test_interval_is_the_answers_and_never_none_nor_beyond_a_third_of_the_session() -> None:
    """W21: no storm of heartbeats, and no session that ends between two."""
    for interval_ms, expected_s in ((200, 0.2), (0, 0.05), (60_000, SESSION_S / 3)):
        machine = member(0)
        machine.answered(sent(machine, 2.0), answer(1, same=True, interval_ms=interval_ms), 2.0)
        assert machine.next_request(2.0 + expected_s - 0.01) is None
        assert machine.wait_s(2.0) == pytest.approx(expected_s)
        sent(machine, 2.0 + expected_s + 0.001)
    assert made().request_limit_s < SESSION_S / 3


# --- the lease ------------------------------------------------------------------------------------------------


def test_lease_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    """W24: the coordinator received it later, so it never ends later here than there."""
    machine = member(0)
    assert machine.lease_until_s == SESSION_S
    machine.answered(sent(machine, 2.0), answer(1, same=True), 4.5)
    assert machine.lease_until_s == 2.0 + SESSION_S
    assert machine.next_request(4.51) is None  # a slow answer is no reason to hurry


def test_lost_answer_extends_nothing_and_the_heartbeat_is_sent_again() -> None:
    """W24: whether it was received is not known."""
    machine = member(0)
    machine.failed(sent(machine, 2.0), NetworkError("broke"), 3.0)
    assert (machine.phase, machine.lease_until_s) == (Phase.MEMBER, SESSION_S)
    assert isinstance(machine.failure, NetworkError)
    assert machine.next_request(3.0) is None
    again = sent(machine, 3.2)
    assert (again.request.member_id, again.request.member_epoch, again.request.topics) == ("m1", 1, ("t",))
    machine.answered(again, answer(1, same=True), 3.3)
    assert (machine.lease_until_s, machine.failure) == (3.2 + SESSION_S, None)


def test_join_whose_answer_was_lost_is_repeated_by_the_same_member() -> None:
    """W23: it does not become two."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.failed(sent(machine, 0.0), CoordinatorNotAvailableError("nobody"), 0.1)
    again = sent(machine, 1.0)
    assert (again.request.member_id, again.request.member_epoch) == ("m1", 0)


@pytest.mark.parametrize("notices", ["next_request", "check", "failed"])
def test_lease_that_ends_loses_everything_for_good(notices: str) -> None:
    """W24: nothing is handed out, no answer brings it back; a farewell, and a new stay when the caller knows."""
    machine = member(0)
    late = sent(machine, 5.0)
    if notices == "next_request":
        machine.next_request(SESSION_S)
    elif notices == "check":
        machine.check(SESSION_S)
    else:
        machine.failed(late, NetworkError("broke"), SESSION_S)
    assert (machine.phase, machine.lease_until_s, machine.has_news) == (Phase.LOST, -inf, True)
    assert (machine.pending, machine.identity) == (None, ("", -1))
    machine.answered(late, answer(1, same=True), SESSION_S + 0.1)
    assert (machine.phase, machine.lease_until_s) == (Phase.LOST, -inf)
    with pytest.raises(UnknownMemberIdError, match=r"session\.timeout\.ms"):
        machine.signature()
    farewell = sent(machine, SESSION_S + 1)
    assert (farewell.request.member_id, farewell.request.member_epoch) == ("m1", -1)
    machine.answered(farewell, answer(-1), SESSION_S + 1)
    assert machine.next_request(SESSION_S + 2) is None  # it is the caller's turn
    machine.join_anew(SESSION_S + 2)
    join = sent(machine, SESSION_S + 2)
    assert (join.request.member_id, join.request.member_epoch, join.request.topics) == ("m2", 0, ("t",))


def test_member_that_joins_anew_says_farewell_first() -> None:
    """W23: so that what it held is free before the old session ends; for as long as that lasts."""
    machine = member(0)
    machine.check(SESSION_S)
    machine.join_anew(SESSION_S)
    farewell = sent(machine, SESSION_S)
    assert farewell.request.member_epoch == -1
    machine.failed(farewell, CoordinatorNotAvailableError("nobody"), SESSION_S)
    assert sent(machine, SESSION_S + 1).request.member_epoch == -1
    assert sent(machine, 2 * SESSION_S).request.member_id == "m2"


def test_answer_that_took_longer_than_the_lease_is_no_lease() -> None:
    """W24: a process that stood still."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.answered(sent(machine, 0.0), answer(1, 0), SESSION_S + 1)
    assert machine.phase is Phase.LOST


def test_answers_to_older_requests_are_nothing() -> None:
    """W24: neither leases nor assignments."""
    machine = member(0)
    old = sent(machine, 2.0)
    machine.failed(old, NetworkError("broke"), 2.5)
    new = sent(machine, 3.0)
    machine.answered(old, answer(9, 5), 3.1)
    machine.failed(old, UnknownMemberIdError("gone"), 3.1)
    assert (machine.phase, machine.pending, machine.lease_until_s) == (Phase.MEMBER, None, SESSION_S)
    machine.answered(new, answer(1, same=True), 3.2)
    assert machine.lease_until_s == 3.0 + SESSION_S


def test_answers_of_a_former_stay_are_nothing() -> None:
    """W24: a member id serves once."""
    machine = member(0)
    old = sent(machine, 2.0)
    machine.check(SESSION_S)
    machine.join_anew(SESSION_S)
    machine.answered(old, answer(5, 0, 1), SESSION_S)
    assert (machine.phase, machine.pending) == (Phase.JOINING, None)


def test_answer_of_who_was_the_coordinator_before_is_not_believed() -> None:
    """W24: what it tells may be others' by now, and its word is no lease."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(3, 0), 2.0)
    machine.carried_out(told(3, 0), 2.0)
    assert not machine.answered(sent(machine, 3.0), answer(2, 0, 1), 3.0)
    assert (machine.pending, machine.lease_until_s) == (None, 2.0 + SESSION_S)
    assert sent(machine, 3.2).request.member_epoch == 3


def test_repeated_answers_change_nothing() -> None:
    """W24: told again is not given again."""
    machine = member(0)
    for now_s in (2.0, 4.0):
        machine.answered(sent(machine, now_s), answer(1, 0), now_s)
        assert (machine.pending, machine.member_epoch) == (None, 1)


# --- refused, forgotten ---------------------------------------------------------------------------------------


def test_member_that_the_group_forgot_loses_everything_and_joins_anew() -> None:
    """W24: without a farewell, because it is no member."""
    machine = member(0)
    machine.failed(sent(machine, 2.0), UnknownMemberIdError("gone"), 2.0)
    assert (machine.phase, machine.lease_until_s) == (Phase.LOST, -inf)
    assert machine.next_request(3.0) is None
    machine.join_anew(3.0)
    assert sent(machine, 3.0).request.member_id == "m2"


def test_member_that_was_told_nothing_yet_and_is_forgotten_joins_anew_by_itself() -> None:
    """W21: a coordinator that died knew it in memory only; there is nothing to lose."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.answered(sent(machine, 0.0), answer(0, same=True, interval_ms=200), 0.0)
    machine.failed(sent(machine, 0.2), UnknownMemberIdError("gone"), 0.2)
    assert (machine.phase, machine.has_news) == (Phase.JOINING, False)
    assert machine.next_request(0.2) is None
    again = sent(machine, 1.0)
    assert (again.request.member_id, again.request.member_epoch) == ("m2", 0)


@pytest.mark.parametrize(
    "error",
    [
        FencedInstanceIdError("another"),
        GroupInUseError("spark"),
        GroupMaxSizeReachedError("full"),
        InvalidSessionTimeoutError("too short"),
        InvalidGroupIdError("no"),
    ],
    ids=lambda error: error.code,
)
@pytest.mark.parametrize("has_joined", [False, True])
def test_refusal_ends_the_membership_and_is_kept_for_the_caller(error: PylogError, has_joined: bool) -> None:
    """W24: nothing is handed out any more, nothing is sent any more."""
    machine = member(0) if has_joined else made()
    if not has_joined:
        machine.join(["t"], 0.0)
    machine.failed(sent(machine, 2.0), error, 2.0)
    assert (machine.phase, machine.refusal, machine.has_news) == (Phase.REFUSED, error, True)
    assert machine.lease_until_s == -inf
    assert machine.next_request(100.0) is None
    with pytest.raises(type(error)):
        machine.signature()
    machine.leave(100.0)
    assert (machine.phase, machine.next_request(100.0)) == (Phase.OUT, None)


def test_defect_of_the_broker_is_waited_out() -> None:
    """W24: until the lease ends."""
    machine = member(0)
    machine.failed(sent(machine, 2.0), UnknownServerError("a defect"), 2.0)
    assert machine.phase is Phase.MEMBER


# --- the caller is away ---------------------------------------------------------------------------------------


def test_caller_that_does_not_poll_loses_its_share() -> None:
    """W23: others get it, though the process lives; the next poll joins anew."""
    machine = member(0, max_poll_interval_ms=2500)
    machine.answered(sent(machine, 2.0), answer(1, same=True), 2.0)
    assert machine.wait_s(2.0) == pytest.approx(0.5)
    assert machine.next_request(2.4) is None
    farewell = sent(machine, 2.5)
    assert (farewell.request.member_epoch, machine.phase, machine.lease_until_s) == (-1, Phase.LOST, -inf)
    machine.answered(farewell, answer(-1), 2.5)
    with pytest.raises(UnknownMemberIdError, match=r"max\.poll\.interval\.ms"):
        machine.signature()
    machine.join_anew(100.0)
    assert sent(machine, 100.0).request.member_id == "m2"


def test_caller_that_waits_in_a_poll_or_asks_for_the_next_record_is_not_away() -> None:
    """W23."""
    machine = member(0, max_poll_interval_ms=2500)
    machine.is_polling = True
    machine.answered(sent(machine, 3.0), answer(1, same=True), 3.0)
    assert machine.phase is Phase.MEMBER
    machine.is_polling = False
    machine.polled_s = 3.0
    machine.check(5.4)
    assert machine.phase is Phase.MEMBER
    machine.check(5.5)
    assert machine.phase is Phase.LOST


# --- leaving, committing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_member_leaves_until_it_is_answered(instance_id: str | None, epoch: int) -> None:
    """W23: a static member for a while."""
    machine = member(0, instance_id=instance_id)
    machine.leave(1.0)
    farewell = sent(machine, 1.0)
    assert (farewell.request.member_epoch, farewell.request.instance_id) == (epoch, instance_id)
    machine.failed(farewell, NetworkError("broke"), 1.1)
    assert machine.phase is Phase.LEAVING
    machine.answered(sent(machine, 2.0), answer(epoch), 2.0)
    assert (machine.phase, machine.next_request(3.0)) == (Phase.OUT, None)


def test_member_that_nobody_knows_any_more_has_left() -> None:
    """W23: or that nobody answers."""
    machine = member(0)
    machine.leave(1.0)
    machine.failed(sent(machine, 1.0), UnknownMemberIdError("gone"), 1.0)
    assert machine.phase is Phase.OUT
    machine = member(0)
    machine.leave(1.0)
    machine.give_up_leaving()
    assert (machine.phase, machine.next_request(9.0)) == (Phase.OUT, None)


def test_member_that_never_sent_anything_just_leaves() -> None:
    """W23: there is nobody to tell."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.leave(0.0)
    assert (machine.phase, machine.next_request(1.0)) == (Phase.OUT, None)


def test_heartbeat_that_is_answered_while_the_member_leaves_is_nothing() -> None:
    """W23: the farewell counts."""
    machine = member(0)
    late = sent(machine, 2.0)
    machine.leave(2.1)
    machine.answered(late, answer(2, 0, 1), 2.2)
    assert (machine.phase, machine.pending) == (Phase.LEAVING, None)
    assert sent(machine, 2.2).request.member_epoch == -1


def test_commits_are_signed_with_the_epoch_told_last_and_a_rising_number() -> None:
    """W18: so that one that arrives late takes nothing back; a new member counts anew."""
    machine = member(0, 1)
    assert machine.signature() == ("m1", 1, 0)
    machine.answered(sent(machine, 2.0), answer(2, 0), 2.0)
    assert machine.signature() == ("m1", 2, 1)  # told, not carried out yet: commits of what goes are valid
    machine.failed(sent(machine, 4.0), UnknownMemberIdError("gone"), 4.0)
    machine.join_anew(4.0)
    machine.answered(sent(machine, 4.5), answer(7, 0), 4.5)
    assert machine.signature() == ("m2", 7, 0)
