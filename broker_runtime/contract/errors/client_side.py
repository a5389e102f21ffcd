"""The client's own state and its limits of time."""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError


class ClientStateError(PylogError):
    """The call does not fit the client's state."""

    code = "ILLEGAL_STATE"


class ClosedError(ClientStateError):
    """The client was closed."""

    code = "CLIENT_CLOSED"


class WakeupError(ClientStateError):
    """``wakeup()`` ended the call."""

    code = "WAKEUP"


class NoOffsetForPartitionError(ClientStateError):
    """No committed offset and ``auto_offset_reset="none"``."""

    code = "NO_OFFSET_FOR_PARTITION"


class ClientTimeoutError(PylogError, TimeoutError):
    """A bounded wait of the client ended."""

    code = "CLIENT_TIMEOUT"


class BufferExhaustedError(ClientTimeoutError):
    """``buffer_memory`` stayed full for ``max_block_ms``."""

    code = "BUFFER_EXHAUSTED"


class DeliveryTimeoutError(ClientTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms``; whether it was appended is unknown."""

    code = "DELIVERY_TIMEOUT"
