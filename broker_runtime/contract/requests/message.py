"""What all messages share: the base, bounded number types, bytes.

Rule: decoding checks types and bounds, so that code behind it may rely on them. What a broker receives is a `Request`:
it has a bound in bytes, which is checked before anything is decoded, and so has the length of every list in it,
because of a few bytes decoding makes many, and an answer about each entry more.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar

import msgspec

from broker_runtime.contract.errors import InvalidRequestError, PylogError

PROTOCOL_VERSION = 1

HEARTBEAT_INTERVAL_S = 1.0
"""Both sides of an open stream say something at least this often."""
PEER_SILENCE_LIMIT_S = 8.0
"""A peer silent for this long is gone: its connection is closed and its threads are freed."""
MAX_SERVER_WAIT_S = 5.0
"""The longest a fetch waits for data in the broker, whatever it asks for."""
MOST_ENTRIES: Final = 2_000
"""Of a list that need not be whole: who has more sends several requests (`portions`)."""
MOST_IN_ONE: Final = 10_000
"""Of a list that must be: a topic's partitions, a subscription, moves that are checked together."""
MOST_COLUMNS: Final = 4_098
"""Of a topic, with the two of the system."""
MOST_COLUMN_IDS: Final = 50_000
"""Of all partitions that a fetch names together: the request is kept while it waits for data."""
MOST_REPLICAS: Final = 64
"""Of a partition."""
_MAX_ERROR_CHARS = 600  # gRPC refuses trailers above 8 KiB, and the text is in them three times
_ELLIPSIS = " …"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
Uuid = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
WaitMs = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]
ByteCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]

_E = TypeVar("_E")
Entries: TypeAlias = Annotated[tuple[_E, ...], msgspec.Meta(max_length=MOST_ENTRIES)]
Whole: TypeAlias = Annotated[tuple[_E, ...], msgspec.Meta(max_length=MOST_IN_ONE)]
ColumnId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Columns: TypeAlias = Annotated[tuple[ColumnId, ...], msgspec.Meta(max_length=MOST_COLUMNS)]
Replicas: TypeAlias = Annotated[tuple[Int32, ...], msgspec.Meta(max_length=MOST_REPLICAS)]
Settings: TypeAlias = Annotated[dict[str, _E], msgspec.Meta(max_length=1_000)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages."""


class Request(Message, frozen=True, kw_only=True):
    """Base of those that brokers receive. ``MOST_BYTES``: what one may have, encoded; `decode` refuses more."""

    MOST_BYTES: ClassVar[int] = 1 << 20


class ErrorInfo(Message, frozen=True, kw_only=True):
    """An error on the wire: `PylogError.code` and its message without the code."""

    code: str
    message: str

    @classmethod
    def of(cls, error: PylogError) -> ErrorInfo:
        """The error as it travels, its message cut to what fits a gRPC trailer."""
        return cls.saying(type(error), error.message)

    @classmethod
    def saying(cls, kind: type[PylogError], text: str) -> ErrorInfo:
        """As `of`, without an exception: for answers about many things that are not there."""
        is_long = len(text) > _MAX_ERROR_CHARS
        return cls(code=kind.code, message=text[: _MAX_ERROR_CHARS - len(_ELLIPSIS)] + _ELLIPSIS if is_long else text)


_M = TypeVar("_M", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[msgspec.Struct]] = {}
_undecoded: dict[type, msgspec.msgpack.Decoder[msgspec.Struct]] = {}  # one, for fields of any message
_elements = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TOO_LONG: Final = re.compile(r"Expected `(?:array|object)` of length <= (\d+) - at `\$(.+)`")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


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
    names = sorted({name for kind in kinds for name in kind.__struct_fields__})
    undecoded = msgspec.defstruct("_Undecoded", [(name, msgspec.Raw, msgspec.Raw(b"\xc0")) for name in names])
    _undecoded[undecoded] = msgspec.msgpack.Decoder(undecoded)


def encode(message: msgspec.Struct) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview | msgspec.Raw, kind: type[_M]) -> _M:
    """The message in ``data``, checked. Raises `InvalidRequestError` that says which field is wrong."""
    if issubclass(kind, Request):
        check_size(data, kind)
    try:
        message = _decoders[kind].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"not a {kind.__name__}: {_too_long(data, str(error)) or error}") from None
    assert isinstance(message, kind)
    return message


def check_size(data: bytes | bytearray | memoryview | msgspec.Raw, kind: type[Request]) -> None:
    """Raises `InvalidRequestError` for more bytes than a request of the kind may have."""
    size_bytes = memoryview(data).nbytes
    if size_bytes > kind.MOST_BYTES:
        raise InvalidRequestError(f"a {kind.__name__} of {size_bytes} bytes; at most {kind.MOST_BYTES} are allowed")


def portions(entries: Iterable[_E]) -> list[tuple[_E, ...]]:
    """The entries, in lists that are as long as a request takes; of none, a list that is empty."""
    left = iter(entries)
    return list(iter(lambda: tuple(itertools.islice(left, MOST_ENTRIES)), ())) or [()]


def _too_long(data: bytes | bytearray | memoryview | msgspec.Raw, refusal: str) -> str | None:
    """What is to be said of the list that is too long, if that is why the data was refused."""
    match = _TOO_LONG.fullmatch(refusal)
    if match is None or "[...]" in match[2]:
        return None
    (fields,) = _undecoded.values()
    found = msgspec.Raw(data)
    try:
        for name, index in _STEP.findall(match[2]):
            found = getattr(fields.decode(found), name) if name else _elements.decode(found)[int(index)]
    except msgspec.DecodeError:  # what comes after the list is damaged as well
        return None
    return f"{match[2][1:]} has {_length(bytes(found)[:5])} entries; at most {match[1]} are allowed"


def _length(head: bytes) -> int:
    """Of the MessagePack array or map that begins so."""
    size_bytes = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}.get(head[0], 0)
    return int.from_bytes(head[1 : 1 + size_bytes], "big") if size_bytes else head[0] & 0x0F
