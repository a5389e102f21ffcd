"""A produce stream to one broker (DoPut): frames go out, acknowledgements come back in the same order.

Rule: one thread writes, another reads; each blocks only in Flight. The broker answers every frame (save with
``acks=0``) and every heartbeat, so `silent_for_s` above `PEER_SILENCE_LIMIT_S` means that it is gone. Flight cannot
cancel this kind of call: a thread blocked on a stopped broker is freed by the connection's keepalive, within 8 s.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa

from broker_runtime.contract.connection import FLIGHT_ERRORS, connect, translate
from broker_runtime.contract.errors import NetworkError, PylogError
from broker_runtime.contract.flight import (
    FRAMES_SCHEMA,
    STREAM_OPTIONS,
    frames_batch,
    message_of,
    metadata,
    produce_descriptor,
)
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceHello, ProduceRequest, ProduceResponse
from pyspark_log.client.connection import forking
from pyspark_log.client.connection.channel import abandon

_HEARTBEAT = metadata(ProduceRequest(request_id=-1, heartbeat=True))


class ProduceStream:
    """One open stream, on a connection of its own."""

    def __init__(self, address: Address, hello: ProduceHello, *, uses_proxy: bool = False) -> None:
        """Opens it; raises `BrokerUnavailableError` and the like where that shows already. ``uses_proxy``: as for
        `connect`."""
        self.address = address
        self._write_lock = threading.Lock()  # a fork ends the stream between two writes
        self._client: Any = None
        self._writer: Any = None
        self._reader: Any = None
        self._is_ended = False
        self._heard_s = time.monotonic()
        forking.register(self)
        with forking.flight_use():
            try:
                self._client = connect(address, STREAM_OPTIONS, uses_proxy=uses_proxy)
                self._writer, self._reader = self._client.do_put(produce_descriptor(hello), FRAMES_SCHEMA)
                return
            except FLIGHT_ERRORS as error:
                translated = translate(error, address)
            self._drop()
            raise translated

    @property
    def silent_for_s(self) -> float:
        """How long nothing came from the broker."""
        return time.monotonic() - self._heard_s

    def write(self, request: ProduceRequest, frame: pa.Buffer) -> None:
        """Sends one frame. Blocks while the broker takes nothing. Raises a network error."""
        with forking.flight_use(), self._write_lock:
            try:
                if self._is_ended:
                    raise NetworkError("the produce stream was ended")
                self._writer.write_with_metadata(frames_batch([frame]), metadata(request))
                return
            except FLIGHT_ERRORS as error:
                translated = translate(error, self.address)
            raise translated

    def write_heartbeat(self) -> None:
        """Says that this client lives; the broker answers."""
        with forking.flight_use(), self._write_lock:
            try:
                if self._is_ended:
                    raise NetworkError("the produce stream was ended")
                self._writer.write_metadata(_HEARTBEAT)
                return
            except FLIGHT_ERRORS as error:
                translated = translate(error, self.address)
            raise translated

    def read(self) -> ProduceResponse | None:
        """Blocks for the next answer, heartbeats left out; None at the end. Raises what ended the stream."""
        while True:
            with forking.flight_use():
                try:
                    if self._reader is None:  # dropped by a fork, while the caller was busy with an answer
                        raise NetworkError("the produce stream was ended")
                    body = self._reader.read()
                    if body is None:
                        translated = self._reason()
                    else:
                        self._heard_s = time.monotonic()
                        response = message_of(body, ProduceResponse)
                        if response.request_id >= 0:
                            return response
                        continue
                except FLIGHT_ERRORS as error:
                    translated = translate(error, self.address)
            if translated is None:
                return None
            raise translated

    def end(self) -> None:
        """No more writes: the broker answers what it has and ends, and `read` returns None. Any thread."""
        with self._write_lock:
            if not self._is_ended and self._writer is not None:
                self._is_ended = True
                try:
                    self._writer.done_writing()
                except FLIGHT_ERRORS:
                    return  # it is broken already: the reader learns why

    def close(self) -> None:
        """Lets the connection go, after `read` came to its end."""
        self.end()
        self._drop()
        forking.unregister(self)

    def _interrupt_for_fork(self) -> None:
        """See `forking`: the broker answers what it has, then the stream's owner opens another."""
        if self._write_lock.acquire(timeout=forking.FORK_WAIT_S):
            self._write_lock.release()
            self.end()

    def _drop_for_fork(self) -> None:
        """See `forking`."""
        self._drop()

    def _after_fork_in_child(self) -> None:
        """See `forking`."""
        self._write_lock = threading.Lock()
        self._is_ended = True
        for flight_object in (self._reader, self._writer, self._client):
            abandon(flight_object)
        self._reader = self._writer = self._client = None

    def _reason(self) -> PylogError | None:
        """Why the broker ended the stream; None: it was asked to."""
        try:
            self._writer.close()
        except FLIGHT_ERRORS as error:
            return translate(error, self.address)
        return None if self._is_ended else NetworkError(f"{self.address} ended the produce stream")

    def _drop(self) -> None:
        with self._write_lock:
            self._is_ended = True
            if self._writer is not None:
                try:
                    self._writer.close()  # or its destructor complains on stderr
                except FLIGHT_ERRORS:
                    self._writer = None
            self._reader = self._writer = None
            if self._client is not None:
                self._client.close()
                self._client = None
