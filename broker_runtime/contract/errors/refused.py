"""Requests that can never succeed as they are."""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError


class RequestError(PylogError, ValueError):
    """The request is refused as it is; repeating it changes nothing."""

    code = "INVALID_REQUEST"


class InvalidRequestError(RequestError):
    """The request's bytes or fields are not what the protocol says."""

    code = "INVALID_REQUEST"


class UnsupportedVersionError(RequestError):
    """The peer speaks another protocol version, or a frame needs a feature unknown here."""

    code = "UNSUPPORTED_VERSION"


class UnknownTopicOrPartitionError(RequestError):
    """No such topic or partition. Unlike Kafka's not retriable: the answer is the cluster's, not a broker's cache."""

    code = "UNKNOWN_TOPIC_OR_PARTITION"


class TopicAlreadyExistsError(RequestError):
    """The topic exists."""

    code = "TOPIC_ALREADY_EXISTS"


class InvalidTopicError(RequestError):
    """The topic's name is not allowed."""

    code = "INVALID_TOPIC_EXCEPTION"


class InvalidPartitionsError(RequestError):
    """The number of partitions, or a partition's number, is not allowed."""

    code = "INVALID_PARTITIONS"


class InvalidReplicationFactorError(RequestError):
    """The replication factor is below one or above the number of brokers."""

    code = "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignmentError(RequestError):
    """The replica assignment names unknown or repeated brokers, or has holes."""

    code = "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfigError(RequestError):
    """A setting is unknown or its value is not allowed."""

    code = "INVALID_CONFIG"


class PolicyViolationError(RequestError):
    """The broker's settings forbid it (for example ``delete.topic.enable=false``)."""

    code = "POLICY_VIOLATION"


class OffsetOutOfRangeError(RequestError):
    """The offset is below the log's start or above its end."""

    code = "OFFSET_OUT_OF_RANGE"


class RecordTooLargeError(RequestError):
    """A frame or record is larger than ``max.message.bytes``."""

    code = "MESSAGE_TOO_LARGE"


class InvalidTimestampError(RequestError):
    """A timestamp is naive, negative, or more than an hour ahead of the broker's clock."""

    code = "INVALID_TIMESTAMP"


class SchemaMismatchError(RequestError):
    """The data's columns do not fit the topic's schema."""

    code = "SCHEMA_MISMATCH"


class InvalidSchemaError(RequestError):
    """A schema cannot be a topic's: unsupported type, repeated name, required new column."""

    code = "INVALID_SCHEMA"


class InvalidGroupIdError(RequestError):
    """The group id is not allowed, or one is needed."""

    code = "INVALID_GROUP_ID"


class OutOfOrderSequenceError(RequestError):
    """A producer's sequence number is not the one expected: frames before it are missing."""

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class DuplicateSequenceError(RequestError):
    """Some of a producer's sequence numbers were appended before, in other frames or with other content, or so long ago
    that no producer would send them again."""

    code = "DUPLICATE_SEQUENCE_NUMBER"


class NotSupportedError(RequestError):
    """This version cannot do it; the message says what to do instead."""

    code = "NOT_SUPPORTED"


class OptionError(RequestError):
    """A Spark option is unknown, missing or its value is not allowed."""

    code = "INVALID_OPTION"


class OverwriteRefusedError(RequestError):
    """A log only appends."""

    code = "OVERWRITE_REFUSED"


class NoReassignmentInProgressError(RequestError):
    """The partition is not being moved."""

    code = "NO_REASSIGNMENT_IN_PROGRESS"


class ElectionNotNeededError(RequestError):
    """The partition is led by whom it should be."""

    code = "ELECTION_NOT_NEEDED"


class PreferredLeaderNotAvailableError(RequestError):
    """The first replica is not live or not in sync, so it cannot lead now."""

    code = "PREFERRED_LEADER_NOT_AVAILABLE"


class UnknownProducerIdError(RequestError):
    """The partition remembers nothing of this producer, and the batch is not its first."""

    code = "UNKNOWN_PRODUCER_ID"


class NonEmptyGroupError(RequestError):
    """The group has members, and only without any can this be done."""

    code = "NON_EMPTY_GROUP"


class GroupIdNotFoundError(RequestError):
    """No such group."""

    code = "GROUP_ID_NOT_FOUND"


class GroupInUseError(RequestError):
    """A live Spark query has the group, or a query wants one that has members."""

    code = "GROUP_IN_USE"


class GroupMaxSizeReachedError(RequestError):
    """The group has ``group.max.size`` members."""

    code = "GROUP_MAX_SIZE_REACHED"


class InvalidSessionTimeoutError(RequestError):
    """The session timeout is not within ``group.min.session.timeout.ms`` and ``group.max.session.timeout.ms``."""

    code = "INVALID_SESSION_TIMEOUT"
