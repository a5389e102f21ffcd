"""What may succeed when it is tried again: the state the caller acted on was old, or something is away."""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError


class RetriableError(PylogError):
    """The state the caller acted on is out of date, or a resource is away for a while."""

    code = "RETRIABLE"
    retriable = True


class BrokerUnavailableError(RetriableError):
    """No broker of the bootstrap list answers, or the broker is stopping."""

    code = "BROKER_UNAVAILABLE"


class NetworkError(RetriableError):
    """A connection broke with a request under way; whether it was carried out is unknown."""

    code = "NETWORK_EXCEPTION"


class RequestTimedOutError(RetriableError, TimeoutError):
    """A broker did not answer, or its condition (a high watermark) did not come, within the request's time."""

    code = "REQUEST_TIMED_OUT"


class TooManyStreamsError(RetriableError):
    """The broker already serves ``max.connections`` streams."""

    code = "TOO_MANY_STREAMS"


class BrokerOverloadedError(RetriableError):
    """The broker has no memory, or no thread, left for the call at present; nothing was appended."""

    code = "BROKER_OVERLOADED"


class NotLeaderOrFollowerError(RetriableError):
    """The broker does not lead the partition."""

    code = "NOT_LEADER_OR_FOLLOWER"


class LeaderNotAvailableError(RetriableError):
    """The partition has no leader at present."""

    code = "LEADER_NOT_AVAILABLE"


class FencedLeaderEpochError(RetriableError):
    """The request carries an older leader epoch than the partition's."""

    code = "FENCED_LEADER_EPOCH"


class UnknownLeaderEpochError(RetriableError):
    """The request carries a newer leader epoch than the broker knows."""

    code = "UNKNOWN_LEADER_EPOCH"


class NotControllerError(RetriableError):
    """The broker is not the controller."""

    code = "NOT_CONTROLLER"


class NotCoordinatorError(RetriableError):
    """The broker is not the group's coordinator."""

    code = "NOT_COORDINATOR"


class CoordinatorNotAvailableError(RetriableError):
    """The group has no coordinator at present."""

    code = "COORDINATOR_NOT_AVAILABLE"


class NotEnoughReplicasError(RetriableError):
    """Fewer in-sync replicas than ``min.insync.replicas``; nothing was appended."""

    code = "NOT_ENOUGH_REPLICAS"


class NotEnoughReplicasAfterAppendError(RetriableError):
    """The in-sync replicas became too few after the append; the records may or may not stay."""

    code = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


class ZooKeeperUnavailableError(RetriableError):
    """The broker has no session with ZooKeeper; what needs a decision waits."""

    code = "ZOOKEEPER_UNAVAILABLE"


class LogStorageError(RetriableError):
    """The partition's log is offline after an I/O error or a full disk. Kafka's KafkaStorageException."""

    code = "KAFKA_STORAGE_ERROR"


class OffsetNotAvailableError(RetriableError):
    """The new leader does not know yet how far the log is committed (KIP-207)."""

    code = "OFFSET_NOT_AVAILABLE"
