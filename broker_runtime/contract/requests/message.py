"""What all messages share: the base, bounded number types, bytes.

Rule: decoding checks types and bounds, so that code behind it may rely on them.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from broker_runtime.contract.errors import InvalidRequestError, PylogError

PROTOCOL_VERSION = 1

HEARTBEAT_INTERVAL_S = 1.0
"""Both sides of an open stream say something at least this often."""
PEER_SILENCE_LIMIT_S = 8.0
"""A peer silent for this long is gone: its connection is closed and its threads are freed."""
MAX_SERVER_WAIT_S = 5.0
"""The longest a fetch waits for data in the broker, whatever it asks for."""
_MAX_ERROR_CHARS = 600  # gRPC refuses trailers above 8 KiB, and the text is in them three times
_ELLIPSIS = " …"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
Uuid = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
WaitMs = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]
ByteCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages."""


class ErrorInfo(Message, frozen=True, kw_only=True):
    """An error on the wire: `PylogError.code` and its message without the code."""

    code: str
    message: str

    @classmethod
    def of(cls, error: PylogError) -> ErrorInfo:
        """The error as it travels, its message cut to what fits a gRPC trailer."""
        text = error.message
        is_long = len(text) > _MAX_ERROR_CHARS
        return cls(code=error.code, message=text[: _MAX_ERROR_CHARS - len(_ELLIPSIS)] + _ELLIPSIS if is_long else text)


_M = TypeVar("_M", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[msgspec.Struct]] = {}


def make_decoders() -> None:
    """Makes the decoder of every message that is defined by now. The package does it when it is imported.

    Never later: msgspec notes what it learns of a class piece by piece, where all threads see it, and a thread that
    decodes meanwhile reads through a null pointer (of eight that decoded their first message at once, the process died
    in 7 tries of 60).
    """
    kinds: list[type[msgspec.Struct]] = [Message]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        _decoders[kind] = msgspec.msgpack.Decoder(kind)


def encode(message: msgspec.Struct) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview | msgspec.Raw, kind: type[_M]) -> _M:
    """The message in ``data``, checked. Raises `InvalidRequestError` that says which field is wrong."""
    try:
        message = _decoders[kind].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"not a {kind.__name__}: {error}") from None
    assert isinstance(message, kind)
    return message
