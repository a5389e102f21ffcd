"""Brokers that are broken on purpose, each in one way that real systems were: the checker has to find every one.

A variant replaces something of the real code inside a ``with``. Rule: it breaks one promise and nothing else, as
somebody might by forgetting one line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from broker_runtime.controller import isr_updater
from broker_runtime.log import LogExtent, PartitionLog
from broker_runtime.replication import HostedReplica, InSyncSet, Leadership, partition
from broker_runtime.zookeeper import membership

Patches = Iterator[Any]
_VARIANTS: dict[str, Callable[[], Patches]] = {}


def variant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    """Registers a generator of patches under its name."""
    _VARIANTS[make.__name__] = make
    return make


def names() -> list[str]:
    """All variants."""
    return list(_VARIANTS)


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Inside, all brokers are broken in that way."""
    with ExitStack() as stack:
        for patch in _VARIANTS[name]():
            stack.enter_context(patch)
        yield


@variant
def truncates_to_the_high_watermark() -> Patches:
    """A new follower cuts its log to its own high watermark (Kafka before KIP-101, Fluss)."""
    real = HostedReplica.become_follower

    def become_follower(self: HostedReplica, leadership: Leadership) -> None:
        is_new = leadership.leader_epoch != self.leader_epoch
        real(self, leadership)
        if is_new:
            self.log.truncate_to(self.log.high_watermark)

    yield mock.patch.object(HostedReplica, "become_follower", become_follower)


@variant
def fences_no_leader_epochs() -> Patches:
    """No epoch is looked at: requests and answers of an older one are taken for those of the present one, and a
    follower goes on at its log's end, whatever epochs its last records are of."""

    def require_epoch(self: HostedReplica, leader_epoch: int, current: int | None = None) -> None:
        return

    yield mock.patch.object(HostedReplica, "_require_epoch", require_epoch)
    yield mock.patch.object(partition, "diverging_point", return_value=None)


@variant
def counts_what_is_not_durable() -> Patches:
    """The high watermark goes by log ends: what no disk has counts as committed."""
    real = PartitionLog.extent

    def extent(self: PartitionLog) -> LogExtent:
        known = real(self)
        return known._replace(durable_end=known.log_end)

    yield mock.patch.object(PartitionLog, "extent", extent)


@variant
def unclean_restart_stays_in_sync() -> Patches:
    """A broker that lost its power registers without leaving the in-sync sets it was in."""
    yield mock.patch.object(membership, "leave_in_sync_sets", return_value=None)


@variant
def in_sync_without_broker_epoch() -> Patches:
    """A broker is taken into the in-sync set for what an earlier life of it had told."""
    yield mock.patch.object(isr_updater._Write, "checks", return_value=[])
    yield mock.patch.object(InSyncSet, "require_replica", return_value=None)


@variant
def acknowledges_duplicates_early() -> Patches:
    """A batch that came again is acknowledged at once, though its original is not committed yet."""
    real = PartitionLog.append_as_leader

    def append_as_leader(self: PartitionLog, frames: Sequence[Any], **kwargs: Any) -> Any:
        result = real(self, frames, **kwargs)
        return dataclasses.replace(result, next_offset=0) if result.is_duplicate else result

    yield mock.patch.object(PartitionLog, "append_as_leader", append_as_leader)


@variant
def counts_the_in_sync_set_as_last_read() -> Patches:
    """While a change of the in-sync set is under way, or its outcome unknown, who it lets in does not count."""
    yield mock.patch.object(InSyncSet, "maximal", property(lambda self: self.leadership.in_sync))
    yield mock.patch.object(InSyncSet, "_joining_soon", return_value=frozenset())
