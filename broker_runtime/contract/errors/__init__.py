"""Every error that crosses an edge of pylog, as one tree.

    PylogError
    ├── RetriableError            the state you acted on is old: refresh, wait a little, try again
    │   ├── BrokerUnavailableError, NetworkError, RequestTimedOutError, TooManyStreamsError,
    │   │   BrokerOverloadedError
    │   ├── NotLeaderOrFollowerError, LeaderNotAvailableError, FencedLeaderEpochError,
    │   │   UnknownLeaderEpochError, NotControllerError, NotCoordinatorError,
    │   │   CoordinatorNotAvailableError, OffsetNotAvailableError
    │   ├── NotEnoughReplicasError, NotEnoughReplicasAfterAppendError
    │   ├── ZooKeeperUnavailableError
    │   └── LogStorageError       the partition's log is offline (disk full, I/O error)
    ├── FencedError               somebody newer took your place: stop
    │   ├── ProducerFencedError, InvalidProducerEpochError, StaleBrokerEpochError,
    │   │   StaleControllerEpochError, InconsistentTopicIdError, UnknownMemberIdError,
    │   │   StaleMemberEpochError, FencedInstanceIdError
    ├── CorruptRecordError        bytes that fail their checks: never served, never appended
    ├── RequestError              the request can never succeed as it is (also ValueError)
    │   └── (one class per reason, see below)
    ├── ClientStateError          the caller used a client in a way its state forbids
    ├── ClientTimeoutError        a bound on a wait in the client ended (also TimeoutError)
    ├── SetupError                what the machine lacks, and how to mend it
    ├── DataLossError             records that a reader still needed are gone
    └── UnknownServerError        a defect of the broker; its log has the traceback, the wire never

Rule: a message names the offending value and what is allowed or to be done. ``code`` is Kafka's protocol name
where Kafka has one; it is what travels on the wire. Every class pickles. Foreign exceptions are translated to
these once, at the edge that meets them.
"""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError
from broker_runtime.contract.errors.client_side import (
    BufferExhaustedError,
    ClientStateError,
    ClientTimeoutError,
    ClosedError,
    DeliveryTimeoutError,
    NoOffsetForPartitionError,
    WakeupError,
)
from broker_runtime.contract.errors.damage import CorruptRecordError, DataLossError, UnknownServerError
from broker_runtime.contract.errors.fenced import (
    FencedError,
    FencedInstanceIdError,
    InconsistentTopicIdError,
    InvalidProducerEpochError,
    ProducerFencedError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from broker_runtime.contract.errors.refused import (
    DuplicateSequenceError,
    ElectionNotNeededError,
    GroupIdNotFoundError,
    GroupInUseError,
    GroupMaxSizeReachedError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidSchemaError,
    InvalidSessionTimeoutError,
    InvalidTimestampError,
    InvalidTopicError,
    NonEmptyGroupError,
    NoReassignmentInProgressError,
    NotSupportedError,
    OffsetOutOfRangeError,
    OptionError,
    OutOfOrderSequenceError,
    OverwriteRefusedError,
    PolicyViolationError,
    PreferredLeaderNotAvailableError,
    RecordTooLargeError,
    RequestError,
    SchemaMismatchError,
    TopicAlreadyExistsError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from broker_runtime.contract.errors.retriable import (
    BrokerOverloadedError,
    BrokerUnavailableError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    LogStorageError,
    NetworkError,
    NotControllerError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    RequestTimedOutError,
    RetriableError,
    TooManyStreamsError,
    UnknownLeaderEpochError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.errors.setup import (
    DirectoryLockedError,
    JavaNotFoundError,
    NotAPylogBrokerError,
    PortInUseError,
    SetupError,
    VersionMismatchError,
)

__all__ = [
    "BrokerOverloadedError",
    "BrokerUnavailableError",
    "BufferExhaustedError",
    "ClientStateError",
    "ClientTimeoutError",
    "ClosedError",
    "CoordinatorNotAvailableError",
    "CorruptRecordError",
    "DataLossError",
    "DeliveryTimeoutError",
    "DirectoryLockedError",
    "DuplicateSequenceError",
    "ElectionNotNeededError",
    "FencedError",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "GroupIdNotFoundError",
    "GroupInUseError",
    "GroupMaxSizeReachedError",
    "InconsistentTopicIdError",
    "InvalidConfigError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidSchemaError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "JavaNotFoundError",
    "LeaderNotAvailableError",
    "LogStorageError",
    "NetworkError",
    "NoOffsetForPartitionError",
    "NoReassignmentInProgressError",
    "NonEmptyGroupError",
    "NotAPylogBrokerError",
    "NotControllerError",
    "NotCoordinatorError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "NotSupportedError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "OptionError",
    "OutOfOrderSequenceError",
    "OverwriteRefusedError",
    "PolicyViolationError",
    "PortInUseError",
    "PreferredLeaderNotAvailableError",
    "ProducerFencedError",
    "PylogError",
    "RecordTooLargeError",
    "RequestError",
    "RequestTimedOutError",
    "RetriableError",
    "SchemaMismatchError",
    "SetupError",
    "StaleBrokerEpochError",
    "StaleControllerEpochError",
    "StaleMemberEpochError",
    "TooManyStreamsError",
    "TopicAlreadyExistsError",
    "UnknownLeaderEpochError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownServerError",
    "UnknownTopicOrPartitionError",
    "UnsupportedVersionError",
    "VersionMismatchError",
    "WakeupError",
    "ZooKeeperUnavailableError",
    "all_error_classes",
    "error_from_code",
]


def _tree(root: type[PylogError]) -> list[type[PylogError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_tree(child))
    return found


# Users import the tree as `pyspark_log.errors`: that is the name which tracebacks show and pickles carry.
for _error in _tree(PylogError):
    _error.__module__ = "pyspark_log.errors"

# Leaves win over the class they refine, so that INVALID_REQUEST maps to InvalidRequestError.
_BY_CODE: dict[str, type[PylogError]] = {error.code: error for error in _tree(PylogError)}
_BY_CODE["UNKNOWN_SERVER_ERROR"] = UnknownServerError


def error_from_code(code: str, message: str) -> PylogError:
    """The error that a peer meant. A code unknown here (a newer peer) becomes `UnknownServerError`."""
    known = _BY_CODE.get(code)
    if known is None:
        return UnknownServerError(f"{code}: {message}")
    return known(message)


def all_error_classes() -> list[type[PylogError]]:
    """Every class of the tree, root first."""
    return _tree(PylogError)
