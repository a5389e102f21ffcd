"""Until when a broker may answer as a group's coordinator."""

from dataclasses import dataclass

import pytest

from broker_runtime.contract.errors import CoordinatorNotAvailableError
from broker_runtime.groups.group import Limits
from broker_runtime.groups.hosted import STANDS_MS, HostedGroups
from broker_runtime.zookeeper.memory import MemoryZooKeeper

TOOK_MS = 3_000


@dataclass(frozen=True)
class AClaim:
    group_id: str
    membership: str = "m"
    version: int = 0


class SlowClaims:
    """Claims that stand, which it takes a while to find out."""

    now_ms = 0

    def claim(self, group_id, *, creates):
        return AClaim(group_id)

    def verify(self, claims):
        self.now_ms += TOOK_MS
        return claims


def test_claim_was_seen_to_stand_when_it_was_asked_about_and_not_when_the_answer_came():
    """W21: a successor may have claimed the group while the answer was on its way, and counts from then on."""
    claims = SlowClaims()
    limits = Limits(min_session_ms=1, max_session_ms=60_000, max_members=9)
    client = MemoryZooKeeper().client()
    groups = HostedGroups(client, claims, limits, membership=lambda: "m", steady_ms=lambda: claims.now_ms)
    hosted = groups.load("g", creates=True)
    claims.now_ms = 1_000
    groups.verify()
    hosted.require_standing(1_000 + STANDS_MS)
    with pytest.raises(CoordinatorNotAvailableError, match="ZooKeeper is away"):
        hosted.require_standing(1_001 + STANDS_MS)
