"""The checker of brokers that come back after all were killed."""

from __future__ import annotations

import pytest

from broker_runtime.zookeeper.znodes import PartitionState
from tests.chaos.lost_disks import is_led_anew


@pytest.mark.parametrize(
    ("leader", "leader_epoch", "is_led"),
    [
        (2, 13, True),
        (1, 13, True),  # started with an empty disk, and has caught up
        (1, 12, False),  # elected before it was killed
        (3, 13, False),  # not started yet
        (None, 13, False),
    ],
)
def test_partition_is_led_by_a_broker_that_was_elected_since_it_was_started(
    leader: int | None, leader_epoch: int, is_led: bool
) -> None:
    before = PartitionState(leader=1, leader_epoch=12, isr=(1, 2, 3), controller_epoch=4)
    after = PartitionState(leader=leader, leader_epoch=leader_epoch, isr=(1, 2, 3), controller_epoch=5)
    assert is_led_anew(after, before, [1, 2]) is is_led
