"""Which services a broker has, and which of them serves which action: created here for the server.

Rule: objects are created and connected; nothing is decided, started or waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from broker_runtime.contract.events import event
from broker_runtime.contract.requests import Empty, LogEndsRequest, LogEndsResponse, ReportBrokerRequest
from broker_runtime.contract.settings import BrokerSettings
from broker_runtime.following.peers import Peers
from broker_runtime.log import LogDirectory
from broker_runtime.membership.cluster_member import ClusterMember
from broker_runtime.memory import ANSWER_BUDGET_BYTES, PRODUCE_BUDGET_BYTES
from broker_runtime.meters import Meters
from broker_runtime.replication import PartitionRegistry
from broker_runtime.security.authorizer import Authorizer
from broker_runtime.security.quotas import Quotas
from broker_runtime.server.flight import Services
from broker_runtime.services.authorization import Authorization
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.caller import Caller, admit_replica, is_broker
from broker_runtime.services.configs import ConfigService
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.groups import GroupService
from broker_runtime.services.lag import LagService
from broker_runtime.services.leadership_check import LeadershipCheck
from broker_runtime.services.metadata import MetadataService
from broker_runtime.services.movement import MovementService
from broker_runtime.services.offsets import LogOffsetService
from broker_runtime.services.peer_beliefs import PeerBeliefs
from broker_runtime.services.plain import PlainService
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.services.read import ReadService
from broker_runtime.services.security import SecurityService
from broker_runtime.services.topics import TopicService
from broker_runtime.services.transactions import TransactionService
from broker_runtime.zookeeper.session import ZooKeeperClient

_logger = logging.getLogger(__name__)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def make_services(
    settings: BrokerSettings,
    *,
    client: ZooKeeperClient,
    registry: PartitionRegistry,
    member: ClusterMember,
    directories: Sequence[LogDirectory],
    cluster_id: str,
    producer_ids: ProducerIdService,
    groups: GroupService,
    transactions: TransactionService,
    peers: Peers,
    meters: Meters,
    security: SecurityService,
    authorizer: Authorizer,
    is_current: Callable[[Caller], bool],
    quotas: Quotas,
) -> Services:
    """Everything that a broker serves, over its own parts."""
    answers = ByteBudget(ANSWER_BUDGET_BYTES)
    produce = ProduceService(
        registry,
        require_given_out=producer_ids.require_given_out,
        require_may_begin=transactions.require_may_begin,
        forget_if_anew=transactions.forget_if_anew,
        authorizer=authorizer,
        meters=meters,
    )
    leadership = LeadershipCheck(client, settings.broker_id)
    read = ReadService(registry, budget=answers, leadership=leadership, authorizer=authorizer, meters=meters)
    metadata = MetadataService(
        registry,
        lambda: member.state,
        cluster_id=cluster_id,
        broker_id=settings.broker_id,
        directories=directories,
        is_zookeeper_connected=lambda: client.is_connected,
    )
    topics = TopicService(member, settings)
    configs = ConfigService(lambda: member.state, settings)
    logs = LogOffsetService(registry)
    lag = LagService(registry, now_ms=wall_ms)
    movements = MovementService(member, registry, now_ms=wall_ms)

    beliefs = PeerBeliefs(peers, lambda: member.state)

    def and_wait(
        change: Callable[[Caller, _Request], _Response], topic_of: Callable[[_Request], str]
    ) -> Callable[[Caller, Any], Any]:
        def handle(caller: Caller, request: _Request) -> _Response:
            response = change(caller, request)
            beliefs.wait_until_heard(topic_of(request))
            return response

        return handle

    def report_broker(caller: Caller, request: ReportBrokerRequest) -> Empty:
        event(_logger, "report broker", broker=request.broker_id, **caller.log_fields)
        member.suspect(request.broker_id)
        return Empty()

    def log_ends(caller: Caller, request: LogEndsRequest) -> LogEndsResponse:
        return member.log_ends(request)

    actions: dict[str, Callable[[Caller, Any], Any]] = {
        "metadata": metadata.metadata,
        "create_topic": and_wait(topics.create_topic, lambda request: request.name),
        "delete_topic": and_wait(topics.delete_topic, lambda request: request.name),
        "create_partitions": and_wait(topics.create_partitions, lambda request: request.name),
        "add_columns": and_wait(topics.add_columns, lambda request: request.name),
        "describe_config": configs.describe_config,
        "alter_config": and_wait(topics.alter_config, lambda request: request.topic),
        "list_offsets": logs.list_offsets,
        "describe_lag": lag.describe_lag,
        "delete_records": logs.delete_records,
        "init_producer_id": producer_ids.init_producer_id,
        "begin_transaction": transactions.begin_transaction,
        "end_transaction": transactions.end_transaction,
        "abort_transactions": transactions.abort_transactions,
        "list_transactions": transactions.list_transactions,
        "open_transactions": transactions.open_transactions,
        "finish_transactions": transactions.finish_transactions,
        "commit_offsets": groups.commit_offsets,
        "fetch_offsets": groups.fetch_offsets,
        "find_coordinator": groups.find_coordinator,
        "group_heartbeat": groups.group_heartbeat,
        "list_groups": groups.list_groups,
        "describe_group": groups.describe_group,
        "alter_group_offsets": groups.alter_group_offsets,
        "delete_group": groups.delete_group,
        "remove_group_members": groups.remove_group_members,
        "describe_log_dirs": metadata.describe_log_dirs,
        "reassign_partitions": movements.reassign_partitions,
        "list_reassignments": movements.list_reassignments,
        "describe_replicas": movements.describe_replicas,
        "elect_leaders": movements.elect_leaders,
        "decommission_broker": movements.decommission_broker,
        "report_broker": report_broker,
        "log_ends": log_ends,
        "create_acls": security.create_acls,
        "delete_acls": security.delete_acls,
        "describe_acls": security.describe_acls,
        "alter_users": security.alter_users,
        "describe_users": security.describe_users,
        "alter_quotas": security.alter_quotas,
        "describe_quotas": security.describe_quotas,
        "create_token": security.create_token,
    }
    authorization = Authorization(authorizer)

    def authorized(name: str, handle: Callable[[Caller, Any], Any]) -> Callable[[Caller, Any], Any]:
        def handle_if_allowed(caller: Caller, request: Any) -> Any:
            authorization.require(caller, name, request)
            response = handle(caller, authorization.reduced(caller, name, request))
            return authorization.narrowed(caller, name, request, response)

        return handle_if_allowed

    return Services(
        cluster_id=cluster_id,
        produce=produce,
        fetch=FetchService(
            registry,
            max_bytes=settings.fetch_max_bytes,
            budget=answers,
            leadership=leadership,
            authorizer=authorizer,
            meters=meters,
        ),
        read=read,
        plain=PlainService(registry, produce=produce, read=read, now_ms=wall_ms, authorizer=authorizer),
        actions={name: authorized(name, handle) for name, handle in actions.items()},
        admit_replica=lambda caller, hello: admit_replica(caller, hello, member.state.brokers),
        is_broker=lambda headers: is_broker(headers, member.state.brokers),
        is_current=is_current,
        quotas=quotas,
        produce_budget=ByteBudget(PRODUCE_BUDGET_BYTES),
        meters=meters,
    )


def wall_ms() -> int:
    """The time that records and registrations carry: ms since the epoch."""
    return time.time_ns() // 1_000_000
