"""What clients and brokers say to each other, as typed structs, and how they become bytes (MessagePack).

Rule: this module, `streams`, `transactions` and `predicate.frames` hold every message of the protocol. A field is
added with a default, never removed or given another meaning; `PROTOCOL_VERSION` rises when an old peer would
misunderstand.
Decoding checks types and bounds, so later code may rely on them; what cannot be decoded is `InvalidRequestError`.
What a broker receives is a `Request`: its bytes are bounded before anything is decoded, and so is the length of every
list in it, because few bytes decode into many, and an answer about every entry is larger still. Rows are never in here:
they travel as frames in the Flight stream that the message accompanies.

A group's member says with ``member_epoch`` which assignment it holds, exactly and completely: while it still has to
release something it keeps its old epoch, and every answer repeats its target assignment. Its lease begins when it sends
a heartbeat that is then answered without an error.

Three kinds of exchange (`broker_runtime.contract.flight` maps them to Flight):

    actions    one request, one response                         `actions.ACTIONS`: name → (request, response)
    produce    DoPut:      ProduceHello, then ProduceRequest* ↔ ProduceResponse*, answered in order
    fetch      DoExchange: FetchHello, then FetchRequest* ↔ FetchResponse*, in lockstep; heartbeats both ways
    read       DoGet:      ReadRequest → ReadResponse*, a range of offsets of one partition
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec

from broker_runtime.contract.errors import InvalidRequestError, PylogError

PROTOCOL_VERSION = 1

HEARTBEAT_INTERVAL_S = 1.0
"""Both sides of an open stream say something at least this often."""
PEER_SILENCE_LIMIT_S = 8.0
"""A peer silent for this long is gone: its connection is closed and its threads are freed."""
MAX_SERVER_WAIT_S = 5.0
"""The longest a fetch waits for data in the broker, whatever it asks for."""
MOST_ENTRIES: Final = 2_000
"""Of a list that may be split: callers with more entries send several requests (`portions`)."""
MOST_IN_ONE: Final = 10_000
"""Of a list that must be whole: a topic's partitions, a subscription, moves that are checked together."""
MOST_COLUMNS: Final = 4_098
"""Of a topic, with the two of the system."""
MOST_COLUMN_IDS: Final = 50_000
"""Of all partitions that a fetch names together: the request is kept while it waits for data."""
MOST_REPLICAS: Final = 64
"""Of a partition."""
_MAX_ERROR_CHARS = 600  # gRPC refuses trailers above 8 KiB, and the text is in them three times
_ELLIPSIS = " …"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
Uuid = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
WaitMs = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]
ByteCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
IsolationLevel = Annotated[int, msgspec.Meta(ge=0, le=1)]

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels (Kafka's wire values). The second: no records of transactions that are open or aborted."""
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}

_E = TypeVar("_E")
Entries: TypeAlias = Annotated[tuple[_E, ...], msgspec.Meta(max_length=MOST_ENTRIES)]
Whole: TypeAlias = Annotated[tuple[_E, ...], msgspec.Meta(max_length=MOST_IN_ONE)]
ColumnId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Columns: TypeAlias = Annotated[tuple[ColumnId, ...], msgspec.Meta(max_length=MOST_COLUMNS)]
Replicas: TypeAlias = Annotated[tuple[Int32, ...], msgspec.Meta(max_length=MOST_REPLICAS)]
Settings: TypeAlias = Annotated[dict[str, _E], msgspec.Meta(max_length=1_000)]

JOINS = 0
LEAVES = -1
LEAVES_FOR_A_WHILE = -2
"""Of `GroupHeartbeatRequest.member_epoch`; the last one of static members only."""

MemberId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"\A[A-Za-z0-9._-]+\Z")]
InstanceId = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
MemberKind = Literal["consumer", "spark"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages."""


class Request(Message, frozen=True, kw_only=True):
    """Base of those that brokers receive. ``MOST_BYTES``: what one may have, encoded; `decode` refuses more."""

    MOST_BYTES: ClassVar[int] = 1 << 20


class ErrorInfo(Message, frozen=True, kw_only=True):
    """An error on the wire: `PylogError.code` and its message without the code."""

    code: str
    message: str

    @classmethod
    def of(cls, error: PylogError) -> ErrorInfo:
        """The error as it travels, its message cut to what fits a gRPC trailer."""
        return cls.saying(type(error), error.message)

    @classmethod
    def saying(cls, kind: type[PylogError], text: str) -> ErrorInfo:
        """As `of`, without an exception: for answers about many missing things."""
        is_long = len(text) > _MAX_ERROR_CHARS
        return cls(code=kind.code, message=text[: _MAX_ERROR_CHARS - len(_ELLIPSIS)] + _ELLIPSIS if is_long else text)


_M = TypeVar("_M", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[msgspec.Struct]] = {}
_undecoded: dict[str, msgspec.msgpack.Decoder[msgspec.Struct]] = {}  # one, for fields of any message
_elements = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TOO_LONG: Final = re.compile(r"Expected `(?:array|object)` of length <= (\d+) - at `\$(.+)`")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def make_decoders() -> None:
    """Makes the decoder of every message that is defined by now. A module that defines messages calls it at its end.

    Never later: msgspec notes what it learns of a class piece by piece, where all threads see it, and a thread that
    decodes meanwhile reads through a null pointer (of eight that decoded their first message at once, the process died
    in 7 tries of 60).
    """
    kinds: list[type[msgspec.Struct]] = [Message]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        if kind not in _decoders:
            _decoders[kind] = msgspec.msgpack.Decoder(kind)
    names = sorted({name for kind in kinds for name in kind.__struct_fields__})
    undecoded = msgspec.defstruct("_Undecoded", [(name, msgspec.Raw, msgspec.Raw(b"\xc0")) for name in names])
    _undecoded["fields"] = msgspec.msgpack.Decoder(undecoded)


def encode(message: msgspec.Struct) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview | msgspec.Raw, kind: type[_M]) -> _M:
    """The message in ``data``, checked. Raises `InvalidRequestError` that says which field is wrong."""
    if issubclass(kind, Request):
        check_size(data, kind)
    try:
        message = _decoders[kind].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"not a {kind.__name__}: {_too_long(data, str(error)) or error}") from None
    assert isinstance(message, kind)
    return message


def check_size(data: bytes | bytearray | memoryview | msgspec.Raw, kind: type[Request]) -> None:
    """Raises `InvalidRequestError` for more bytes than a request of the kind may have."""
    size_bytes = memoryview(data).nbytes
    if size_bytes > kind.MOST_BYTES:
        raise InvalidRequestError(f"a {kind.__name__} of {size_bytes} bytes; at most {kind.MOST_BYTES} are allowed")


def portions(entries: Iterable[_E]) -> list[tuple[_E, ...]]:
    """The entries, in lists as long as a request may have; an empty list if there are none."""
    left = iter(entries)
    return list(iter(lambda: tuple(itertools.islice(left, MOST_ENTRIES)), ())) or [()]


def _too_long(data: bytes | bytearray | memoryview | msgspec.Raw, refusal: str) -> str | None:
    """The error text for a list that is too long, if that is why the data was refused."""
    match = _TOO_LONG.fullmatch(refusal)
    if match is None or "[...]" in match[2]:
        return None
    (fields,) = _undecoded.values()
    found = msgspec.Raw(data)
    try:
        for name, index in _STEP.findall(match[2]):
            found = getattr(fields.decode(found), name) if name else _elements.decode(found)[int(index)]
    except msgspec.DecodeError:  # what comes after the list is damaged as well
        return None
    return f"{match[2][1:]} has {_length(bytes(found)[:5])} entries; at most {match[1]} are allowed"


def _length(head: bytes) -> int:
    """Of the MessagePack array or map that begins so."""
    size_bytes = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}.get(head[0], 0)
    return int.from_bytes(head[1 : 1 + size_bytes], "big") if size_bytes else head[0] & 0x0F


# --- between brokers, beside fetches ----------------------------------------------------------------------------------


class ReportBrokerRequest(Request, frozen=True, kw_only=True):
    """To the controller: this broker's port refused. The controller looks for itself."""

    broker_id: Int32


class LogEndsRequest(Request, frozen=True, kw_only=True):
    """From the controller, after a power loss: how far this broker's logs of these partitions go."""

    partitions: Entries[PartitionKey]


class LogEnd(Message, frozen=True, kw_only=True):
    """``leader_epoch``: the newest one up to whose beginning, at least, the log has everything; that of its last record
    as a rule, and also where that record was deleted; -1: it knows of none. What is below ``log_start`` was committed,
    and deleted."""

    topic: Name
    partition: PartitionNumber
    leader_epoch: Int32
    log_end: Int64
    log_start: Int64 = 0


class LogEndsResponse(Message, frozen=True, kw_only=True):
    """In the broker's registration ``broker_epoch``. Logs that are not open are left out."""

    broker_epoch: Int64
    partitions: tuple[LogEnd, ...]


# --- topics -----------------------------------------------------------------------------------------------------------


class BrokerInfo(Message, frozen=True, kw_only=True):
    broker_id: Int32
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    epoch: Int64
    disks: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # directories that take no records at present, by path: what is wrong
    diverged: tuple[str, ...] = ()  # paths of logs that it set aside as such and keeps


class PartitionInfo(Message, frozen=True, kw_only=True):
    partition: PartitionNumber
    leader: Int32 | None
    leader_epoch: Int32
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    log_start: Int64 = -1  # -1: the answering broker does not lead it
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = -1
    lost: tuple[Int32, ...] = ()  # replicas that came back without the log they were in sync with
    eligible: tuple[Int32, ...] = ()  # replicas that are not in sync but have everything committed
    damaged: tuple[Int32, ...] = ()  # replicas whose live brokers found their logs damaged

    @property
    def committed_end(self) -> int:
        """Where the partition ends for readers of committed records; -1: the answering broker does not lead it."""
        return self.last_stable_offset if self.last_stable_offset >= 0 else self.high_watermark


class SchemaVersion(Message, frozen=True, kw_only=True):
    """One version of a topic's schema: its id (0, 1, …; each only adds nullable columns) and Arrow's IPC bytes."""

    schema_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    arrow: bytes


class TopicInfo(Message, frozen=True, kw_only=True):
    name: Name
    topic_id: Uuid
    partitions: tuple[PartitionInfo, ...]
    schemas: tuple[SchemaVersion, ...] = ()  # empty: Kafka's columns
    key: str | None = None
    config: dict[str, str] = msgspec.field(default_factory=dict)


class MetadataRequest(Request, frozen=True, kw_only=True):
    """``topics=None``: all. ``with_offsets``: fill log start and high watermark for led partitions."""

    topics: Entries[str] | None = None
    with_offsets: bool = False


class MetadataResponse(Message, frozen=True, kw_only=True):
    """``errors`` has an entry for each topic asked for that cannot be described. ``zookeeper_connected``: whether the
    broker that answers reaches ZooKeeper; None: it is older, and does not say."""

    protocol_version: int
    software_version: str
    cluster_id: str
    controller_id: Int32 | None
    brokers: tuple[BrokerInfo, ...]
    topics: tuple[TopicInfo, ...]
    errors: dict[str, ErrorInfo] = msgspec.field(default_factory=dict)
    zookeeper_connected: bool | None = None


class CreateTopicRequest(Request, frozen=True, kw_only=True):
    """``schema``: Arrow IPC bytes of a typed topic. None for partitions or factor: the broker's default."""

    MOST_BYTES: ClassVar[int] = 2 << 20

    name: str
    partitions: Int32 | None = None
    replication_factor: Int32 | None = None
    schema: bytes | None = None
    key: str | None = None
    config: Settings[str] = msgspec.field(default_factory=dict)
    replica_assignment: Whole[Replicas] | None = None
    validate_only: bool = False


class TopicResponse(Message, frozen=True, kw_only=True):
    topic: TopicInfo


class DeleteTopicRequest(Request, frozen=True, kw_only=True):
    name: str


class CreatePartitionsRequest(Request, frozen=True, kw_only=True):
    """``total``: how many the topic has afterwards; only more than now."""

    name: str
    total: Int32


class AddColumnsRequest(Request, frozen=True, kw_only=True):
    """``schema``: Arrow IPC bytes of the new nullable columns alone."""

    name: str
    schema: bytes


class AddColumnsResponse(Message, frozen=True, kw_only=True):
    schema_id: int


class DescribeConfigRequest(Request, frozen=True, kw_only=True):
    """Exactly one of the two."""

    topic: str | None = None
    broker_id: Int32 | None = None


class ConfigEntry(Message, frozen=True, kw_only=True):
    """``source``: ``default``, ``broker`` or ``topic``."""

    value: str
    source: str


class DescribeConfigResponse(Message, frozen=True, kw_only=True):
    entries: dict[str, ConfigEntry]


class AlterConfigRequest(Request, frozen=True, kw_only=True):
    """A value of None removes the topic's own setting."""

    topic: str
    changes: Settings[str | None]


class Empty(Message, frozen=True, kw_only=True):
    """A response that only confirms."""


# --- offsets and log directories --------------------------------------------------------------------------------------


class PartitionKey(Message, frozen=True, kw_only=True):
    topic: Name
    partition: PartitionNumber
    topic_id: Uuid | None = None  # None: whatever topic has the name now


class OffsetQuery(Message, frozen=True, kw_only=True):
    """``timestamp``: ms, or -2 earliest, -1 latest, -3 the record with the largest timestamp (Kafka's values)."""

    at: PartitionKey
    timestamp: Int64
    leader_epoch: Int32 = -1


class OffsetAnswer(Message, frozen=True, kw_only=True):
    """Offset -1: no record has such a timestamp."""

    offset: Int64 = -1
    timestamp: Int64 = -1
    leader_epoch: Int32 = -1
    error: ErrorInfo | None = None


class ListOffsetsRequest(Request, frozen=True, kw_only=True):
    """``isolation_level``: for whose reader; `LATEST` is the last stable offset or the high watermark."""

    queries: Entries[OffsetQuery]
    isolation_level: IsolationLevel = READ_COMMITTED


class ListOffsetsResponse(Message, frozen=True, kw_only=True):
    """One answer per query, in order."""

    answers: tuple[OffsetAnswer, ...]


class LagQuery(Message, frozen=True, kw_only=True):
    """``offset``: the next one that a group reads."""

    at: PartitionKey
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class LagAnswer(Message, frozen=True, kw_only=True):
    """``records``: offsets from there to the last stable offset. ``waiting_ms``: for how long the first record that was
    not read has been in the log, by the leader's clock; 0: all was read."""

    records: Int64 = -1
    waiting_ms: Int64 = -1
    error: ErrorInfo | None = None


class DescribeLagRequest(Request, frozen=True, kw_only=True):
    """From a group's coordinator to the leaders of its partitions."""

    queries: Entries[LagQuery]


class DescribeLagResponse(Message, frozen=True, kw_only=True):
    """One answer per query, in order."""

    answers: tuple[LagAnswer, ...]


class RecordDeletion(Message, frozen=True, kw_only=True):
    """``offset``: the first that stays; -1: the high watermark."""

    at: PartitionKey
    offset: Int64


class DeleteRecordsRequest(Request, frozen=True, kw_only=True):
    deletions: Entries[RecordDeletion]


class DeleteRecordsResponse(Message, frozen=True, kw_only=True):
    """Each answer's offset is the log start afterwards."""

    answers: tuple[OffsetAnswer, ...]


class CommittedOffset(Message, frozen=True, kw_only=True):
    """``offset``: the next to read. ``leader_epoch``: of the record before it, -1 unknown."""

    at: PartitionKey
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    leader_epoch: Int32 = -1
    metadata: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class CommitOffsetsRequest(Request, frozen=True, kw_only=True):
    """``member_id``: of a member of the group; empty: the caller is no member. ``member_epoch``: the last one that the
    member was given. ``sequence``: counts the member's commits (a commit that is sent again keeps its number), so that
    one that arrives late rewinds nothing.

    ``only_forward``: an offset below the committed one changes nothing (sources that republish).
    """

    group_id: str
    offsets: Entries[CommittedOffset]
    member_id: Annotated[str, msgspec.Meta(max_length=64)] = ""
    member_epoch: Int32 = -1
    sequence: Int64 = -1
    only_forward: bool = False


class CommitOffsetsResponse(Message, frozen=True, kw_only=True):
    """One entry per offset, in order; None: written to ZooKeeper."""

    errors: tuple[ErrorInfo | None, ...]


class FetchOffsetsRequest(Request, frozen=True, kw_only=True):
    """``partitions=None``: all that the group has."""

    group_id: str
    partitions: Entries[PartitionKey] | None = None


class FetchOffsetsResponse(Message, frozen=True, kw_only=True):
    offsets: tuple[CommittedOffset, ...]  # partitions without one are left out


class LogDirInfo(Message, frozen=True, kw_only=True):
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: dict[str, int]  # "topic-partition" → bytes
    error: str | None = None


class DescribeLogDirsRequest(Request, frozen=True, kw_only=True):
    pass


class DescribeLogDirsResponse(Message, frozen=True, kw_only=True):
    broker_id: int
    log_dirs: tuple[LogDirInfo, ...]


# --- consumer groups --------------------------------------------------------------------------------------------------


class AssignedPartitions(Message, frozen=True, kw_only=True):
    """Partitions of one topic."""

    topic: Name
    topic_id: Uuid
    partitions: tuple[PartitionNumber, ...]


class FindCoordinatorRequest(Request, frozen=True, kw_only=True):
    group_id: str


class FindCoordinatorResponse(Message, frozen=True, kw_only=True):
    """The broker to ask about the group: the one that has claimed it, or that would."""

    broker_id: Int32


class GroupHeartbeatRequest(Request, frozen=True, kw_only=True):
    """``member_id``: chosen by the client for one stay in the group, never used again. ``topics``: the subscription;
    None: unchanged. ``kind`` spark: a query that takes all partitions by itself and is alone in its group.
    ``rebalance_timeout_ms``: how long the member may take to release partitions (``max.poll.interval.ms``).
    """

    MOST_BYTES: ClassVar[int] = 3 << 20

    group_id: str
    member_id: MemberId
    member_epoch: Int32
    instance_id: InstanceId | None = None
    kind: MemberKind = "consumer"
    client_host: Annotated[str, msgspec.Meta(max_length=255)] = ""
    client_id: Annotated[str, msgspec.Meta(max_length=255)] = ""
    topics: Whole[Name] | None = None
    session_timeout_ms: WaitMs = 45_000
    rebalance_timeout_ms: WaitMs = 300_000


class GroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    """``assignment``: everything that the member is to hold in ``member_epoch``; None: unchanged. ``is_settled``: no
    further change is planned for it. ``session_timeout_ms``: how long its lease is."""

    member_epoch: Int32
    heartbeat_interval_ms: WaitMs
    session_timeout_ms: WaitMs
    assignment: tuple[AssignedPartitions, ...] | None = None
    is_settled: bool = False


class GroupInfo(Message, frozen=True, kw_only=True):
    """``state``: empty, assigning (a partition is still moving) or stable. ``kind``: of its members, "" without any."""

    group_id: str
    state: Literal["empty", "assigning", "stable"]
    kind: str
    members: int
    coordinator: Int32  # -1: none


class ListGroupsRequest(Request, frozen=True, kw_only=True):
    pass


class ListGroupsResponse(Message, frozen=True, kw_only=True):
    groups: tuple[GroupInfo, ...]


class MemberInfo(Message, frozen=True, kw_only=True):
    """``state``: joining, reconciling, stable, away or fenced. ``assignment``: every partition that it may hold now."""

    member_id: str
    instance_id: str | None
    kind: str
    client_id: str
    client_host: str
    state: str
    member_epoch: Int32
    topics: tuple[str, ...]
    assignment: tuple[AssignedPartitions, ...]
    session_timeout_ms: int
    last_heartbeat_ms: int  # how long ago


class DescribeGroupRequest(Request, frozen=True, kw_only=True):
    group_id: str


class DescribeGroupResponse(Message, frozen=True, kw_only=True):
    """``epoch``: rises with every change of an assignment."""

    group: GroupInfo
    epoch: Int32
    members: tuple[MemberInfo, ...]


class AlterGroupOffsetsRequest(Request, frozen=True, kw_only=True):
    """Answered with a `CommitOffsetsResponse`. Refused while the group has members."""

    group_id: str
    offsets: Entries[CommittedOffset]


class DeleteGroupRequest(Request, frozen=True, kw_only=True):
    """Refused while the group has members."""

    group_id: str


class RemoveGroupMembersRequest(Request, frozen=True, kw_only=True):
    """By member id or instance id. What they hold is free when their leases have ended."""

    MOST_BYTES: ClassVar[int] = 4 << 20

    group_id: str
    members: Whole[str]


# --- moving partitions, choosing leaders ------------------------------------------------------------------------------


class PartitionMove(Message, frozen=True, kw_only=True):
    """``replicas``: where the partition is to be, the preferred leader first; None cancels a move."""

    topic: Name
    partition: PartitionNumber
    replicas: Replicas | None


class ReassignPartitionsRequest(Request, frozen=True, kw_only=True):
    """All moves are checked before the first begins."""

    MOST_BYTES: ClassVar[int] = 5 << 20

    moves: Whole[PartitionMove]


class ListReassignmentsRequest(Request, frozen=True, kw_only=True):
    pass


class ReassignmentInfo(Message, frozen=True, kw_only=True):
    """A partition that moves: its replicas before and after."""

    topic: Name
    partition: PartitionNumber
    target: tuple[Int32, ...]
    original: tuple[Int32, ...]


class ListReassignmentsResponse(Message, frozen=True, kw_only=True):
    """``draining``: the brokers that are being emptied."""

    moves: tuple[ReassignmentInfo, ...]
    draining: tuple[Int32, ...] = ()


class DescribeReplicasRequest(Request, frozen=True, kw_only=True):
    """Asks a leader how far the replicas of these partitions are."""

    partitions: Entries[PartitionKey]


class ReplicaProgress(Message, frozen=True, kw_only=True):
    """``replicated_end``: up to where the replica holds the log; -1: it has not fetched yet in this leader's epoch."""

    broker_id: Int32
    replicated_end: Int64
    is_in_sync: bool


class PartitionProgress(Message, frozen=True, kw_only=True):
    """``log_end`` is the leader's; -1 beside an error."""

    topic: Name
    partition: PartitionNumber
    log_start: Int64 = -1
    log_end: Int64 = -1
    replicas: tuple[ReplicaProgress, ...] = ()
    error: ErrorInfo | None = None


class DescribeReplicasResponse(Message, frozen=True, kw_only=True):
    partitions: tuple[PartitionProgress, ...]


class ElectLeadersRequest(Request, frozen=True, kw_only=True):
    """``preferred``: the first replica, which must be in sync. ``unclean``: for a partition without a leader, the first
    live replica, whatever it lacks. ``partitions`` None: every partition that needs an election."""

    partitions: Entries[tuple[Name, PartitionNumber]] | None = None
    election: Literal["preferred", "unclean"] = "preferred"


class ElectLeadersResponse(Message, frozen=True, kw_only=True):
    """``elected``: topic, partition and the new leader. ``errors``: by ``topic-partition``, for those asked for by
    name."""

    elected: tuple[tuple[str, int, int], ...]
    errors: dict[str, ErrorInfo] = msgspec.field(default_factory=dict)


class DecommissionBrokerRequest(Request, frozen=True, kw_only=True):
    """Moves everything that the broker holds to others; it gets nothing new. ``cancel``: undoes that."""

    broker_id: Int32
    cancel: bool = False


class DecommissionBrokerResponse(Message, frozen=True, kw_only=True):
    """How many partitions begin to move (0: it holds none)."""

    moves: int


# --- producers --------------------------------------------------------------------------------------------------------


class InitProducerIdRequest(Request, frozen=True, kw_only=True):
    """Asks any broker for an id that no other producer has or had."""


class InitProducerIdResponse(Message, frozen=True, kw_only=True):
    """Frames carry both. The epoch is the first; the id's owner raises it to restart its sequence in a partition."""

    producer_id: Int64
    producer_epoch: Int32 = 0


class ActionRequest(Message, frozen=True, kw_only=True):
    """The envelope of every action's body; ``body`` is the encoded request of the action's own type. Its bound in bytes
    is the envelope's too. ``cluster_id``: the cluster that the broker must belong to; empty: any."""

    protocol_version: int = PROTOCOL_VERSION
    client_id: str = ""
    cluster_id: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\x80")


make_decoders()
