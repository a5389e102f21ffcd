"""What a broker's answer means for a frame, and for those behind it.

Rule: an answer is certain where the broker gives it before it appends, and never after; every other error leaves open
whether the frame is in the log.
"""

from __future__ import annotations

from broker_runtime.contract.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTimestampError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RetriableError,
    SchemaMismatchError,
    UnknownLeaderEpochError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.streams import ProduceResponse
from pyspark_log.client.accumulator import Accumulator
from pyspark_log.client.partition_queue import Outgoing

_OUT_OF_SEQUENCE = (OutOfOrderSequenceError, UnknownProducerIdError)
_NEVER_APPENDED = (
    FencedLeaderEpochError, InvalidProducerEpochError, InvalidRequestError, InvalidTimestampError,
    NotEnoughReplicasError, RecordTooLargeError, SchemaMismatchError, UnknownLeaderEpochError,
)  # fmt: skip
_TOPIC_IS_GONE = (InconsistentTopicIdError, UnknownTopicOrPartitionError)
"""Or the broker has not heard of it: fresh metadata says whether its records fail, or go to another of that name."""
_OF_OLD_METADATA = (RetriableError, *_TOPIC_IS_GONE, RecordTooLargeError)


def settle(accumulator: Accumulator, outgoing: Outgoing, response: ProduceResponse) -> bool:
    """Tells ``accumulator`` what became of a frame in flight. Returns whether the topic's metadata seems to be old."""
    if response.error is None:
        accumulator.answered(outgoing, base_offset=response.base_offset, append_time_ms=response.append_time_ms)
        return False
    error = error_of(response.error)
    is_doubtful = not isinstance(error, _NEVER_APPENDED)
    if isinstance(error, _OUT_OF_SEQUENCE) and outgoing.number is not None:
        accumulator.disordered(outgoing, error)
    elif isinstance(error, (RetriableError, *_TOPIC_IS_GONE)):
        accumulator.repeat([outgoing], error, is_doubtful=is_doubtful)
    else:
        accumulator.refused(outgoing, error, is_doubtful=is_doubtful)
    return isinstance(error, _OF_OLD_METADATA)
