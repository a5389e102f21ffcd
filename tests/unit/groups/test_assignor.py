"""Which member gets which partitions: complete, even, and with as few moves as possible."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.model import TopicPartition
from broker_runtime.groups.assignor import assign

Owners = dict[TopicPartition, str]
Shares = dict[str, set[TopicPartition]]

_TOPICS = st.sampled_from(["t", "u", "v"])
_MEMBERS = [f"m{number}" for number in range(6)]
_SUBSCRIPTIONS = st.dictionaries(st.sampled_from(_MEMBERS), st.sets(_TOPICS), max_size=6)
_PARTITIONS = st.dictionaries(_TOPICS, st.integers(0, 9))
_OWNERS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["t", "u", "v", "w"]), st.integers(0, 10)),
    st.sampled_from([*_MEMBERS, "gone"]),
)


def owners_of(shares: Mapping[str, set[TopicPartition]]) -> Owners:
    return {at: member for member, held in shares.items() for at in held}


def counts(shares: Shares) -> list[int]:
    return sorted(len(held) for held in shares.values())


def t(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition("t", number) for number in numbers}


# --- examples -------------------------------------------------------------------------------------------------------


def test_one_member_gets_every_partition() -> None:
    """W22: one consumer in a group has every partition."""
    assert assign({"a": ["t"]}, {"t": 3}, {}) == {"a": t(0, 1, 2)}


def test_partitions_are_shared_when_another_joins() -> None:
    """W22: when another joins, they share, and no partition moves without need."""
    shares = assign({"a": ["t"], "b": ["t"]}, {"t": 4}, owners_of({"a": t(0, 1, 2, 3)}))
    assert counts(shares) == [2, 2]
    assert shares["a"] < t(0, 1, 2, 3)


def test_members_beyond_the_partitions_get_nothing_until_one_leaves() -> None:
    """W23: further consumers wait without partitions; when one leaves, one of them takes its place."""
    first = assign({"a": ["t"], "b": ["t"], "c": ["t"]}, {"t": 2}, owners_of({"b": t(0), "c": t(1)}))
    assert first == {"a": set(), "b": t(0), "c": t(1)}
    assert assign({"a": ["t"], "b": ["t"]}, {"t": 2}, owners_of(first)) == {"a": t(1), "b": t(0)}


def test_partitions_of_a_leaver_go_to_the_others_which_keep_theirs() -> None:
    """Only free partitions move."""
    shares = assign({"a": ["t"], "b": ["t"]}, {"t": 6}, owners_of({"a": t(0, 1), "b": t(2, 3), "c": t(4, 5)}))
    assert shares["a"] > t(0, 1)
    assert shares["b"] > t(2, 3)
    assert counts(shares) == [3, 3]


def test_added_partitions_restore_the_balance() -> None:
    """New partitions go to the least loaded members; the others keep theirs."""
    shares = assign({"a": ["t"], "b": ["t"]}, {"t": 4}, owners_of({"a": t(0, 1), "b": t(2)}))
    assert shares == {"a": t(0, 1), "b": t(2, 3)}


def test_member_that_subscribes_to_less_leaves_the_rest_to_the_others() -> None:
    """A member that can take only one topic takes it, so that the counts are even."""
    shares = assign({"a": ["t", "u"], "b": ["t"]}, {"t": 2, "u": 2}, {})
    assert shares["b"] == t(0, 1)


def test_balance_is_reached_by_way_of_a_third_member() -> None:
    """No single move shows this one: a gives to b, and b to c, who does not subscribe to a's topic."""
    owners: Owners = {TopicPartition("t", number): "a" for number in range(2)}
    owners |= {TopicPartition("u", 0): "b"}
    shares = assign({"a": ["t"], "b": ["t", "u"], "c": ["u"]}, {"t": 2, "u": 1}, owners)
    assert {member: len(held) for member, held in shares.items()} == {"a": 1, "b": 1, "c": 1}
    assert shares["c"] == {TopicPartition("u", 0)}


def test_partitions_given_up_by_a_member_are_of_all_topics_in_turn() -> None:
    """No member keeps all of one topic only because of its name."""
    owners = {TopicPartition(topic, number): "a" for topic in ("t", "u") for number in range(4)}
    shares = assign({"a": ["t", "u"], "b": ["t", "u"]}, {"t": 4, "u": 4}, owners)
    assert {at.topic for at in shares["a"]} == {at.topic for at in shares["b"]} == {"t", "u"}


@pytest.mark.parametrize(
    ("subscriptions", "partitions", "owners", "expected"),
    [
        ({}, {}, {}, {}),
        ({}, {"t": 3}, {TopicPartition("t", 0): "a"}, {}),
        ({"a": []}, {"t": 3}, {TopicPartition("t", 0): "a"}, {"a": set()}),
        ({"a": ["t"]}, {}, {TopicPartition("t", 0): "a"}, {"a": set()}),
        ({"a": ["t"]}, {"t": 0}, {}, {"a": set()}),
        ({"a": ["t"]}, {"t": 1}, {TopicPartition("t", 1): "a", TopicPartition("t", 0): "b"}, {"a": t(0)}),
    ],
)
def test_no_partitions_or_no_members_make_an_empty_assignment(
    subscriptions: dict[str, list[str]], partitions: dict[str, int], owners: Owners, expected: Shares
) -> None:
    """Empty inputs and owners that have left are no special cases."""
    assert assign(subscriptions, partitions, owners) == expected


# --- properties -----------------------------------------------------------------------------------------------------


@given(_SUBSCRIPTIONS, _PARTITIONS, _OWNERS)
def test_assignment_is_complete_disjoint_and_as_subscribed(
    subscriptions: dict[str, set[str]], partitions: dict[str, int], owners: Owners
) -> None:
    """W24: every subscribed partition has exactly one owner, which subscribes to its topic."""
    shares = assign(subscriptions, partitions, owners)
    assert shares.keys() == subscriptions.keys()
    given_out = [at for held in shares.values() for at in held]
    wanted = set().union(*subscriptions.values())
    everything = {TopicPartition(topic, n) for topic in wanted for n in range(partitions.get(topic, 0))}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == everything
    assert all(at.topic in subscriptions[member] for member, held in shares.items() for at in held)


@given(_SUBSCRIPTIONS, _PARTITIONS, _OWNERS)
def test_no_move_of_one_partition_improves_the_balance(
    subscriptions: dict[str, set[str]], partitions: dict[str, int], owners: Owners
) -> None:
    """No member has two more than another that could take one of them; with equal subscriptions, than any other."""
    shares = assign(subscriptions, partitions, owners)
    for giver, receiver in itertools.permutations(shares, 2):
        if any(at.topic in subscriptions[receiver] for at in shares[giver]):
            assert len(shares[giver]) <= len(shares[receiver]) + 1


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(_MEMBERS[:3]), st.sets(_TOPICS, min_size=1), min_size=1),
    st.dictionaries(_TOPICS, st.integers(0, 2)),
    _OWNERS,
)
def test_balance_is_the_best_there_is(
    subscriptions: dict[str, set[str]], partitions: dict[str, int], owners: Owners
) -> None:
    """No possible assignment is more even (its counts, from the largest on, are no smaller)."""
    shares = assign(subscriptions, partitions, owners)
    choices = [
        [member for member in subscriptions if topic in subscriptions[member]]
        for topic, count in partitions.items()
        for _ in range(count)
        if any(topic in topics for topics in subscriptions.values())
    ]
    best = min(
        sorted((choice.count(member) for member in subscriptions), reverse=True)
        for choice in itertools.product(*choices)
    )
    assert sorted((len(held) for held in shares.values()), reverse=True) == best


@given(st.sets(st.sampled_from(_MEMBERS), min_size=1), _PARTITIONS, _OWNERS)
def test_no_more_moves_than_needed_when_subscriptions_are_equal(
    members: set[str], partitions: dict[str, int], owners: Owners
) -> None:
    """Sticky: as many partitions stay as an even assignment allows."""
    shares = assign(dict.fromkeys(members, tuple(partitions)), partitions, owners)
    present = dict.fromkeys(members, 0)
    for at, owner in owners.items():
        if owner in members and at.partition < partitions.get(at.topic, 0):
            present[owner] += 1
    least, larger_shares = divmod(sum(partitions.values()), len(members))
    most_kept = sum(min(count, least) for count in present.values())
    most_kept += min(larger_shares, sum(count > least for count in present.values()))
    assert sum(owners.get(at) == member for member, held in shares.items() for at in held) == most_kept


@given(_SUBSCRIPTIONS, _PARTITIONS, _OWNERS)
def test_assignment_stays_when_nothing_changes(
    subscriptions: dict[str, set[str]], partitions: dict[str, int], owners: Owners
) -> None:
    """Sticky: an assignment that is passed in as the owners is returned unchanged."""
    shares = assign(subscriptions, partitions, owners)
    assert assign(subscriptions, partitions, owners_of(shares)) == shares


@given(_SUBSCRIPTIONS, _PARTITIONS, _OWNERS, st.randoms(use_true_random=False))
def test_assignment_is_independent_of_the_order_of_dicts(
    subscriptions: dict[str, set[str]], partitions: dict[str, int], owners: Owners, rng: object
) -> None:
    """Deterministic: two coordinators with the same data decide alike."""

    def shuffled(items):  # type: ignore[no-untyped-def]
        listed = list(items)
        rng.shuffle(listed)  # type: ignore[attr-defined]
        return listed

    again = assign(
        {member: shuffled(topics) for member, topics in shuffled(subscriptions.items())},
        dict(shuffled(partitions.items())),
        dict(shuffled(owners.items())),
    )
    assert again == assign(subscriptions, partitions, owners)


# --- size -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned_by", [0, 1, 999])
@pytest.mark.parametrize("topics", [1, 100])
def test_ten_thousand_partitions_and_a_thousand_members(owned_by: int, topics: int) -> None:
    """From nothing, from all with one member, and with one member more, each takes well under a second."""
    members = [f"m{number:03}" for number in range(1_000)]
    partitions = {f"t{number}": 10_000 // topics for number in range(topics)}
    all_of_them = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    owners = {at: members[place % owned_by] for place, at in enumerate(all_of_them)} if owned_by else {}
    began = time.process_time()
    shares = assign(dict.fromkeys(members, tuple(partitions)), partitions, owners)
    assert time.process_time() - began < 1.0
    assert set(counts(shares)) == {10}
    if owned_by == 999:
        assert sum(owners[at] != member for member, held in shares.items() for at in held) == 10


def test_many_different_subscriptions_are_assigned_quickly() -> None:
    """A thousand members each have ten topics of a hundred, and the first ten own everything before."""
    members = [f"m{number:03}" for number in range(1_000)]
    subscriptions = {
        member: {f"t{(number * 7 + step * step) % 100}" for step in range(10)} for number, member in enumerate(members)
    }
    partitions = {f"t{number}": 100 for number in range(100)}
    first = assign({member: list(partitions) for member in members[:10]}, partitions, {})
    began = time.process_time()
    shares = assign(subscriptions, partitions, owners_of(first))
    assert time.process_time() - began < 3.0
    assert max(counts(shares)) - min(counts(shares)) <= 1
