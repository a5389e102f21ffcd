"""What a broker does with produced frames: it appends them, and says when they count.

Rule: knows nothing of streams. A request has two halves so that a stream can be pipelined: `append`, in the order
of arrival, and `complete`, which waits. An error of one request is that request's answer and never an exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from broker_runtime.contract.errors import (
    CorruptRecordError,
    InvalidRequestError,
    InvalidTxnStateError,
    NotSupportedError,
    ProducerFencedError,
    PylogError,
    RequestTimedOutError,
    SchemaMismatchError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import FrameHeader, SoundFrame, TransactionBegin, check_frame_schema, sound_frame
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.schema import SchemaHistory
from broker_runtime.contract.streams import ProduceRequest, ProduceResponse
from broker_runtime.contract.transactions import TransactionIdentity
from broker_runtime.contract.waiting import CLOCK, Clock, Deadline
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.replication import Partition, PartitionRegistry, PendingAppend
from broker_runtime.security.authorizer import ALLOW_ALL, Authorizer
from broker_runtime.services.caller import Caller

MAX_TIMEOUT_S = 120.0
"""The longest a request waits for its acknowledgement, whatever it asks for."""
ACKS_NONE = 0
_SHORTEST_WAIT_S = 0.05  # for a partition that is in use, whatever time the request has left

_logger = logging.getLogger(__name__)


class PendingProduce(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was appended, or refused (``error``), and is not answered yet. Holds no frame."""

    request_id: int
    acks: int
    deadline: Deadline | None = None
    partition: Partition | None = None
    appended: PendingAppend | None = None
    error: PylogError | None = None
    began_s: float = 0.0  # of the service's clock
    appended_s: float = 0.0


def _no_transactions(identity: TransactionIdentity, producer_id: int) -> None:
    raise NotSupportedError("this broker takes no transactions")


class ProduceService:
    """Appends to the partitions this broker leads. Thread-safe."""

    def __init__(
        self,
        registry: PartitionRegistry,
        *,
        require_given_out: Callable[[int], None] = lambda producer_id: None,
        require_may_begin: Callable[[TransactionIdentity, int], None] = _no_transactions,
        forget_if_anew: Callable[[Partition, str], bool] = lambda partition, name: False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        authorizer: Authorizer = ALLOW_ALL,
        clock: Clock = CLOCK,
        meters: Meters = NO_METERS,
    ) -> None:
        """``require_given_out``: see `ProducerIdService`. ``require_may_begin``, ``forget_if_anew``: see
        `TransactionService`."""
        self._registry = registry
        self._require_given_out = require_given_out
        self._require_may_begin = require_may_begin
        self._forget_if_anew = forget_if_anew
        self._now_ms = now_ms
        self._authorizer = authorizer
        self._clock = clock
        self._meters = meters

    def append(self, caller: Caller, request: ProduceRequest, frames: Sequence[pa.Buffer]) -> PendingProduce:
        """Appends the request's only frame. Blocks for the write, not for the disk, and for a partition in use
        no longer than the request's timeout. The frame is not kept.

        A frame of an idempotent producer that is in the log already is not appended again; `complete` then answers
        when the first append counts.
        """
        began_s = self._clock.now_s()
        deadline = Deadline(min(request.timeout_ms / 1000, MAX_TIMEOUT_S), clock=self._clock)
        try:
            self._authorizer.require(caller, "Write", "Topic", request.topic)
            if request.transaction is not None:
                name = request.transaction.transactional_id
                self._authorizer.require(caller, "Write", "TransactionalId", name)
            if len(frames) != 1:
                raise InvalidRequestError(f"a produce request holds one frame, this one {len(frames)}")
            frame = sound_frame(frames[0])  # before the partition's lock is taken
            _check_allowed(frame.header, request.transaction)
            partition = self._registry.find(request.topic, request.partition, request.topic_id)
            if frame.header.producer_id >= 0:
                self._require_given_out(frame.header.producer_id)
            _check_fits(frame, self._registry.topic(request.topic, request.topic_id).schemas)
            if request.transaction is not None:
                self._require_may_begin(request.transaction, frame.header.producer_id)
            appended = self._append(partition, request, frame, deadline)
        except PylogError as error:
            event(
                _logger,
                "append frame",
                level=logging.DEBUG,
                topic=request.topic,
                partition=request.partition,
                **caller.log_fields,
                error=error,
            )
            return PendingProduce(request_id=request.request_id, acks=request.acks, error=error, began_s=began_s)
        appended_s = self._clock.now_s()
        if not appended.is_duplicate:
            self._meters.produced(request.topic, records=frame.header.record_count, size_bytes=frames[0].size)
        self._meters.took("produce", "local", appended_s - began_s)
        return PendingProduce(
            request_id=request.request_id,
            acks=request.acks,
            deadline=deadline,
            partition=partition,
            appended=appended,
            began_s=began_s,
            appended_s=appended_s,
        )

    def _append(
        self, partition: Partition, request: ProduceRequest, frame: SoundFrame, deadline: Deadline
    ) -> PendingAppend:
        def append() -> PendingAppend:
            return partition.append(
                [frame],
                acks=request.acks,
                leader_epoch=request.leader_epoch,
                now_ms=self._now_ms(),
                timeout_s=max(_SHORTEST_WAIT_S, deadline.remaining_s()),
                begin=None if request.transaction is None else _begin_of(request.transaction),
            )

        try:
            return append()
        except (ProducerFencedError, InvalidTxnStateError):
            # The coordinator lets it begin, and the log remembers otherwise.
            name = None if request.transaction is None else request.transaction.transactional_id
            if name is None or not self._forget_if_anew(partition, name):
                raise
        return append()

    def complete(self, caller: Caller, pending: PendingProduce, wait_s: float) -> ProduceResponse | None:
        """The answer; None: there is none within ``wait_s``, call again. Also for ``acks=0``, whose answer is not sent.

        An answer without an error means: durable as ``flush.mode`` says, and for ``acks=-1`` held by all in-sync
        replicas. An answer of `RequestTimedOutError` means that the append may still come to count, or never.
        """
        if pending.error is not None:
            return self._refusal(pending, pending.error)
        assert pending.partition is not None
        assert pending.appended is not None
        assert pending.deadline is not None
        left_s = pending.deadline.remaining_s()
        try:
            pending.partition.complete(pending.appended, acks=pending.acks, timeout_s=min(wait_s, left_s))
            log_start = pending.partition.log_start
        except RequestTimedOutError as error:
            return self._refusal(pending, error) if left_s <= wait_s else None
        except PylogError as error:
            return self._refusal(pending, error)
        now_s = self._clock.now_s()
        self._meters.took("produce", "remote", now_s - pending.appended_s)
        self._meters.answered("produce", now_s - pending.began_s)
        return ProduceResponse(
            request_id=pending.request_id,
            base_offset=pending.appended.base_offset,
            append_time_ms=pending.appended.append_time_ms,
            log_start=log_start,
            leader_epoch=pending.appended.leader_epoch,
        )

    def _refusal(self, pending: PendingProduce, error: PylogError) -> ProduceResponse:
        self._meters.answered("produce", self._clock.now_s() - pending.began_s, error)
        return ProduceResponse(request_id=pending.request_id, error=ErrorInfo.of(error))


def _check_allowed(header: FrameHeader, transaction: TransactionIdentity | None) -> None:
    """Raises for sound frames that clients may not send."""
    if header.is_control:
        raise InvalidRequestError("only brokers write control frames")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRequestError("a transactional frame has a producer id, from begin_transaction")
    if transaction is not None and not header.is_transactional:
        raise InvalidRequestError("a transaction begins with a transactional frame")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRequestError(
            f"a frame of producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}: both begin at 0"
        )


def _begin_of(identity: TransactionIdentity) -> TransactionBegin:
    return TransactionBegin(
        transactional_id=identity.transactional_id,
        epoch=identity.epoch,
        batch_id=identity.batch_id,
        run_id=identity.run_id,
        attempt=identity.attempt,
    )


def _check_fits(frame: SoundFrame, schemas: SchemaHistory) -> None:
    """Raises unless the frame's columns are the topic's."""
    try:
        check_frame_schema(frame, schemas)
    except CorruptRecordError as error:
        raise SchemaMismatchError(f"a sound frame that does not fit the topic: {error.message}") from None
