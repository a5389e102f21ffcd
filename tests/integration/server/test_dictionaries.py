"""A message without a header after a dictionary makes Arrow end the process: brokers never let Arrow read one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from broker_runtime.contract.flight import FRAMES_SCHEMA, fetch_descriptor, produce_descriptor
from broker_runtime.contract.streams import FetchHello, ProduceHello
from tests.integration.server.raw_grpc import Connection, bytes_field
from tests.integration.server.serving import serving

_PATH = bytes([8, 1]) + bytes_field(3, b"untyped") + bytes_field(3, b"0")
_PRODUCE = bytes([8, 2]) + bytes_field(2, produce_descriptor(ProduceHello()).command)
_FETCH = bytes([8, 2]) + bytes_field(2, fetch_descriptor(FetchHello()).command)
_ENCODED = pa.array([b"a", b"b"]).dictionary_encode()
_NESTED = pa.StructArray.from_arrays([_ENCODED], ["inner"])


def _messages(values: pa.Array) -> list[pa.ipc.Message]:
    """The parts of an Arrow stream: the schema, a dictionary, ..."""
    batch = pa.record_batch([values], [FRAMES_SCHEMA.names[0]])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return list(islice(pa.ipc.MessageReader.open_stream(sink.getvalue()), 2))


@pytest.mark.parametrize("values", [_ENCODED, _NESTED], ids=["column", "nested"])
@pytest.mark.parametrize(("method", "descriptor"), [("DoPut", _PATH), ("DoPut", _PRODUCE), ("DoExchange", _FETCH)])
def test_message_without_a_header_after_a_dictionary_ends_no_broker(
    tmp_path: Path, method: str, descriptor: bytes, values: pa.Array
) -> None:
    """This holds for the first and for the second message of the stream."""
    schema, dictionary = _messages(values)
    opening = bytes_field(1, descriptor) + bytes_field(2, schema.metadata.to_pybytes())
    of_dictionary = bytes_field(2, dictionary.metadata.to_pybytes()) + bytes_field(1000, dictionary.body.to_pybytes())
    nothing = bytes_field(3, b"x")
    with serving(tmp_path / "data") as server:
        connection = Connection(server.port)
        for messages in ([opening, nothing], [opening, of_dictionary, nothing]):
            connection.call(method, messages)
        assert connection.drain(30.0) == 0
        connection.close()
        assert server.is_alive
