"""Whom this broker follows: what hosting tells, whoever fetches carries out."""

from __future__ import annotations

from typing import Protocol

from broker_runtime.contract.model import TopicPartition
from broker_runtime.replication.leadership import Leadership
from broker_runtime.replication.partition import Partition


class FollowerPlan(Protocol):
    """Told after the partition took its role. Thread-safe, never blocks for the network, raises nothing."""

    def follow(self, partition: Partition, leadership: Leadership) -> None:
        """Fetch the partition from ``leadership.leader`` (a broker, not this one) in its leader epoch.

        Again with the same epoch: news of it (the in-sync set, an address); what backs off tries again at once.
        """

    def unfollow(self, at: TopicPartition) -> None:
        """Fetch it no more. One that is not followed is fine."""
