"""What kind of election led from one state of a partition to the next, for whoever counts them."""

import pytest

from broker_runtime.controller.election import Electorate, elect, election_kind, prefer
from broker_runtime.zookeeper.znodes import PartitionState

LED_BY_1 = PartitionState(leader=1, leader_epoch=3, isr=(1, 2), controller_epoch=0, leader_broker_epoch=1)
LED_BY_2 = PartitionState(leader=2, leader_epoch=3, isr=(1, 2), controller_epoch=0, leader_broker_epoch=1)
ALONE = PartitionState(leader=1, leader_epoch=3, isr=(1,), controller_epoch=0, leader_broker_epoch=1)


@pytest.mark.parametrize(
    ("before", "live", "kind"),
    [
        (None, (1, 2, 3), "new"),
        (LED_BY_1, (2, 3), "clean"),
        (LED_BY_1, (1, 2, 3), None),
        (LED_BY_1, (3,), "unclean"),
        (ALONE, (3,), "unclean"),
        (LED_BY_1, (), None),
    ],
)
def test_election_is_named_by_what_it_may_lose(before, live, kind):
    """Unclean is what an operator must hear of: the new leader was not in sync."""
    brokers = Electorate(dict.fromkeys(live, 1))
    after = elect(before, (1, 2, 3), brokers, 9, is_unclean_allowed=True)
    assert (None if after is None else election_kind(before, after)) == kind


def test_leader_that_registered_again_is_elected_cleanly():
    """It has what it had."""
    after = elect(ALONE, (1,), Electorate({1: 2}), 9)
    assert election_kind(ALONE, after) == "clean"


def test_leadership_that_goes_back_is_a_preferred_election():
    """The leader before stays in sync: nothing had failed."""
    after = prefer(LED_BY_2, (1, 2), Electorate({1: 1, 2: 1}), 9)
    assert election_kind(LED_BY_2, after) == "preferred"


def test_partition_that_loses_its_leader_elects_nobody():
    """And when the only one in sync comes back, it is elected cleanly."""
    without = elect(ALONE, (1, 2), Electorate({2: 1}), 9)
    assert without.leader is None
    assert election_kind(ALONE, without) is None
    assert election_kind(without, elect(without, (1, 2), Electorate({1: 2, 2: 1}), 9)) == "clean"
