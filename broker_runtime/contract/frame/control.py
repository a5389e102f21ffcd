"""Control frames: where transactions begin and end in a partition. Only brokers write them, and no reader gets them.

A control frame has a header with the bits ``control`` and ``transactional``, no records, and one offset of its own. Its
directory names one chunk without columns, which is the payload:

| offset | size | what                                                            |
|-------:|-----:|-----------------------------------------------------------------|
|      0 |    1 | type: 1 `TransactionBegin`, 2 `TransactionEnd`                  |
|      1 |    3 | zero                                                            |
|      4 |    4 | bytes of the MessagePack that follows, little-endian            |
|      8 |      | MessagePack: the type's fields as an array, in the order below  |
|        |      | zeros up to the next multiple of 64                             |

A field that a later version appends to an array is ignored by this one.

`TransactionBegin` comes before the first frame of a transaction in each partition, with the producer id of the
transaction in its header. So whoever leads the partition knows whose transaction it is, and can ask its coordinator for
the outcome. `TransactionEnd` is written once per decision and partition. It names the outcome of each transaction that
it ends there, with its first offset, so that the index of aborted transactions and the last stable offset follow from
the frames alone.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, TypeAlias

import msgspec
import pyarrow as pa
from crc32c import crc32c

from broker_runtime.contract.errors import CorruptRecordError, InvalidRequestError
from broker_runtime.contract.frame.directory import Chunk, directory_size, pack_directory, padded
from broker_runtime.contract.frame.header import HEADER_BYTES, Buffer, FrameHeader, pack_header, parse_header

MOST_ENDED: Final = 10_000
"""How many transactions one `TransactionEnd` names at most."""

_PREFIX = struct.Struct("<BxxxI")
_LONGEST_NAME: Final = 1024

_Int64 = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)]


class TransactionBegin(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Whose transaction begins: that of the header's producer id.

    ``epoch``: rises whenever another run, or another process, takes ``transactional_id`` over. ``batch_id``: rises with
    every transaction (Spark: the micro-batch). ``run_id`` and ``attempt`` say which of several that do the same work;
    "" and -1 where there is only one.
    """

    transactional_id: _Name
    epoch: _Int64
    batch_id: _Int64
    run_id: _Name = ""
    attempt: _Int64 = -1


class EndedTransaction(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One transaction that ended. ``first_offset``: of its `TransactionBegin` in this partition."""

    producer_id: _Int64
    first_offset: _Int64
    is_committed: bool


class TransactionEnd(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The outcomes of transactions of one transactional id, as its coordinator had them recorded before.

    From here on, transactions of that id begin in this partition only with ``epoch`` or a later one, and only with a
    ``batch_id`` beyond this one. ``last_stable_offset``: the partition's, if this frame is committed and nothing else
    ends. ``ended``: at most `MOST_ENDED`.
    """

    transactional_id: _Name
    epoch: _Int64
    batch_id: _Int64
    last_stable_offset: _Int64
    ended: Annotated[tuple[EndedTransaction, ...], msgspec.Meta(max_length=MOST_ENDED)] = ()

    @property
    def aborted(self) -> tuple[EndedTransaction, ...]:
        """Those of ``ended`` whose records nobody gets who reads committed ones."""
        return tuple(each for each in self.ended if not each.is_committed)


Control: TypeAlias = TransactionBegin | TransactionEnd

_NUMBERS: Final[dict[type[Control], int]] = {TransactionBegin: 1, TransactionEnd: 2}
# Made before any thread decodes, as msgspec asks for (see `requests.make_decoders`).
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Control]]] = {
    number: msgspec.msgpack.Decoder(kind) for kind, number in _NUMBERS.items()
}


def encode_control(control: Control, *, now_ms: int, producer_id: int = -1, producer_epoch: int = -1) -> pa.Buffer:
    """The frame of ``control``, unstamped, in newly allocated memory. ``producer_id``, ``producer_epoch``: of the
    transaction that begins. Raises `InvalidRequestError` for values that a control frame cannot have."""
    body = msgspec.msgpack.encode(control)
    try:
        _DECODERS[_NUMBERS[type(control)]].decode(body)  # what cannot be read must not get into a log
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{control!r:.300} cannot be a control frame: {error}") from None
    length = padded(_PREFIX.size + len(body))
    chunk = (_PREFIX.pack(_NUMBERS[type(control)], len(body)) + body).ljust(length, b"\0")
    directory = pack_directory([Chunk(length, crc32c(chunk), length, 0)], (), ())
    header = FrameHeader(
        base_offset=-1,
        append_time_ms=-1,
        high_watermark=-1,
        leader_epoch=-1,
        timestamp_type=0,
        pruned_bytes=0,
        frame_bytes=HEADER_BYTES + directory_size(1, ()) + length,
        uncompressed_bytes=length,
        codec="none",
        is_transactional=True,
        is_control=True,
        record_count=0,
        last_offset_delta=0,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        schema_id=0,
        chunk_count=1,
        directory_bytes=len(directory),
    )
    return pa.py_buffer(bytearray(pack_header(header, directory) + directory + chunk))


def parse_control(frame: Buffer) -> Control:
    """What the control frame says that fills ``frame``, whose checksums the caller has verified.

    Raises `CorruptRecordError` for a payload that is none.
    """
    view = memoryview(frame).cast("B")
    header = parse_header(view)
    payload = view[header.head_bytes : header.frame_bytes]
    if not header.is_control or len(payload) < _PREFIX.size:
        raise CorruptRecordError(f"the frame at offset {header.base_offset} is no control frame")
    number, length = _PREFIX.unpack_from(payload)
    if number not in _DECODERS or length > len(payload) - _PREFIX.size:
        raise CorruptRecordError(
            f"the control frame at offset {header.base_offset} has type {number} and {length} bytes of "
            f"{len(payload) - _PREFIX.size}"
        )
    try:
        return _DECODERS[number].decode(payload[_PREFIX.size : _PREFIX.size + length])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the control frame at offset {header.base_offset} is damaged: {error}") from None
