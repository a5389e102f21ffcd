"""Which brokers hold which partitions."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from broker_runtime.controller.assignment import assign, check_assignment, loads


def fresh(count):
    return loads(range(1, count + 1), [])


@pytest.mark.parametrize(("partitions", "brokers", "leaders"), [(3, 3, [1, 1, 1]), (3, 5, [1, 1, 1]), (5, 2, [3, 2])])
def test_leaders_are_spread_evenly(partitions, brokers, leaders):
    """W10: N partitions are spread evenly on N, more and fewer brokers."""
    assignment = assign(partitions, 1, fresh(brokers))
    assert sorted(Counter(replicas[0] for replicas in assignment).values(), reverse=True) == leaders


def test_brokers_that_lead_least_are_chosen_first():
    assert assign(1, 1, loads([1, 2, 3], [((1,), (2,), (1,))])) == ((3,),)


def test_one_broker_leads_all():
    assert assign(3, 1, fresh(1)) == ((1,), (1,), (1,))


def test_followers_of_one_brokers_partitions_are_on_many_others():
    assignment = assign(12, 2, fresh(4))
    assert {replicas[1] for replicas in assignment if replicas[0] == 1} == {2, 3, 4}


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.integers(0, 50))
def test_assignment_is_valid_and_even_for_all_sizes(partitions, brokers, factor, first):
    factor = min(factor, brokers)
    assignment = assign(partitions, factor, fresh(brokers), first=first)
    assert check_assignment(assignment, range(1, brokers + 1)) == assignment
    assert len(assignment) == partitions
    leaders = Counter(replicas[0] for replicas in assignment)
    held = [leaders[broker] for broker in range(1, brokers + 1)]
    assert max(held) - min(held) <= 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 7), st.integers(1, 7))
def test_leaders_and_replicas_stay_evenly_spread_over_many_topics(partitions, brokers, factor):
    """W10: over all topics together no broker leads or holds much more than another."""
    factor = min(factor, brokers)
    assignments = []
    for count in partitions:
        assignments.append(assign(count, factor, loads(range(1, brokers + 1), assignments)))
    held = loads(range(1, brokers + 1), assignments).values()
    assert max(load.leaders for load in held) - min(load.leaders for load in held) <= 1
    assert max(load.replicas for load in held) - min(load.replicas for load in held) <= 3


@pytest.mark.parametrize("factor", [0, -1, 3])
def test_replication_factor_outside_one_to_live_brokers_is_refused(factor):
    with pytest.raises(InvalidReplicationFactorError, match=r"allowed is 1 to 2, the number of live brokers \(1, 2\)"):
        assign(1, factor, fresh(2))


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ([], "no partitions"),
        ([[1], []], "partition 1 has no replicas"),
        ([[1, 1]], "partition 0 names a broker twice"),
        ([[1], [9]], r"partition 1 names brokers that are not live: \[9\]"),
        ([[1, 2], [1]], "partition 1 has 1 replicas, partition 0 has 2"),
    ],
)
def test_invalid_assignment_is_refused_by_partition(assignment, problem):
    with pytest.raises(InvalidReplicaAssignmentError, match=problem):
        check_assignment(assignment, [1, 2])


def test_loads_count_leaders_and_replicas_of_live_brokers():
    found = loads([1, 2], [((1, 2), (9, 1))])
    assert (found[1].leaders, found[1].replicas) == (1, 2)
    assert (found[2].leaders, found[2].replicas) == (0, 1)


def test_suspects_get_replicas_only_when_the_others_are_too_few():
    """W10: a topic created while a broker is down is not placed on it."""
    for replicas in assign(6, 2, fresh(4), suspects={2, 3}):
        assert set(replicas) == {1, 4}
    for factor, partitions in ((3, 6), (4, 2)):
        assignment = assign(partitions, factor, fresh(4), suspects={2, 3})
        assert check_assignment(assignment, range(1, 5)) == assignment
        for replicas in assignment:
            assert len(replicas) == factor
            assert set(replicas[:2]) == {1, 4}, "live brokers come first"


def test_suspects_get_all_replicas_when_nobody_else_is_left():
    assert assign(1, 2, fresh(2), suspects={1, 2}) == assign(1, 2, fresh(2))
