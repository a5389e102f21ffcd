"""Messages about who produces: the ids of idempotent producers."""

from __future__ import annotations

from broker_runtime.contract.requests.message import Int32, Int64, Message, Request


class InitProducerIdRequest(Request, frozen=True, kw_only=True):
    """Asks any broker for an id that nobody else has or had."""


class InitProducerIdResponse(Message, frozen=True, kw_only=True):
    """Frames carry both. The epoch is the first; the id's owner raises it to begin anew in a partition."""

    producer_id: Int64
    producer_epoch: Int32 = 0
