"""Messages between brokers, beside fetches."""

from __future__ import annotations

from broker_runtime.contract.requests.message import Entries, Int32, Int64, Message, Name, PartitionNumber, Request
from broker_runtime.contract.requests.offsets import PartitionKey


class ReportBrokerRequest(Request, frozen=True, kw_only=True):
    """To the controller: this broker's port refused. The controller looks for itself."""

    broker_id: Int32


class LogEndsRequest(Request, frozen=True, kw_only=True):
    """From the controller, after a power loss: how far this broker's logs of these partitions go."""

    partitions: Entries[PartitionKey]


class LogEnd(Message, frozen=True, kw_only=True):
    """``leader_epoch``: of the log's last record; -1: it has none."""

    topic: Name
    partition: PartitionNumber
    leader_epoch: Int32
    log_end: Int64


class LogEndsResponse(Message, frozen=True, kw_only=True):
    """In the broker's registration ``broker_epoch``. Logs that are not open are left out."""

    broker_epoch: Int64
    partitions: tuple[LogEnd, ...]
