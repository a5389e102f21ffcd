"""What clients and brokers say to each other, as typed structs, and how they become bytes (MessagePack).

Rule: this package holds every message of the protocol. A field is added with a default, never removed or given
another meaning; `PROTOCOL_VERSION` rises when an old peer would misunderstand. Decoding checks types and bounds, so
code behind it may rely on them; what cannot be decoded is `InvalidRequestError`. Rows are never in here: they
travel as frames in the Flight stream that the message accompanies.

Three kinds of exchange (`broker_runtime.contract.flight` maps them to Flight):

    actions    one request, one response                         ACTIONS: name → (request, response)
    produce    DoPut:      ProduceHello, then ProduceRequest* ↔ ProduceResponse*, answered in order
    fetch      DoExchange: FetchHello, then FetchRequest* ↔ FetchResponse*, in lockstep; heartbeats both ways
    read       DoGet:      ReadRequest → ReadResponse*, a range of offsets of one partition
"""

from __future__ import annotations

from broker_runtime.contract.requests.actions import ACTIONS, Action, ActionRequest
from broker_runtime.contract.requests.brokers import ReportBrokerRequest
from broker_runtime.contract.requests.message import (
    HEARTBEAT_INTERVAL_S,
    MAX_SERVER_WAIT_S,
    PEER_SILENCE_LIMIT_S,
    PROTOCOL_VERSION,
    ErrorInfo,
    Message,
    decode,
    encode,
    make_decoders,
)
from broker_runtime.contract.requests.movement import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListReassignmentsRequest,
    ListReassignmentsResponse,
    PartitionMove,
    PartitionProgress,
    ReassignmentInfo,
    ReassignPartitionsRequest,
    ReplicaProgress,
)
from broker_runtime.contract.requests.offsets import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    LogDirInfo,
    OffsetAnswer,
    OffsetQuery,
    PartitionKey,
    RecordDeletion,
)
from broker_runtime.contract.requests.producers import InitProducerIdRequest, InitProducerIdResponse
from broker_runtime.contract.requests.streams import (
    FetchedPartition,
    FetchHello,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PlainPutResult,
    PlainTicket,
    ProduceHello,
    ProduceRequest,
    ProduceResponse,
    ReadRequest,
    ReadResponse,
)
from broker_runtime.contract.requests.topics import (
    AddColumnsRequest,
    AddColumnsResponse,
    AlterConfigRequest,
    BrokerInfo,
    ConfigEntry,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeConfigRequest,
    DescribeConfigResponse,
    Empty,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    SchemaVersion,
    TopicInfo,
    TopicResponse,
)

__all__ = [
    "DecommissionBrokerRequest",
    "DecommissionBrokerResponse",
    "DescribeReplicasRequest",
    "DescribeReplicasResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "ListReassignmentsRequest",
    "ListReassignmentsResponse",
    "PartitionMove",
    "PartitionProgress",
    "ReassignmentInfo",
    "ReassignPartitionsRequest",
    "ReplicaProgress",
    "ACTIONS",
    "Action",
    "ActionRequest",
    "AddColumnsRequest",
    "AddColumnsResponse",
    "AlterConfigRequest",
    "BrokerInfo",
    "CommitOffsetsRequest",
    "CommitOffsetsResponse",
    "CommittedOffset",
    "ConfigEntry",
    "CreatePartitionsRequest",
    "CreateTopicRequest",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicRequest",
    "DescribeConfigRequest",
    "DescribeConfigResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "Empty",
    "ErrorInfo",
    "FetchHello",
    "FetchOffsetsRequest",
    "FetchOffsetsResponse",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "HEARTBEAT_INTERVAL_S",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "MAX_SERVER_WAIT_S",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "LogDirInfo",
    "Message",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetAnswer",
    "OffsetQuery",
    "PEER_SILENCE_LIMIT_S",
    "PROTOCOL_VERSION",
    "PartitionInfo",
    "PartitionKey",
    "PlainPutResult",
    "PlainTicket",
    "ProduceHello",
    "ProduceRequest",
    "ProduceResponse",
    "ReadRequest",
    "ReadResponse",
    "RecordDeletion",
    "ReportBrokerRequest",
    "SchemaVersion",
    "TopicInfo",
    "TopicResponse",
    "decode",
    "encode",
]

make_decoders()
