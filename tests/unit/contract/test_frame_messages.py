"""The metadata of a chunk's message is parsed once, however often its bytes are read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import encode_frame, parse_header
from broker_runtime.contract.frame import message as messages
from broker_runtime.contract.schema import TopicSchema


def _chunk(columns: int, rows: int = 3) -> bytes:
    """The only chunk of a frame with that many integer columns."""
    names = [f"c{number}" for number in range(columns)]
    schema = TopicSchema(schema_id=0, arrow=pa.schema([(name, pa.int64()) for name in names]))
    batch = pa.record_batch({name: pa.array(range(rows)) for name in names})
    frame = encode_frame(batch, schema, timestamps=0).to_pybytes()
    header = parse_header(frame)
    assert header.chunk_count == 1
    return frame[header.head_bytes :]


def test_metadata_seen_before_is_checked_against_the_chunk_at_hand() -> None:
    """A cut chunk with the metadata of a sound one is refused all the same."""
    chunk = _chunk(columns=2)
    found = messages.parse_message(memoryview(chunk))
    assert found.rows == 3
    assert messages.parse_message(memoryview(bytearray(chunk))) == found
    for length in (len(chunk) - 64, len(chunk) + 64):
        with pytest.raises(CorruptRecordError, match="room for"):
            messages.parse_message(memoryview(chunk.ljust(length, b"\0")[:length]))


def test_metadata_that_was_refused_is_refused_again() -> None:
    """Only sound outcomes are remembered."""
    chunk = _chunk(columns=1, rows=777).replace((777).to_bytes(8, "little"), (-777).to_bytes(8, "little", signed=True))
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match="-777"):
            messages.parse_message(memoryview(chunk))


def test_remembered_metadata_is_bounded() -> None:
    """Producers cannot make a broker remember without bounds: it keeps few messages, and only small ones."""
    messages._parse_known.cache_clear()
    wide = _chunk(columns=60)
    assert messages.parse_message(memoryview(wide)).node_count == 60
    assert messages._parse_known.cache_info().currsize == 0
    for rows in range(1, 700):
        messages.parse_message(memoryview(_chunk(columns=1, rows=rows)))
    assert messages._parse_known.cache_info().currsize <= 512
