"""A produce stream and a fetch session as a client opens them, by hand: thin, so that tests can break the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract import streams
from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    fetch_descriptor,
    frames_batch,
    frames_of,
    from_flight_error,
    message_of,
    metadata,
    produce_descriptor,
    read_ticket,
)

OPTIONS = flight.FlightCallOptions(timeout=60)


class ProduceStream:
    """One produce stream."""

    def __init__(self, client: flight.FlightClient, hello: streams.ProduceHello | None = None) -> None:
        descriptor = produce_descriptor(hello or streams.ProduceHello())
        self.writer, self.reader = client.do_put(descriptor, FRAMES_SCHEMA, OPTIONS)
        self.sent = 0
        self.heartbeats = 0

    def __enter__(self) -> ProduceStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def send(self, frames: Sequence[pa.Buffer], topic: str = "untyped", partition: int = 0, **fields: object) -> int:
        self.sent += 1
        request = streams.ProduceRequest(request_id=self.sent, topic=topic, partition=partition, **fields)
        try:
            self.writer.write_with_metadata(frames_batch(frames), metadata(request))
        except (flight.FlightError, pa.ArrowException) as error:
            raise from_flight_error(error, "server") from None
        return self.sent

    def answer(self) -> streams.ProduceResponse:
        """The next answer that is not a heartbeat; raises the stream's error if it has ended."""
        while True:
            message = self.reader.read()
            if message is None:
                raise self.end()
            response = message_of(message, streams.ProduceResponse)
            if response.request_id != -1:
                return response
            self.heartbeats += 1

    def end(self) -> PylogError:
        """The error with which the server ended the stream."""
        try:
            self.writer.close()
        except (flight.FlightError, pa.ArrowException) as error:
            return from_flight_error(error, "server")
        raise AssertionError("the stream ended without an error")

    def produce(self, frames: Sequence[pa.Buffer], **fields: object) -> streams.ProduceResponse:
        self.send(frames, **fields)
        return self.answer()


class FetchSession:
    """One fetch session."""

    def __init__(self, client: flight.FlightClient, hello: streams.FetchHello | None = None) -> None:
        self.writer, self.reader = client.do_exchange(fetch_descriptor(hello or streams.FetchHello()), OPTIONS)
        with suppress(flight.FlightError, pa.ArrowException):  # it was refused already: `ask` finds the reason
            self.writer.begin(FRAMES_SCHEMA)
        self.sent = 0
        self.heartbeats = 0

    def __enter__(self) -> FetchSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def ask(self, *partitions: streams.FetchPartition, **fields: object) -> None:
        self.sent += 1
        request = streams.FetchRequest(request_id=self.sent, partitions=partitions, **fields)
        try:
            self.writer.write_metadata(metadata(request))
        except (flight.FlightError, pa.ArrowException) as error:
            raise from_flight_error(error, "server") from None

    def heartbeat(self) -> None:
        self.writer.write_metadata(metadata(streams.FetchRequest(request_id=-1, heartbeat=True)))

    def answer(self) -> tuple[streams.FetchResponse, list[pa.Buffer]]:
        while True:
            try:
                chunk = self.reader.read_chunk()
            except (flight.FlightError, pa.ArrowException) as error:
                raise from_flight_error(error, "server") from None
            response = message_of(chunk.app_metadata, streams.FetchResponse)
            if response.request_id == self.sent:
                return response, frames_of(chunk.data)
            assert response.request_id == -1
            self.heartbeats += 1

    def fetch(
        self, *partitions: streams.FetchPartition, **fields: object
    ) -> tuple[streams.FetchResponse, list[pa.Buffer]]:
        self.ask(*partitions, **fields)
        return self.answer()


def read(client: flight.FlightClient, **fields: object) -> list[tuple[streams.ReadResponse, list[pa.Buffer]]]:
    """All parts of a read."""
    try:
        reader = client.do_get(read_ticket(streams.ReadRequest(**fields)), OPTIONS)
        return [(message_of(chunk.app_metadata, streams.ReadResponse), frames_of(chunk.data)) for chunk in reader]
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight_error(error, "server") from None
