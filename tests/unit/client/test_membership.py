"""What a group member sends, and what it does with the answers; time is a number here."""

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
from pyspark_log.client.consumer.membership import Granted, Membership, Phase, Sent, Stay, TargetAssignment

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


def assigned(epoch: int, *numbers: int) -> TargetAssignment:
    return TargetAssignment(epoch, frozenset(Granted(TopicPartition("t", number), TOPIC_ID) for number in numbers))


def answer(
    epoch: int, *numbers: int, same: bool = False, settled: bool = True, interval_ms: int = 2000
) -> GroupHeartbeatResponse:
    """``same``: the assignment equals the one that the member reported."""
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
    """A member that holds these in epoch 1, last answered at 0."""
    machine = made(instance_id=instance_id, max_poll_interval_ms=max_poll_interval_ms)
    machine.join(["t"], 0.0)
    machine.answered(sent(machine, 0.0), answer(1, *numbers), 0.0)
    assert machine.carried_out(assigned(1, *numbers), 0.0)
    machine.answered(sent(machine, 0.0), answer(1, same=True), 0.0)
    return machine


# --- joining --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["consumer", "spark"])
def test_long_names_are_cut_to_the_limits_of_a_heartbeat(kind: MemberKind) -> None:
    """Bad input: names are for display, and no reason for the group to refuse the member."""
    machine = Membership(Stay(group_id="g", kind=kind, client_id="c" * 300, client_host="h" * 300))
    machine.join(["t"], 0.0)
    request = sent(machine, 0.0).request
    assert (request.client_id, request.client_host) == ("c" * 255, "h" * 255)
    assert decode(encode(request), GroupHeartbeatRequest) == request


def test_member_joins_gets_an_assignment_and_acknowledges() -> None:
    """W21: it reports epoch 0 until it has an assignment, and acknowledges at once when it has carried it out."""
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
    assert (machine.phase, machine.pending, machine.is_settled) == (Phase.MEMBER, assigned(1, 0, 1), False)
    assert machine.has_news
    assert machine.identity == ("m1", 1)
    assert machine.carried_out(assigned(1, 0, 1), 0.3)
    assert (machine.pending, machine.is_settled, machine.has_news) == (None, True, False)
    assert sent(machine, 0.3).request.member_epoch == 1


def test_added_partitions_are_acknowledged_without_the_caller() -> None:
    """W22: a busy caller holds up nobody."""
    machine = member(0)
    machine.answered(sent(machine, 2.0), answer(2, 0, 1), 2.0)
    assert sent(machine, 2.0).request.member_epoch == 2
    assert machine.pending == assigned(2, 0, 1)


def test_revoked_partitions_are_acknowledged_when_the_caller_has_released_them() -> None:
    """W24: until then the member reports its old epoch, and gets the assignment again and again."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(2, 0, interval_ms=200), 2.0)
    for now_s in (2.25, 2.5):
        again = sent(machine, now_s)
        assert again.request.member_epoch == 1
        machine.answered(again, answer(2, 0, interval_ms=200), now_s)
        assert machine.pending == assigned(2, 0)
    assert machine.carried_out(assigned(2, 0), 2.6)
    assert sent(machine, 2.6).request.member_epoch == 2


def test_caller_that_carried_out_an_older_epoch_reads_nothing_of_it() -> None:
    """W24: the newer assignment counts, and is acknowledged only when the caller holds nothing else."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(2, 0, 2), 2.0)  # the caller is working on it: 1 is revoked, 2 is added
    machine.answered(sent(machine, 4.0), answer(3, 1, 2), 4.0)
    assert not machine.carried_out(assigned(2, 0, 2), 4.1)
    request = sent(machine, 6.0)
    assert request.request.member_epoch == 1
    machine.answered(request, answer(3, 1, 2), 6.0)
    assert machine.pending == assigned(3, 1, 2)
    assert machine.carried_out(assigned(3, 1, 2), 6.1)
    assert sent(machine, 6.1).request.member_epoch == 3


def test_caller_that_released_what_a_newer_epoch_revokes_has_carried_it_out_too() -> None:
    """W22: nobody waits for the caller once more."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(2, 0, 2), 2.0)
    machine.answered(sent(machine, 4.0), answer(3, 0), 4.0)
    assert not machine.carried_out(assigned(2, 0, 2), 4.1)
    assert sent(machine, 4.1).request.member_epoch == 3


def test_newer_epoch_is_acknowledged_if_it_revokes_nothing_held() -> None:
    """W24: the caller has not begun to read what was added in between."""
    machine = member(0)
    machine.answered(sent(machine, 2.0), answer(2, 0, 1), 2.0)
    machine.answered(sent(machine, 2.0), answer(3, 0), 2.1)
    assert sent(machine, 2.2).request.member_epoch == 3
    assert not machine.carried_out(assigned(2, 0, 1), 2.3)  # so it must not begin to read 1
    assert machine.pending == assigned(3, 0)


def test_changed_subscription_is_sent_at_once() -> None:
    """W16: this holds for a change during a heartbeat, too."""
    machine = member(0)
    machine.subscribe_to(["t"], 0.5)
    assert machine.next_request(0.5) is None
    machine.subscribe_to(["t", "u"], 0.5)
    request = sent(machine, 0.5)
    assert request.request.topics == ("t", "u")
    machine.subscribe_to(["u"], 0.6)
    machine.answered(request, answer(1, same=True), 0.6)
    assert sent(machine, 0.6).request.topics == ("u",)


def test_interval_is_the_answers_within_bounds() -> None:
    """W21: neither do heartbeats flood the coordinator, nor does the session end between two."""
    for interval_ms, expected_s in ((200, 0.2), (0, 0.05), (60_000, SESSION_S / 3)):
        machine = member(0)
        machine.answered(sent(machine, 2.0), answer(1, same=True, interval_ms=interval_ms), 2.0)
        assert machine.next_request(2.0 + expected_s - 0.01) is None
        assert machine.wait_s(2.0) == pytest.approx(expected_s)
        sent(machine, 2.0 + expected_s + 0.001)
    assert made().request_limit_s < SESSION_S / 3


# --- the lease ------------------------------------------------------------------------------------------------


def test_lease_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    """W24: the coordinator received it later, so the lease never ends later here than there."""
    machine = member(0)
    assert machine.lease_until_s == SESSION_S
    machine.answered(sent(machine, 2.0), answer(1, same=True), 4.5)
    assert machine.lease_until_s == 2.0 + SESSION_S
    assert machine.next_request(4.51) is None  # a slow answer is no reason to hurry


def test_lost_answer_extends_nothing_and_the_heartbeat_is_sent_again() -> None:
    """W24: it is unknown whether the heartbeat was received."""
    machine = member(0)
    machine.failed(sent(machine, 2.0), NetworkError("broke"), 3.0)
    assert (machine.phase, machine.lease_until_s) == (Phase.MEMBER, SESSION_S)
    assert isinstance(machine.failure, NetworkError)
    assert machine.next_request(3.0) is None
    again = sent(machine, 3.2)
    assert (again.request.member_id, again.request.member_epoch, again.request.topics) == ("m1", 1, ("t",))
    machine.answered(again, answer(1, same=True), 3.3)
    assert (machine.lease_until_s, machine.failure) == (3.2 + SESSION_S, None)


def test_join_is_repeated_by_the_same_member_when_its_answer_was_lost() -> None:
    """W23: the member does not become two."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.failed(sent(machine, 0.0), CoordinatorNotAvailableError("nobody"), 0.1)
    again = sent(machine, 1.0)
    assert (again.request.member_id, again.request.member_epoch) == ("m1", 0)


@pytest.mark.parametrize("notices", ["next_request", "check", "failed"])
def test_ended_lease_loses_everything_for_good(notices: str) -> None:
    """W24: nothing is returned and no answer restores the lease; a farewell is sent, and the caller's next call
    joins again.
    """
    machine = member(0)
    late = sent(machine, 5.0)
    if notices == "next_request":
        machine.next_request(SESSION_S)
    elif notices == "check":
        machine.check(SESSION_S)
    else:
        machine.failed(late, NetworkError("broke"), SESSION_S)
    assert (machine.phase, machine.lease_until_s, machine.has_news) == (Phase.LOST, -inf, True)
    assert (machine.pending, machine.identity) == (None, ("m1", 1))  # by which it is refused
    machine.answered(late, answer(1, same=True), SESSION_S + 0.1)
    assert (machine.phase, machine.lease_until_s) == (Phase.LOST, -inf)
    with pytest.raises(UnknownMemberIdError, match=r"session\.timeout\.ms"):
        machine.signature()
    farewell = sent(machine, SESSION_S + 1)
    assert (farewell.request.member_id, farewell.request.member_epoch) == ("m1", -1)
    machine.answered(farewell, answer(-1), SESSION_S + 1)
    assert machine.next_request(SESSION_S + 2) is None  # the caller has not noticed yet
    machine.rejoin(SESSION_S + 2)
    join = sent(machine, SESSION_S + 2)
    assert (join.request.member_id, join.request.member_epoch, join.request.topics) == ("m2", 0, ("t",))


def test_member_that_joins_again_says_farewell_first() -> None:
    """W23: its partitions are free before the old session ends; the farewell is repeated until then."""
    machine = member(0)
    machine.check(SESSION_S)
    machine.rejoin(SESSION_S)
    farewell = sent(machine, SESSION_S)
    assert farewell.request.member_epoch == -1
    machine.failed(farewell, CoordinatorNotAvailableError("nobody"), SESSION_S)
    assert sent(machine, SESSION_S + 1).request.member_epoch == -1
    assert sent(machine, 2 * SESSION_S).request.member_id == "m2"


def test_answer_that_took_longer_than_the_lease_is_no_lease() -> None:
    """W24: the process was frozen."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.answered(sent(machine, 0.0), answer(1, 0), SESSION_S + 1)
    assert machine.phase is Phase.LOST


def test_answers_to_older_requests_are_ignored() -> None:
    """W24: they neither extend leases nor change assignments."""
    machine = member(0)
    old = sent(machine, 2.0)
    machine.failed(old, NetworkError("broke"), 2.5)
    new = sent(machine, 3.0)
    machine.answered(old, answer(9, 5), 3.1)
    machine.failed(old, UnknownMemberIdError("gone"), 3.1)
    assert (machine.phase, machine.pending, machine.lease_until_s) == (Phase.MEMBER, None, SESSION_S)
    machine.answered(new, answer(1, same=True), 3.2)
    assert machine.lease_until_s == 3.0 + SESSION_S


def test_answers_to_a_former_member_id_are_ignored() -> None:
    """W24: a member id is used only once."""
    machine = member(0)
    old = sent(machine, 2.0)
    machine.check(SESSION_S)
    machine.rejoin(SESSION_S)
    machine.answered(old, answer(5, 0, 1), SESSION_S)
    assert (machine.phase, machine.pending) == (Phase.JOINING, None)


def test_answer_of_a_former_coordinator_is_ignored() -> None:
    """W24: its assignment may be outdated, and its answer extends no lease."""
    machine = member(0, 1)
    machine.answered(sent(machine, 2.0), answer(3, 0), 2.0)
    machine.carried_out(assigned(3, 0), 2.0)
    assert not machine.answered(sent(machine, 3.0), answer(2, 0, 1), 3.0)
    assert (machine.pending, machine.lease_until_s) == (None, 2.0 + SESSION_S)
    assert sent(machine, 3.2).request.member_epoch == 3


def test_repeated_answers_change_nothing() -> None:
    """W24: a repeated assignment is not a new one."""
    machine = member(0)
    for now_s in (2.0, 4.0):
        machine.answered(sent(machine, now_s), answer(1, 0), now_s)
        assert (machine.pending, machine.member_epoch) == (None, 1)


# --- refused, forgotten ---------------------------------------------------------------------------------------


def test_forgotten_member_loses_everything_and_joins_again() -> None:
    """W24: it sends no farewell, as it is no member."""
    machine = member(0)
    machine.failed(sent(machine, 2.0), UnknownMemberIdError("gone"), 2.0)
    assert (machine.phase, machine.lease_until_s) == (Phase.LOST, -inf)
    assert machine.next_request(3.0) is None
    machine.rejoin(3.0)
    assert sent(machine, 3.0).request.member_id == "m2"


def test_member_forgotten_before_its_first_assignment_joins_again_by_itself() -> None:
    """W21: a dead coordinator had the member in memory only; there is nothing to lose."""
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
    """W24: nothing is returned or sent any more."""
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
    """W24: this lasts until the lease ends."""
    machine = member(0)
    machine.failed(sent(machine, 2.0), UnknownServerError("a defect"), 2.0)
    assert machine.phase is Phase.MEMBER


# --- the caller is away ---------------------------------------------------------------------------------------


def test_caller_that_does_not_poll_loses_its_partitions() -> None:
    """W23: others get the partitions although the process lives; the next poll joins again."""
    machine = member(0, max_poll_interval_ms=2500)
    machine.answered(sent(machine, 2.0), answer(1, same=True), 2.0)
    assert machine.wait_s(2.0) == pytest.approx(0.5)
    assert machine.next_request(2.4) is None
    farewell = sent(machine, 2.5)
    assert (farewell.request.member_epoch, machine.phase, machine.lease_until_s) == (-1, Phase.LOST, -inf)
    machine.answered(farewell, answer(-1), 2.5)
    with pytest.raises(UnknownMemberIdError, match=r"max\.poll\.interval\.ms"):
        machine.signature()
    machine.rejoin(100.0)
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
    """W23: a static member leaves temporarily."""
    machine = member(0, instance_id=instance_id)
    machine.leave(1.0)
    farewell = sent(machine, 1.0)
    assert (farewell.request.member_epoch, farewell.request.instance_id) == (epoch, instance_id)
    machine.failed(farewell, NetworkError("broke"), 1.1)
    assert machine.phase is Phase.LEAVING
    machine.answered(sent(machine, 2.0), answer(epoch), 2.0)
    assert (machine.phase, machine.next_request(3.0)) == (Phase.OUT, None)


def test_unknown_member_has_left() -> None:
    """W23: this holds for a member that nobody answers, too."""
    machine = member(0)
    machine.leave(1.0)
    machine.failed(sent(machine, 1.0), UnknownMemberIdError("gone"), 1.0)
    assert machine.phase is Phase.OUT
    machine = member(0)
    machine.leave(1.0)
    machine.give_up_leaving()
    assert (machine.phase, machine.next_request(9.0)) == (Phase.OUT, None)


def test_member_that_never_sent_a_heartbeat_leaves_at_once() -> None:
    """W23: there is nobody to inform."""
    machine = made()
    machine.join(["t"], 0.0)
    machine.leave(0.0)
    assert (machine.phase, machine.next_request(1.0)) == (Phase.OUT, None)


def test_heartbeat_that_is_answered_while_the_member_leaves_is_ignored() -> None:
    """W23: the farewell counts."""
    machine = member(0)
    late = sent(machine, 2.0)
    machine.leave(2.1)
    machine.answered(late, answer(2, 0, 1), 2.2)
    assert (machine.phase, machine.pending) == (Phase.LEAVING, None)
    assert sent(machine, 2.2).request.member_epoch == -1


def test_commits_are_signed_with_the_last_epoch_and_a_rising_number() -> None:
    """W18: a late commit takes nothing back; a new member counts from the beginning."""
    machine = member(0, 1)
    assert machine.signature() == ("m1", 1, 0)
    machine.answered(sent(machine, 2.0), answer(2, 0), 2.0)
    assert machine.signature() == ("m1", 2, 1)  # received, not carried out yet: commits of revoked partitions are valid
    machine.failed(sent(machine, 4.0), UnknownMemberIdError("gone"), 4.0)
    machine.rejoin(4.0)
    machine.answered(sent(machine, 4.5), answer(7, 0), 4.5)
    assert machine.signature() == ("m2", 7, 0)
