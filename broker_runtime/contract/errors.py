"""Every error that crosses an edge of pylog, as one tree.

    PylogError
    ├── RetriableError            the state you acted on is old: refresh, wait a little, try again
    │   ├── BrokerUnavailableError, NetworkError, RequestTimedOutError, TooManyStreamsError,
    │   │   BrokerOverloadedError
    │   ├── NotLeaderOrFollowerError, LeaderNotAvailableError, FencedLeaderEpochError,
    │   │   UnknownLeaderEpochError, NotControllerError, NotCoordinatorError,
    │   │   CoordinatorNotAvailableError, OffsetNotAvailableError, ConcurrentTransactionsError
    │   ├── NotEnoughReplicasError, NotEnoughReplicasAfterAppendError
    │   ├── ZooKeeperUnavailableError
    │   └── LogStorageError       the partition's log is offline (disk full, I/O error)
    ├── FencedError               somebody newer has taken your place: stop
    │   ├── ProducerFencedError, InvalidProducerEpochError, StaleBrokerEpochError,
    │   │   InconsistentTopicIdError, UnknownMemberIdError, StaleMemberEpochError,
    │   │   FencedInstanceIdError
    ├── CorruptRecordError        bytes that fail their checks: never served, never appended
    ├── RequestError              the request can never succeed as it is (also ValueError)
    │   └── (one class per reason, see below)
    ├── AuthenticationError       one end of a connection has not proved who it is
    │   ├── SslAuthenticationError, SaslAuthenticationError
    ├── AuthorizationError        the caller may not do this
    │   ├── TopicAuthorizationError, GroupAuthorizationError, ClusterAuthorizationError,
    │   │   TransactionalIdAuthorizationError
    ├── ClientStateError          the caller used a client in a way its state forbids
    ├── ClientTimeoutError        a bound on a wait in the client ended (also TimeoutError)
    ├── SetupError                what the machine lacks, and how to fix it
    ├── DataLossError             records that a reader still needed are gone
    └── UnknownServerError        a defect of the broker; its log has the traceback, the wire never

In a producer's transaction an error is one of three things. Fatal: `ProducerFencedError`; close the producer.
Retriable: a `RetriableError` of begin, commit or abort; call the same again. Abortable: everything else that ends a
transaction, among it a record's delivery error (also a retriable one: the producer has tried for long enough) and a
refusal of its offsets; abort it, and begin another. `ClientStateError` and an error of arguments change nothing: the
transaction goes on.

Rule: a message names the offending value and what is allowed or to be done. ``code`` is Kafka's protocol name
where Kafka has one; it is what travels on the wire. Every class pickles. Foreign exceptions are translated to
these once, at the edge that meets them.
"""

from __future__ import annotations

from typing import ClassVar


class PylogError(Exception):
    """Base of all errors of pylog.

    ``code`` is stable and machine-readable, ``retriable`` says whether the same call may succeed later,
    ``message`` is the text without the code. ``str(error)`` is ``[CODE] message``.
    """

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


# --- retriable: refresh, wait a little, try again ---------------------------------------------------------------------


class RetriableError(PylogError):
    """The state the caller acted on is out of date, or a resource is temporarily unavailable."""

    code = "RETRIABLE"
    retriable = True


class BrokerUnavailableError(RetriableError):
    """No broker of the bootstrap list answers, or the broker is stopping."""

    code = "BROKER_UNAVAILABLE"


class NetworkError(RetriableError):
    """A connection broke while a request was under way; whether the request was carried out is unknown."""

    code = "NETWORK_EXCEPTION"


class RequestTimedOutError(RetriableError, TimeoutError):
    """A broker did not answer, or what it waited for (a high watermark) did not come, within the request's time."""

    code = "REQUEST_TIMED_OUT"


class TooManyStreamsError(RetriableError):
    """The broker already serves ``max.connections`` streams."""

    code = "TOO_MANY_STREAMS"


class BrokerOverloadedError(RetriableError):
    """The broker has no memory, or no thread, left for the call; nothing was appended."""

    code = "BROKER_OVERLOADED"


class NotLeaderOrFollowerError(RetriableError):
    """The broker does not lead the partition."""

    code = "NOT_LEADER_OR_FOLLOWER"


class LeaderNotAvailableError(RetriableError):
    """The partition currently has no leader."""

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
    """The group currently has no coordinator."""

    code = "COORDINATOR_NOT_AVAILABLE"


class ConcurrentTransactionsError(RetriableError):
    """Five earlier decisions of the transactional id are not known to all their partitions yet. Retriable: the same
    call succeeds when one of them is finished."""

    code = "CONCURRENT_TRANSACTIONS"


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


# --- fenced: somebody newer has taken your place ----------------------------------------------------------------------


class FencedError(PylogError):
    """Somebody newer has taken the caller's place."""

    code = "FENCED"


class ProducerFencedError(FencedError):
    """Another process has taken over the transactional id, or its transaction was aborted: by its time limit, or by an
    administrator. Fatal: close this producer."""

    code = "PRODUCER_FENCED"


class InvalidProducerEpochError(FencedError):
    """The producer's epoch is older than the partition's. Abortable in a transaction."""

    code = "INVALID_PRODUCER_EPOCH"


class StaleBrokerEpochError(FencedError):
    """The broker has registered again since."""

    code = "STALE_BROKER_EPOCH"


class InconsistentTopicIdError(FencedError):
    """The request names a topic by an id it no longer has: the topic was deleted and recreated."""

    code = "INCONSISTENT_TOPIC_ID"


class UnknownMemberIdError(FencedError):
    """The group does not know the member (any more): its partitions may belong to others by now. Abortable in a
    transaction that has offsets of it: those who have the partitions now do the work."""

    code = "UNKNOWN_MEMBER_ID"


class StaleMemberEpochError(FencedError):
    """The member does not hold the partition in the epoch that it gives, so it cannot commit offsets of it. Abortable
    in a transaction."""

    code = "STALE_MEMBER_EPOCH"


class FencedInstanceIdError(FencedError):
    """Another process took the member's ``group.instance.id``. Abortable in a transaction; the consumer is to be
    closed."""

    code = "FENCED_INSTANCE_ID"


# --- damaged records, and defects of ours -----------------------------------------------------------------------------


class CorruptRecordError(PylogError):
    """A frame, file or message failed its checks.

    ``unreadable``: the row in the frame and the value, if the bytes are as their producer sent them and a value is none
    of its column's type.
    """

    code = "CORRUPT_MESSAGE"
    unreadable: tuple[int, str] | None = None


class DataLossError(PylogError):
    """Records that a reader still needed are gone (retention, deletion, a recreated topic)."""

    code = "DATA_LOSS"


class UnknownServerError(PylogError):
    """A defect of the broker. Its log has the traceback; the wire never has."""

    code = "UNKNOWN_SERVER_ERROR"


# --- requests that can never succeed as they are ----------------------------------------------------------------------


class RequestError(PylogError, ValueError):
    """The request is refused as it is; repeating it would not help."""

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
    """A producer's sequence number is not the one expected: frames before it are missing. Abortable in a
    transaction."""

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class DuplicateSequenceError(RequestError):
    """Some of a producer's sequence numbers were appended before, in other frames or with other content, or so long ago
    that no producer would send them again."""

    code = "DUPLICATE_SEQUENCE_NUMBER"


class InvalidTxnStateError(RequestError):
    """A transaction is not in the state that the call needs: it has not begun, or it has ended. From commit or abort:
    it was decided otherwise before, and that stays; the next one may begin. Of a record: abortable."""

    code = "INVALID_TXN_STATE"


class CheckpointBehindSinkError(RequestError):
    """A batch comes before the last one that its transactional id committed: the checkpoint was rewound, or is an old
    copy. Fatal: ends the query, and starting it again does not help; the message says what does."""

    code = "CHECKPOINT_BEHIND_SINK"


class ReplayDiffersError(RequestError):
    """A batch that was committed before is written again with other contents. The first contents stay. Fatal: ends the
    query until it is started once with ``pylog.replay.differs=keep``."""

    code = "REPLAY_DIFFERS"


class NotSupportedError(RequestError):
    """This version cannot do it; the message says what to do instead."""

    code = "NOT_SUPPORTED"


class InvalidPredicateError(RequestError):
    """A predicate (``where``) is not understood, or does not fit the topic's columns."""

    code = "INVALID_PREDICATE"


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
    """The partition is already led by the right replica."""

    code = "ELECTION_NOT_NEEDED"


class PreferredLeaderNotAvailableError(RequestError):
    """The first replica is not live or not in sync, so it cannot lead now."""

    code = "PREFERRED_LEADER_NOT_AVAILABLE"


class UnknownProducerIdError(RequestError):
    """The partition remembers nothing of this producer, and the batch is not its first. Abortable in a transaction."""

    code = "UNKNOWN_PRODUCER_ID"


class NonEmptyGroupError(RequestError):
    """The group has members, and this can be done only while it has none."""

    code = "NON_EMPTY_GROUP"


class GroupIdNotFoundError(RequestError):
    """No such group."""

    code = "GROUP_ID_NOT_FOUND"


class GroupInUseError(RequestError):
    """A live Spark query uses the group, or a query wants a group that has members."""

    code = "GROUP_IN_USE"


class GroupMaxSizeReachedError(RequestError):
    """The group has ``group.max.size`` members."""

    code = "GROUP_MAX_SIZE_REACHED"


class InvalidSessionTimeoutError(RequestError):
    """The session timeout is not within ``group.min.session.timeout.ms`` and ``group.max.session.timeout.ms``."""

    code = "INVALID_SESSION_TIMEOUT"


# --- who is calling, and may they -------------------------------------------------------------------------------------


class AuthenticationError(PylogError):
    """One end of a connection has not proved who it is. Trying again does not help."""

    code = "AUTHENTICATION_FAILED"


class SslAuthenticationError(AuthenticationError):
    """The broker's certificate is not one that the client trusts, or the client's not one that the broker does."""

    code = "SSL_AUTHENTICATION_FAILED"


class SaslAuthenticationError(AuthenticationError):
    """The user, the password or the token is wrong, or missing."""

    code = "SASL_AUTHENTICATION_FAILED"


class AuthorizationError(PylogError):
    """The caller may not do this: no ACL allows it, or one denies it."""

    code = "AUTHORIZATION_FAILED"


class TopicAuthorizationError(AuthorizationError):
    """The caller may not do this with the topic."""

    code = "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationError(AuthorizationError):
    """The caller may not do this with the group."""

    code = "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationError(AuthorizationError):
    """The caller may not do this with the cluster."""

    code = "CLUSTER_AUTHORIZATION_FAILED"


class TransactionalIdAuthorizationError(AuthorizationError):
    """The caller may not use this transactional id."""

    code = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


# --- the client's own state and its limits of time --------------------------------------------------------------------


class ClientStateError(PylogError):
    """The call does not fit the client's state, which it leaves as it is; of a transaction the message says what can be
    called."""

    code = "ILLEGAL_STATE"


class ClosedError(ClientStateError):
    """The client was closed."""

    code = "CLIENT_CLOSED"


class WakeupError(ClientStateError):
    """``wakeup()`` ended the call."""

    code = "WAKEUP"


class NoOffsetForPartitionError(ClientStateError):
    """No committed offset and ``auto_offset_reset="none"``."""

    code = "NO_OFFSET_FOR_PARTITION"


class ClientTimeoutError(PylogError, TimeoutError):
    """A bounded wait of the client ended."""

    code = "CLIENT_TIMEOUT"


class BufferExhaustedError(ClientTimeoutError):
    """``buffer_memory`` stayed full for ``max_block_ms``."""

    code = "BUFFER_EXHAUSTED"


class DeliveryTimeoutError(ClientTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms``; whether it was appended is unknown. Abortable in a
    transaction."""

    code = "DELIVERY_TIMEOUT"


# --- what the machine lacks -------------------------------------------------------------------------------------------


class SetupError(PylogError):
    """Something on this machine is missing or in the way; the message says how to fix it."""

    code = "SETUP"


class JavaNotFoundError(SetupError):
    """No Java, or one that is too old, for the bundled ZooKeeper."""

    code = "JAVA_NOT_FOUND"


class PortInUseError(SetupError):
    """Another process listens on the port."""

    code = "PORT_IN_USE"


class DirectoryLockedError(SetupError):
    """Another broker uses the data directory, or it belongs to another cluster or broker."""

    code = "DIRECTORY_LOCKED"


class NotAPylogBrokerError(SetupError):
    """The address answers, but not as pylog."""

    code = "NOT_A_PYLOG_BROKER"


class VersionMismatchError(SetupError):
    """Driver and executors have different versions of pylog. `pylog doctor` prints it; nothing raises it."""

    code = "VERSION_MISMATCH"


# --- the tree as tables -----------------------------------------------------------------------------------------------


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
