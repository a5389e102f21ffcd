"""A fetch session (DoExchange), of a consumer or of a follower: one request, one answer, in lockstep, with a heartbeat
every second of a wait.

Rule: one thread. Of a consumer only the number of its requests is kept from one to the next (so that a byte limit
starves no partition), of a follower what it wants (`FollowerSession`). An answer's bytes are given back to the budget
when they are written, or cannot be.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from broker_runtime.contract.flight import FRAMES_SCHEMA, frames_batch, message_of, metadata
from broker_runtime.contract.quotas import CONSUMER_BYTE_RATE
from broker_runtime.contract.streams import FetchRequest, FetchResponse
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.security.quotas import ProcessorTime
from broker_runtime.server.boundary import read_chunk, write
from broker_runtime.server.streams import OpenStream
from broker_runtime.services.caller import BrokerCaller
from broker_runtime.services.fetch import FETCH, FOLLOWER_FETCH, FetchService

_HEARTBEAT = metadata(FetchResponse(request_id=-1))


class FetchSession:
    """One session, from its hello to its end. `serve` is its only entry."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        *,
        service: FetchService,
        stream: OpenStream,
        meters: Meters = NO_METERS,
    ) -> None:
        """The session is that of ``stream``'s caller: a follower's if that is a broker, else a consumer's."""
        self._reader = reader
        self._writer = writer
        self._service = service
        self._stream = stream
        caller = self._caller = stream.caller
        self._follower = service.follower_session(caller) if isinstance(caller, BrokerCaller) else None
        self._requests = 0
        self._meters = meters
        self._kind = FETCH if self._follower is None else FOLLOWER_FETCH

    def serve(self) -> None:
        """Returns at the session's end. Raises `InvalidRequestError` for a malformed message, `PeerGoneError`."""
        try:
            self._writer.begin(FRAMES_SCHEMA)
            timer = ProcessorTime(self._stream.allowance)
            while (chunk := self._read()) is not None:
                request = message_of(chunk.app_metadata, FetchRequest)
                if request.heartbeat:
                    self._send_heartbeat()
                else:
                    self._stream.allowance.wait(self._send_heartbeat)
                    self._answer(request, timer)
                    timer.spend()
        finally:
            if self._follower is not None:
                self._follower.close()

    def _answer(self, request: FetchRequest, timer: ProcessorTime) -> None:
        began_s = time.monotonic()
        self._requests += 1
        if self._follower is not None:
            answer = self._follower.fetch(request, self._send_heartbeat)
        else:
            most_bytes = self._stream.allowance.most_in_one_second(CONSUMER_BYTE_RATE, request.max_bytes)
            if most_bytes < request.max_bytes:
                request = replace(request, max_bytes=most_bytes)
            answer = self._service.fetch(
                self._caller, request, rotation=self._requests, still_waiting=self._send_heartbeat
            )
        try:
            self._stream.allowance.spend(CONSUMER_BYTE_RATE, sum(cell.size for cell in answer.cells))
            timer.spend()  # most of it, so that the answer says how long
            response = answer.response
            if throttle_ms := self._stream.allowance.throttle_ms():
                response = replace(response, throttle_ms=throttle_ms)
            batch = frames_batch(answer.cells) if answer.cells else None
            answered_s = time.monotonic()
            with self._stream.writing:
                write(self._writer, batch, metadata(response))
            written_s = time.monotonic()
            self._meters.took(self._kind, "response", written_s - answered_s)
            self._meters.answered(self._kind, written_s - began_s)
        finally:
            answer.close()

    def _read(self) -> Any | None:
        with self._stream.reading:
            chunk = read_chunk(self._reader)
        if chunk is not None:
            self._stream.took(chunk)
        return chunk

    def _send_heartbeat(self) -> None:
        with self._stream.writing:
            write(self._writer, None, _HEARTBEAT)
