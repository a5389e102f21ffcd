"""The table of actions: for each name its request and its response, and the envelope they travel in."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from broker_runtime.contract.requests.brokers import LogEndsRequest, LogEndsResponse, ReportBrokerRequest
from broker_runtime.contract.requests.groups import (
    AlterGroupOffsetsRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    DescribeGroupResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    RemoveGroupMembersRequest,
)
from broker_runtime.contract.requests.message import PROTOCOL_VERSION, Message, Request
from broker_runtime.contract.requests.movement import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListReassignmentsRequest,
    ListReassignmentsResponse,
    ReassignPartitionsRequest,
)
from broker_runtime.contract.requests.offsets import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from broker_runtime.contract.requests.producers import InitProducerIdRequest, InitProducerIdResponse
from broker_runtime.contract.requests.topics import (
    AddColumnsRequest,
    AddColumnsResponse,
    AlterConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeConfigRequest,
    DescribeConfigResponse,
    Empty,
    MetadataRequest,
    MetadataResponse,
    TopicResponse,
)


class Action(NamedTuple):
    request: type[Request]
    response: type[Message]


ACTIONS: dict[str, Action] = {
    "metadata": Action(MetadataRequest, MetadataResponse),
    "create_topic": Action(CreateTopicRequest, TopicResponse),
    "delete_topic": Action(DeleteTopicRequest, Empty),
    "create_partitions": Action(CreatePartitionsRequest, Empty),
    "add_columns": Action(AddColumnsRequest, AddColumnsResponse),
    "describe_config": Action(DescribeConfigRequest, DescribeConfigResponse),
    "alter_config": Action(AlterConfigRequest, Empty),
    "list_offsets": Action(ListOffsetsRequest, ListOffsetsResponse),
    "delete_records": Action(DeleteRecordsRequest, DeleteRecordsResponse),
    "commit_offsets": Action(CommitOffsetsRequest, CommitOffsetsResponse),
    "fetch_offsets": Action(FetchOffsetsRequest, FetchOffsetsResponse),
    "find_coordinator": Action(FindCoordinatorRequest, FindCoordinatorResponse),
    "group_heartbeat": Action(GroupHeartbeatRequest, GroupHeartbeatResponse),
    "list_groups": Action(ListGroupsRequest, ListGroupsResponse),
    "describe_group": Action(DescribeGroupRequest, DescribeGroupResponse),
    "alter_group_offsets": Action(AlterGroupOffsetsRequest, CommitOffsetsResponse),
    "delete_group": Action(DeleteGroupRequest, Empty),
    "remove_group_members": Action(RemoveGroupMembersRequest, Empty),
    "init_producer_id": Action(InitProducerIdRequest, InitProducerIdResponse),
    "describe_log_dirs": Action(DescribeLogDirsRequest, DescribeLogDirsResponse),
    "reassign_partitions": Action(ReassignPartitionsRequest, Empty),
    "list_reassignments": Action(ListReassignmentsRequest, ListReassignmentsResponse),
    "describe_replicas": Action(DescribeReplicasRequest, DescribeReplicasResponse),
    "elect_leaders": Action(ElectLeadersRequest, ElectLeadersResponse),
    "decommission_broker": Action(DecommissionBrokerRequest, DecommissionBrokerResponse),
    "report_broker": Action(ReportBrokerRequest, Empty),
    "log_ends": Action(LogEndsRequest, LogEndsResponse),
}


class ActionRequest(Message, frozen=True, kw_only=True):
    """The envelope of every action's body; ``body`` is the encoded request of the action's own type. Its bound in bytes
    is that of the envelope, too."""

    protocol_version: int = PROTOCOL_VERSION
    client_id: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\x80")
