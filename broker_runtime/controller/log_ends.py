"""How far the logs of one directory go, for a controller that elects after a power loss.

Rule: one that somebody has for longer than a moment is left out, so that a disk that stands still holds up no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from broker_runtime.contract.errors import PylogError, RequestTimedOutError
from broker_runtime.contract.requests import LogEnd, PartitionKey
from broker_runtime.log import PartitionLog
from broker_runtime.replication.divergence import last_epoch
from broker_runtime.replication.hosted_replica import BUSY_S

log = logging.getLogger(__name__)


def ends_of(logs: Mapping[PartitionKey, PartitionLog], *, may_load: bool) -> Iterator[tuple[PartitionKey, LogEnd]]:
    """How far those logs of one directory go that can tell. Without ``may_load``, those that are loaded."""
    busy_s = BUSY_S
    for key, each in logs.items():
        if not each.is_loaded and not may_load:
            continue
        try:
            extent = each.extent(busy_s) if each.is_loaded else each.extent()
        except PylogError as error:
            if isinstance(error, RequestTimedOutError):
                busy_s = 0.0  # the disk may stand still: not so long for each log on it
            cannot_tell_end(key, error)
            continue
        epoch = last_epoch(extent.leader_epochs, extent.log_end)
        yield key, LogEnd(topic=key.topic, partition=key.partition, leader_epoch=epoch, log_end=extent.log_end)


def cannot_tell_end(key: PartitionKey, error: PylogError) -> None:
    """Says in the log that the answer leaves this one out."""
    log.warning("cannot tell log end topic=%s partition=%d error=%s", key.topic, key.partition, error)
