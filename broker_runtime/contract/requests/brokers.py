"""Messages between brokers, beside fetches."""

from __future__ import annotations

from broker_runtime.contract.requests.message import Int32, Message


class ReportBrokerRequest(Message, frozen=True, kw_only=True):
    """To the controller: this broker's port refused. The controller looks for itself."""

    broker_id: Int32
