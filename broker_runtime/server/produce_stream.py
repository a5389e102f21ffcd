"""A produce stream (DoPut): gRPC's thread reads and appends, a second one acknowledges, in the order of arrival.

So the disk's fdatasync of one request overlaps with receiving and appending the next, and one fdatasync serves all
that were appended meanwhile. Where a client sends one small request and waits there is nothing to overlap: gRPC's
thread acknowledges that request itself, without waking the other.

Rule: a received frame lives from its read to the end of its append; a request that waits for its acknowledgement holds
no frame. At most `_MAX_PENDING` requests of a stream are unacknowledged; beyond that the stream is not read, and the
client's writes block. One thread at a time writes to the peer: gRPC's only when no request waits for its
acknowledgement.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from msgspec.structs import replace

from broker_runtime.contract.errors import PylogError, RequestTimedOutError
from broker_runtime.contract.flight import frames_of, message_of, metadata
from broker_runtime.contract.quotas import PRODUCER_BYTE_RATE
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S
from broker_runtime.contract.streams import ProduceRequest, ProduceResponse
from broker_runtime.contract.waiting import Worker
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.security.quotas import ProcessorTime
from broker_runtime.server.boundary import PeerGoneError, defect, read_chunk, write_put_metadata
from broker_runtime.server.streams import OpenStream
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.produce import ACKS_NONE, PendingProduce, ProduceService

_MAX_PENDING = 256
_MAX_BUDGET_WAIT_S = 10.0
_IDLE_S = 60.0
_LOCKSTEP_AFTER_S = 0.0002  # after a request that took so long to come, no other is right behind
_LOCKSTEP_MOST_BYTES = 64 << 10
_LOCKSTEP_WAIT_S = 0.1
_HEARTBEAT = metadata(ProduceResponse(request_id=-1))


class ProduceStream:
    """One stream, from its hello to its end. `serve` is its only entry."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        *,
        service: ProduceService,
        budget: ByteBudget,
        stream: OpenStream,
        meters: Meters = NO_METERS,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._service = service
        self._budget = budget
        self._stream = stream
        self._meters = meters
        self._pending: SimpleQueue[PendingProduce | None] = SimpleQueue()  # request_id -1: a heartbeat; None: the end
        self._slots = threading.Semaphore(_MAX_PENDING)
        self._enqueued = 0  # written by the reading thread alone
        self._acknowledged = 0  # written by the acknowledging thread alone; equal: that thread is idle
        self._failure: Exception | None = None  # of the acknowledging thread
        self._is_peer_gone = False
        self._acknowledging_time: ProcessorTime | None = None  # of the acknowledging thread
        self._acknowledger = Worker(f"produce-ack-{stream.caller.address}", self._acknowledge_next)

    def serve(self) -> None:
        """Returns at the stream's end, when all its requests are acknowledged or given up.

        Raises `InvalidRequestError` for a malformed message, `PeerGoneError`; the requests before it are answered.
        """
        self._acknowledger.start()
        timer = ProcessorTime(self._stream.allowance)
        try:
            asked_s = time.monotonic()
            while (chunk := self._read()) is not None:
                try:
                    self._take(chunk, time.monotonic() - asked_s)
                finally:
                    self._stream.took(chunk)  # only now: until here the broker held it
                del chunk
                timer.spend()
                asked_s = time.monotonic()
        finally:
            self._pending.put(None)
            # Bounded: each pending request has a deadline of at most MAX_TIMEOUT_S, and they run concurrently.
            while not self._acknowledger.join(_IDLE_S):
                pass
        if self._failure is not None:
            raise self._failure

    # --- the reading thread ---

    def _read(self) -> Any | None:
        self._stream.allowance.wait_for_room(self._show_alive)
        with self._stream.reading:
            return read_chunk(self._reader)

    def _take(self, chunk: Any, waited_s: float) -> None:
        if self._failure is not None:
            raise self._failure
        request = message_of(chunk.app_metadata, ProduceRequest)
        if request.heartbeat:
            self._enqueue(PendingProduce(request_id=-1, acks=ACKS_NONE))
            return
        frames = frames_of(chunk.data)
        size_bytes = sum(frame.size for frame in frames)
        # Only now, so that the end of the stream is seen at once, and heartbeats are answered.
        self._stream.allowance.wait(self._show_alive, holding_bytes=size_bytes)
        self._stream.allowance.spend(PRODUCER_BYTE_RATE, size_bytes)
        began_s = time.monotonic()
        has_room = self._budget.acquire(size_bytes, min(_MAX_BUDGET_WAIT_S, request.timeout_ms / 1000))
        self._meters.took("produce", "queue", time.monotonic() - began_s)
        if not has_room:
            busy = RequestTimedOutError(f"the broker is busy: no room for a request of {size_bytes} bytes")
            self._enqueue(PendingProduce(request_id=request.request_id, acks=request.acks, error=busy, began_s=began_s))
            return
        try:
            pending = self._service.append(self._stream.caller, request, frames)
        finally:
            self._budget.release(size_bytes)
        is_alone = waited_s >= _LOCKSTEP_AFTER_S and self._enqueued == self._acknowledged
        if is_alone and size_bytes <= _LOCKSTEP_MOST_BYTES:
            response = self._service.complete(self._stream.caller, pending, _LOCKSTEP_WAIT_S)
            if response is not None:
                self._answer(pending, response)
                return
        self._enqueue(pending)

    def _enqueue(self, pending: PendingProduce) -> None:
        while not self._slots.acquire(timeout=_IDLE_S):
            if self._failure is not None:
                raise self._failure
        if self._failure is not None:
            raise self._failure
        self._enqueued += 1
        self._pending.put(pending)

    def _show_alive(self) -> None:
        """While a request of a client over its quota is held back. Raises `PeerGoneError`."""
        if self._is_peer_gone:
            raise PeerGoneError("it left while it was held back")
        self._enqueue(PendingProduce(request_id=-1, acks=ACKS_NONE))

    # --- the acknowledging thread ---

    def _acknowledge_next(self) -> None:
        try:
            pending = self._pending.get(timeout=_IDLE_S)
        except Empty:
            return
        if pending is None:
            self._acknowledger.stop()
            return
        try:
            if self._acknowledging_time is None:
                self._acknowledging_time = ProcessorTime(self._stream.allowance)
            self._acknowledge(pending)
            self._acknowledging_time.spend()
            self._acknowledged += 1
            self._slots.release()
        except PylogError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread of ours: the boundary is here, and `serve` raises it
            self._fail(defect(error, self._stream.kind, self._stream.caller))

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._acknowledger.stop()
        self._slots.release()  # no other slot becomes free: a reading thread that waits for one sees why

    def _acknowledge(self, pending: PendingProduce) -> None:
        if pending.request_id == -1:
            self._write(_HEARTBEAT)
            return
        while (response := self._service.complete(self._stream.caller, pending, HEARTBEAT_INTERVAL_S)) is None:
            self._write(_HEARTBEAT)
        self._answer(pending, response)

    # --- either thread, one at a time ---

    def _answer(self, pending: PendingProduce, response: ProduceResponse) -> None:
        if pending.acks != ACKS_NONE:
            if throttle_ms := self._stream.allowance.throttle_ms():
                response = replace(response, throttle_ms=throttle_ms)
            began_s = time.monotonic()
            self._write(metadata(response))
            self._meters.took("produce", "response", time.monotonic() - began_s)

    def _write(self, app_metadata: Any) -> None:
        if self._is_peer_gone:
            return  # what was appended is still completed, for its readers
        try:
            with self._stream.writing:
                write_put_metadata(self._writer, app_metadata)
        except PeerGoneError:
            self._is_peer_gone = True
