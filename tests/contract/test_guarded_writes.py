"""One suite for ZooKeeper writes of unknown outcome, over a real ZooKeeper and the one in memory."""

import threading

import pytest
from kazoo.client import KazooClient

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.zookeeper.guarded import (
    Claim,
    Guard,
    GuardFailedError,
    Planned,
    barrier,
    change,
    has_happened,
    in_parts,
    version_over,
    write,
    write_most,
)
from broker_runtime.zookeeper.session import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NotEmptyError,
    SessionState,
    Set,
)
from broker_runtime.zookeeper.znodes import CHANGES

LOST_BEFORE, LOST_AFTER, LATE = "lost before", "lost after", "late"


class Unreliable:
    """Forwards everything. ``fates`` has the fate of each transaction, first to last: None; its request is lost, or
    its answer; it arrives only before this client's next one; or a function runs before it.
    """

    def __init__(self, client, *fates):
        self._client = client
        self.fates = list(fates)
        self.transactions = []
        self.is_connected = True
        self.breaks = False  # the connection breaks, with what is lost
        self._late = []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transaction(self, operations, *, session=None):
        self.transactions.append(list(operations))
        for late, its_session in self._late:
            self._client.transaction(late, session=its_session)
        self._late.clear()
        fate = self.fates.pop(0) if self.fates else None
        if callable(fate):
            fate()
        if fate == LATE:
            self._late.append((operations, session))
        elif fate != LOST_BEFORE:
            versions = self._client.transaction(operations, session=session)
        if fate in {LOST_BEFORE, LOST_AFTER, LATE}:
            self.is_connected = not self.breaks
            raise ZooKeeperUnavailableError("no answer")
        return versions


@pytest.fixture
def tree(connect):
    """A client that checks the tree, and acts as the other writer."""
    client = connect()
    client.create(CHANGES)
    return client


@pytest.fixture
def unreliable(connect, tree):
    """Creates clients whose transactions have these fates."""
    return lambda *fates: Unreliable(connect(), *fates)


def expire(client):
    """Expires the client's session, and returns when it has another."""
    if hasattr(client, "expire"):
        client.expire()
        return
    old, changed = client.session_id, threading.Event()
    client.listen(lambda news: changed.set() if news is SessionState.CONNECTED else None)
    thief = KazooClient(hosts=client._servers, client_id=client._client.client_id, timeout=4)
    thief.start(timeout=10)
    thief.stop()
    thief.close()
    while client.session_id in {0, old}:
        assert changed.wait(20)
        changed.clear()


def adding(client, word, *, path="/words", is_done=None):
    """A plan that adds a word to those in the znode, unless it is there; returns whether it had to."""

    def plan():
        node = client.find(path)
        words = [] if node is None else node.data.split()
        if word in words:
            return Planned(False)
        data = b" ".join([*words, word])
        operation = Create(path, data) if node is None else Set(path, data, node.version)
        return Planned(True, [operation], is_done)

    return plan


def words(client, path="/words"):
    node = client.find(path)
    return None if node is None else (node.data.decode(), node.version)


def add(client, word, **options):
    return change(client, adding(client, word), what="/words", **options)


# --- change -----------------------------------------------------------------------------------------------------------


def test_change_is_written_once_and_not_again_when_nothing_is_left_to_write(unreliable, tree):
    client = unreliable()
    assert add(client, b"a") is True
    assert add(client, b"a") is False
    assert (words(tree), len(client.transactions)) == (("a", 0), 1)


@pytest.mark.parametrize("before", [None, "b"])
def test_change_is_planned_again_from_a_fresh_read_after_another_writers(unreliable, tree, before):
    """Neither write is lost, whether the znode existed before or not."""
    if before is not None:
        tree.create("/words", before.encode())
    conflicts = []
    client = unreliable(lambda: add(tree, b"c"))
    add(client, b"a", on_conflict=conflicts.append)
    assert words(tree) == ("c a", 1) if before is None else ("b c a", 2)
    assert [type(each) for each in conflicts] == [NodeExistsError if before is None else BadVersionError]


def test_change_is_planned_again_when_the_znode_was_deleted(unreliable, tree):
    tree.create("/words", b"b")
    add(unreliable(lambda: tree.delete("/words")), b"a")
    assert words(tree) == ("a", 0)


@pytest.mark.parametrize("fate", [LOST_AFTER, LATE])
def test_change_whose_answer_was_lost_is_found_written(unreliable, tree, fate):
    """The effect of a request in flight is visible after the barrier: it is not written twice."""
    client = unreliable(fate)
    assert add(client, b"a") is False
    assert words(tree) == ("a", 0)
    assert len(client.transactions) == 2, "the write, and the barrier"


@pytest.mark.parametrize("fate", [LOST_AFTER, LATE])
def test_change_whose_answer_was_lost_is_read_back_when_possible(unreliable, tree, fate):
    client = unreliable(fate)
    assert change(client, adding(client, b"a", is_done=lambda: words(tree) == ("a", 0)), what="/words") is True
    assert words(tree) == ("a", 0)


@pytest.mark.parametrize("is_done", [None, lambda: False])
def test_change_whose_request_was_lost_is_written_by_the_next_plan(unreliable, tree, is_done):
    client = unreliable(LOST_BEFORE)
    assert change(client, adding(client, b"a", is_done=is_done), what="/words") is True
    assert words(tree) == ("a", 0)


def test_own_write_in_flight_is_recognised_by_the_next_one(unreliable, tree):
    """A refusal caused by one's own earlier write is no other writer's: the existing content is the wanted one."""
    client = unreliable(LATE)
    client.breaks = True
    with pytest.raises(ZooKeeperUnavailableError):
        add(client, b"a")
    conflicts = []
    assert add(client, b"a", on_conflict=conflicts.append) is False
    assert [type(each) for each in conflicts] == [NodeExistsError]
    assert words(tree) == ("a", 0)


def test_change_plans_from_the_true_state_after_one_left_in_doubt(unreliable, tree):
    """Content that a stale read shows as done may be undone by a write in flight."""
    client, doubts = unreliable(None, LATE), set()

    def plan(data):
        node = client.find("/value")
        if node is not None and node.data == data:
            return Planned(None)
        return Planned(None, [Create("/value", data) if node is None else Set("/value", data, node.version)])

    change(client, lambda: plan(b"old"), what="/value", doubts=doubts)
    client.breaks = True
    with pytest.raises(ZooKeeperUnavailableError):
        change(client, lambda: plan(b"new"), what="/value", doubts=doubts)
    assert doubts == {"/value"}
    client.is_connected = True
    change(client, lambda: plan(b"old"), what="/value", doubts=doubts)
    barrier(client)
    assert words(tree, "/value") == ("old", 2)
    assert doubts == set()


def test_counter_raised_concurrently_is_raised_by_both(unreliable, tree):
    """A plan that cannot tell its own write from another's takes the next number: the doubtful one is nobody's."""

    def take(client):
        def plan():
            node = client.find("/next")
            first = 0 if node is None else int(node.data)
            data = b"%d" % (first + 1)
            return Planned(first, [Create("/next", data) if node is None else Set("/next", data, node.version)])

        return change(client, plan, what="/next")

    others = []
    lost, overtaken = unreliable(LOST_AFTER), unreliable(lambda: others.append(take(tree)))
    taken = [take(lost), take(overtaken), *others, take(tree)]
    assert len(set(taken)) == len(taken)


def test_change_without_a_connection_fails(unreliable, tree):
    client = unreliable(LOST_BEFORE)
    client.breaks = True
    with pytest.raises(ZooKeeperUnavailableError, match="no answer"):
        add(client, b"a")
    assert len(client.transactions) == 1
    assert words(tree) is None


@pytest.mark.parametrize("bounds", [{"attempts": 3}, {"limit_s": 0.0}])
def test_change_that_always_conflicts_ends(unreliable, tree, bounds):
    client = unreliable(*(lambda number=number: add(tree, b"%d" % number) for number in range(50)))
    with pytest.raises(ZooKeeperUnavailableError, match=r"/words keeps changing\. Try again later"):
        add(client, b"a", **bounds)
    assert len(client.transactions) == bounds.get("attempts", 1)


@pytest.mark.parametrize("bounds", [{"attempts": 3}, {"limit_s": 0.0}])
def test_change_that_is_never_answered_ends(unreliable, tree, bounds):
    client = unreliable(*[LOST_BEFORE] * 50)
    with pytest.raises(ZooKeeperUnavailableError, match="no answer"):
        add(client, b"a", **bounds)
    assert len(client.transactions) <= 3


def test_refusal_that_no_plan_can_avoid_is_raised(unreliable, tree):
    tree.ensure_path("/full/child")
    client = unreliable()
    with pytest.raises(NotEmptyError):
        change(client, lambda: Planned(None, [Delete("/full")]), what="/full")
    assert len(client.transactions) == 1


def test_conflict_ends_the_change_when_its_listener_raises(unreliable, tree):
    def end(conflict):
        raise LookupError(conflict.path)

    client = unreliable(lambda: add(tree, b"b"))
    with pytest.raises(LookupError, match="/words"):
        add(client, b"a", on_conflict=end)
    assert words(tree) == ("b", 0)


# --- guards and sessions ----------------------------------------------------------------------------------------------


@pytest.fixture
def guard_of(tree):
    """Makes the guard of what ``client`` claims."""
    tree.create("/claim")
    return lambda client: Guard(Check("/claim", tree.get("/claim").version), client.session_id)


def test_change_under_a_guard_succeeds_while_the_guard_is_valid(unreliable, tree, guard_of):
    client = unreliable(None, lambda: tree.set("/claim", b"another's", version=0))
    guard = guard_of(client)
    add(client, b"a", guard=guard)
    with pytest.raises(GuardFailedError):
        add(client, b"b", guard=guard)
    assert (words(tree), len(client.transactions)) == (("a", 0), 2)
    with pytest.raises(GuardFailedError):
        write(client, [Create("/other")], guard=guard)
    with pytest.raises(GuardFailedError):
        barrier(client, guard=guard)
    tree.delete("/claim")
    with pytest.raises(GuardFailedError):
        barrier(client, guard=guard)
    assert tree.find("/other") is None


def test_change_in_doubt_learns_from_the_barrier_that_its_guard_is_invalid(unreliable, tree, guard_of):
    client = unreliable(LOST_BEFORE, lambda: tree.set("/claim", b"another's", version=0))
    with pytest.raises(GuardFailedError):
        add(client, b"a", guard=guard_of(client))
    assert words(tree) is None


def test_change_for_an_ended_session_is_neither_made_nor_retried(unreliable, tree, guard_of):
    client = unreliable()
    session, guard = client.session_id, guard_of(client)
    expire(client._client)
    for options in ({"session": session}, {"guard": guard}):
        with pytest.raises(ZooKeeperUnavailableError, match="session"):
            add(client, b"a", **options)
    assert (words(tree), len(client.transactions)) == (None, 2)
    for options in ({"session": session}, {"guard": guard}):
        with pytest.raises(ZooKeeperUnavailableError, match="session"):
            barrier(client, **options)


def test_change_whose_session_expired_before_the_answer_is_read_back_in_the_next(unreliable, tree):
    """Nothing of an ended session is carried out later, so what is read then is final."""
    client = unreliable(LOST_AFTER)
    session = client.session_id
    real = client._client

    def find(path):
        if client.session_id == session:
            expire(real)
        return real.find(path)

    client.find = find
    is_done = lambda: has_happened(client, [Create("/a", b"1")])  # noqa: E731
    assert write(client, [Create("/a", b"1")], session=session, is_done=is_done) == [-1]
    assert client.session_id != session
    assert write(client, [Set("/a", b"2", 0)], is_done=is_done) == [1]


# --- write and barrier ------------------------------------------------------------------------------------------------


def test_write_returns_versions_and_raises_the_refusal(unreliable, tree, guard_of):
    client = unreliable()
    assert write(client, [Create("/a"), Set("/a", b"1", 0)], guard=guard_of(client)) == [0, 1]
    with pytest.raises(NodeExistsError):
        write(client, [Create("/a")], is_done=lambda: True)


@pytest.mark.parametrize("fate", [LOST_AFTER, LATE])
def test_write_whose_answer_was_lost_is_read_back_after_a_barrier(unreliable, tree, fate):
    """A read may be older than a write in flight, and would show that it never happened."""
    client = unreliable(fate)
    operations = [Check(CHANGES, -1), Create("/a", b"1"), Set(CHANGES, b"", -1)]
    assert write(client, operations, is_done=lambda: has_happened(client, operations)) == [-1] * 3
    assert words(tree, "/a") == ("1", 0)


def test_write_that_did_not_happen_or_cannot_be_read_back_is_an_error(unreliable, tree):
    with pytest.raises(ZooKeeperUnavailableError):
        write(unreliable(LOST_BEFORE), [Create("/a")], is_done=lambda: False)
    with pytest.raises(ZooKeeperUnavailableError):
        write(unreliable(LOST_AFTER, LOST_BEFORE), [Create("/a")], is_done=lambda: True)
    with pytest.raises(ZooKeeperUnavailableError):
        write(unreliable(LOST_BEFORE), [Create("/b")])


def test_outcome_is_shown_by_the_last_operation_that_leaves_a_trace(tree):
    tree.create("/a", b"1")
    assert has_happened(tree, [Create("/a", b"1"), Check(CHANGES, 0), Set(CHANGES, b"", -1)])
    assert not has_happened(tree, [Create("/a", b"1"), Set("/a", b"2", 0)])
    assert not has_happened(tree, [Delete("/a")])
    assert has_happened(tree, [Create("/a", b"1"), Delete("/gone")])


def write_all(client, names, left_out):
    return write_most(
        names,
        lambda some: write(client, [*(Set(f"/{name}", b"1", 0) for name in some), Set(CHANGES, b"", -1)])[:-1],
        concerns=lambda name, path: path == f"/{name}",
        leave_out=lambda some, refusal: left_out.append((list(some), refusal.path)),
    )


def test_items_changed_by_other_writers_are_omitted_and_delay_nothing_else(unreliable, tree):
    for name in "abc":
        tree.create(f"/{name}")
    tree.set("/a", b"2", version=0)
    client = unreliable(None, lambda: tree.delete("/c"))
    left_out = []
    assert write_all(client, "abc", left_out) == [("b", 1)]
    assert left_out == [(["a"], "/a"), (["c"], "/c")]
    assert [words(tree, f"/{name}") for name in "abc"] == [("2", 1), ("1", 1), None]


def test_refusal_without_a_subject_omits_all_items(unreliable, tree):
    tree.create("/a")
    tree.delete(CHANGES)
    left_out = []
    assert write_all(unreliable(), "a", left_out) == []
    assert left_out == [(["a"], CHANGES)]


def test_writes_of_many_items_end_when_the_guard_is_invalid(unreliable, tree, guard_of):
    client = unreliable()
    guard = guard_of(client)
    tree.set("/claim", b"another's", version=0)
    with pytest.raises(GuardFailedError):
        write_most(
            ["a", "b"],
            lambda some: write(client, [Create(f"/{name}") for name in some], guard=guard),
            concerns=lambda name, path: True,
            leave_out=lambda some, refusal: pytest.fail("left out"),
        )


def test_barrier_comes_after_writes_in_flight(unreliable, tree):
    client = unreliable(LATE)
    with pytest.raises(ZooKeeperUnavailableError):
        write(client, [Create("/a")])
    assert tree.find("/a") is None
    barrier(client)
    assert tree.find("/a") is not None
    assert tree.get(CHANGES).version == 0, "it changes nothing"


def test_barrier_needs_no_znode(connect):
    barrier(connect())


def test_items_are_written_in_parts_in_order():
    assert [list(part) for part in in_parts(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_parts([])) == []
    assert [len(part) for part in in_parts([0] * 201)] == [200, 1]


# --- claims -----------------------------------------------------------------------------------------------------------


class TakenError(Exception):
    """The claim belongs to another holder that is alive."""


def acquire(client, holder, *, dead=(), beside=()):
    session = client.session_id

    def plan():
        node = client.find("/claim")
        if node is not None and node.data not in {holder, b"nobody", *dead}:
            raise TakenError(node.data)
        return Claim(path="/claim", holder=holder, version=version_over(node), session=session), beside

    return Claim.acquire(client, plan, session=session, what="claims")


def verify(client, claims):
    return Claim.verify(client, claims, guard=Guard(Check(CHANGES, 0), client.session_id))


def test_claim_belongs_to_its_holder_until_another_takes_it_over_at_a_higher_version(unreliable, tree):
    one, two = unreliable(), unreliable()
    first = acquire(one, b"one", beside=[Create("/mark")])
    assert (first.version, tree.find("/mark") is not None) == (0, True)
    with pytest.raises(TakenError):
        acquire(two, b"two")
    assert verify(one, [first]) == [first]
    second = acquire(two, b"two", dead=[b"one"])
    assert (second.version, verify(one, [first]), verify(two, [second])) == (1, [], [second])
    with pytest.raises(GuardFailedError):
        add(one, b"a", guard=first.guard)
    assert add(two, b"a", guard=second.guard)


@pytest.mark.parametrize("is_there", [False, True])
def test_one_of_two_concurrent_acquirers_has_the_claim(unreliable, tree, is_there):
    if is_there:
        tree.create("/claim", b"nobody")
    with pytest.raises(TakenError):
        acquire(unreliable(lambda: acquire(tree, b"two")), b"one")
    assert words(tree, "/claim") == ("two", int(is_there))


@pytest.mark.parametrize("fate", [LOST_AFTER, LATE])
def test_claim_whose_answer_was_lost_is_read_back(unreliable, tree, fate):
    client = unreliable(fate, None, fate)
    assert acquire(client, b"one").version == 0
    assert acquire(client, b"one").version == 1


def test_claim_taken_by_another_after_a_lost_answer_is_not_held(unreliable, tree):
    client = unreliable(LOST_AFTER, lambda: acquire(tree, b"two", dead=[b"one"]))
    with pytest.raises(TakenError):
        acquire(client, b"one")
    assert words(tree, "/claim") == ("two", 1)


def test_claim_whose_session_ended_with_the_answer_is_not_held(unreliable, tree):
    """It could guard no write."""
    client = unreliable(LOST_AFTER, lambda: expire(client._client))
    with pytest.raises(ZooKeeperUnavailableError):
        acquire(client, b"one")


def test_claims_are_released_at_a_higher_version_and_others_left_alone(unreliable, tree):
    client = unreliable()
    own = acquire(client, b"one")
    lost = Claim(path="/lost", holder=b"one", version=0, session=client.session_id)
    tree.create("/lost", b"one")
    tree.set("/lost", b"two", version=0)
    assert Claim.release(client, [own, lost], b"nobody") == [lost]
    assert (words(tree, "/claim"), words(tree, "/lost")) == (("nobody", 1), ("two", 1))
    assert acquire(unreliable(), b"two").version == 2


# --- use
# ---------------------------------------------------------------------------------------------------------------


def decide(client, outcome, guard=None):
    """Records the outcome of a transaction, unless one is recorded; returns the recorded one."""

    def plan():
        node = client.find("/transaction")
        if node.data:
            return Planned(node.data)
        return Planned(outcome, [Set("/transaction", outcome, node.version)])

    return change(client, plan, what="/transaction", guard=guard)


def test_decision_is_made_once_and_everybody_learns_the_same(unreliable, tree, guard_of):
    """This is the example in the module's docstring."""
    tree.create("/transaction")
    lost, other = unreliable(LATE), unreliable(lambda: decide(lost, b"commit"))
    assert decide(other, b"abort") == decide(tree, b"abort") == b"commit"
    assert words(tree, "/transaction") == ("commit", 1)


def test_decision_of_a_deposed_coordinator_is_none(unreliable, tree, guard_of):
    tree.create("/transaction")
    client = unreliable(lambda: tree.set("/claim", b"another's", version=0))
    with pytest.raises(GuardFailedError):
        decide(client, b"commit", guard_of(client))
    assert decide(tree, b"abort") == b"abort"
