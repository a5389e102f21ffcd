"""A fetch session (DoExchange), of a consumer or of a follower: one request, one answer, in lockstep, with a sign of
life each second of a wait.

Rule: one thread; nothing is kept between two requests of a consumer but how often it asked (so that a byte limit
starves no partition); of a follower what it wants (`FollowerSession`). An answer's bytes are given back to the budget
when they are written, or cannot be.
"""

from __future__ import annotations

from typing import Any

from broker_runtime.contract.flight import FRAMES_SCHEMA, frames_batch, message_of, metadata
from broker_runtime.contract.streams import FetchRequest, FetchResponse
from broker_runtime.server.boundary import read_chunk, write
from broker_runtime.server.streams import OpenStream
from broker_runtime.services.caller import BrokerCaller
from broker_runtime.services.fetch import FetchService

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
    ) -> None:
        """Of ``stream``'s caller: a follower's if that is a broker, else a consumer's."""
        self._reader = reader
        self._writer = writer
        self._service = service
        self._stream = stream
        caller = self._caller = stream.caller
        self._follower = service.follower_session(caller) if isinstance(caller, BrokerCaller) else None
        self._asked = 0

    def serve(self) -> None:
        """Returns at the session's end. Raises `InvalidRequestError` for a message that is none, `PeerGoneError`."""
        try:
            self._writer.begin(FRAMES_SCHEMA)
            while (chunk := self._read()) is not None:
                request = message_of(chunk.app_metadata, FetchRequest)
                if request.heartbeat:
                    self._say_alive()
                else:
                    self._answer(request)
        finally:
            if self._follower is not None:
                self._follower.close()

    def _answer(self, request: FetchRequest) -> None:
        self._asked += 1
        if self._follower is not None:
            answer = self._follower.fetch(request, self._say_alive)
        else:
            answer = self._service.fetch(self._caller, request, rotation=self._asked, still_waiting=self._say_alive)
        try:
            batch = frames_batch(answer.cells) if answer.cells else None
            with self._stream.writing:
                write(self._writer, batch, metadata(answer.response))
        finally:
            answer.close()

    def _read(self) -> Any | None:
        with self._stream.reading:
            chunk = read_chunk(self._reader)
        if chunk is not None:
            self._stream.took(chunk)
        return chunk

    def _say_alive(self) -> None:
        with self._stream.writing:
            write(self._writer, None, _HEARTBEAT)
