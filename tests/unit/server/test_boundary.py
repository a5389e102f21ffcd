"""What a peer's bytes make Arrow raise becomes an error of ours that says whose fault it is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from foreign_names import FOREIGN_SCHEMAS, foreign_schema
from pyarrow import flight

from broker_runtime.contract.errors import BrokerOverloadedError, InvalidRequestError
from broker_runtime.server.boundary import (
    PeerGoneError,
    answering,
    read_chunk,
    read_schema,
    validated,
    write,
    write_put_metadata,
)


class Reader:
    """Flight's reader, with what it has or raises."""

    def __init__(self, schema: pa.Schema | None = None, raises: BaseException | None = None) -> None:
        self._schema = schema
        self._raises = raises

    @property
    def schema(self) -> pa.Schema | None:
        if self._raises is not None:
            raise self._raises
        return self._schema

    def read_chunk(self) -> Any:
        assert self._raises is not None
        raise self._raises


def _decode_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte")


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_schema_with_names_that_are_no_text_is_refused_when_it_arrives(kind: str) -> None:
    """Arrow decodes names when they are first asked for: nobody behind the boundary meets bytes that are not UTF-8."""
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        read_schema(Reader(foreign_schema(kind)))


@pytest.mark.parametrize("kind", FOREIGN_SCHEMAS)
def test_schema_with_names_that_are_text_is_taken_as_it_is(kind: str) -> None:
    """The same shapes are fine when their names are."""
    schema = FOREIGN_SCHEMAS[kind]
    assert read_schema(Reader(schema)) is schema


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (pa.ArrowInvalid("bad\nmore"), InvalidRequestError),
        (pa.ArrowKeyError("no such dictionary"), InvalidRequestError),
        (OSError("truncated"), InvalidRequestError),
        (pa.ArrowMemoryError("2 EiB"), BrokerOverloadedError),
        (_decode_error(), InvalidRequestError),
        (flight.FlightCancelledError("gone"), PeerGoneError),
        (pa.ArrowCancelled("gone"), PeerGoneError),
    ],
)
@pytest.mark.parametrize("read", [read_chunk, read_schema])
def test_whatever_arrow_raises_of_a_message_is_the_peers_fault(
    read: Any, raised: BaseException, seen: type[Exception]
) -> None:
    """A defect of ours is only what no peer can cause."""
    with pytest.raises(seen):
        read(Reader(raises=raised))


def test_lack_of_memory_for_a_message_to_the_peer_is_no_peer_that_is_gone() -> None:
    """It is told that the broker is overloaded, like for whatever else there is no memory."""

    class Writer:
        def write(self, _: object) -> None:
            raise pa.ArrowMemoryError("malloc of size 62914560 failed")

        write_metadata = write

    for call in (lambda: write(Writer(), None, pa.py_buffer(b"")), lambda: write_put_metadata(Writer(), b"")):
        with pytest.raises(flight.FlightUnavailableError, match="BROKER_OVERLOADED"), answering("get", "peer"):
            call()


@pytest.mark.parametrize("raised", [pa.ArrowInvalid("x"), OSError("x"), _decode_error(), pa.ArrowIndexError("x")])
def test_whatever_arrow_raises_of_a_batch_is_the_peers_fault(raised: BaseException) -> None:
    """The same when its buffers are checked."""

    class Batch:
        def validate(self, *, full: bool) -> None:
            assert full
            raise raised

    batch: Any = Batch()
    with pytest.raises(InvalidRequestError, match="does not hold together"):
        validated(batch)
