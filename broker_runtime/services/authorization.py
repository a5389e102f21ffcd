"""What each action needs, as a table; streams check for themselves, request by request (`produce`, `fetch`, `read`).

    NEEDS[action](request) → what the caller must be allowed, all of it, before the action begins
    NARROWED[action]       → what is taken out of the answer: what the caller may not see

Rule: there is an entry for every action of the protocol, and one that is missing is refused. What one may not describe,
one does not learn the existence of: the check comes before anybody looks whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from broker_runtime.contract import requests, transactions
from broker_runtime.contract.acls import CLUSTER_RESOURCE
from broker_runtime.contract.errors import ClusterAuthorizationError, TopicAuthorizationError
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.security.authorizer import Authorizer
from broker_runtime.services.caller import Caller


class Need(NamedTuple):
    """An operation on a resource that the caller must be allowed."""

    operation: str
    resource_type: str
    name: str = CLUSTER_RESOURCE


class OfBrokers(NamedTuple):
    """The caller must be another broker."""


Needs: TypeAlias = Iterable[Need | OfBrokers]


def _nothing(request: Any) -> Needs:
    return ()


def _of_brokers(request: Any) -> Needs:
    return (OfBrokers(),)


def _cluster(operation: str) -> Callable[[Any], Needs]:
    return lambda request: (Need(operation, "Cluster"),)


def _topic(operation: str, name: Callable[[Any], str]) -> Callable[[Any], Needs]:
    return lambda request: (Need(operation, "Topic", name(request)),)


def _topics(operation: str, names: Callable[[Any], Iterable[str]]) -> Callable[[Any], Needs]:
    return lambda request: [Need(operation, "Topic", name) for name in dict.fromkeys(names(request))]


def _group(operation: str) -> Callable[[Any], Needs]:
    return lambda request: (Need(operation, "Group", request.group_id),)


def _transaction(operation: str) -> Callable[[Any], Needs]:
    return lambda request: (Need(operation, "TransactionalId", request.transactional_id),)


def _describe_config(request: requests.DescribeConfigRequest) -> Needs:
    if request.topic is not None:
        return (Need("DescribeConfigs", "Topic", request.topic),)
    return (Need("DescribeConfigs", "Cluster"),)


def _group_and_topics(
    operation: str, *, on_topics: str, names: Callable[[Any], Iterable[str]]
) -> Callable[[Any], Needs]:
    def needs(request: Any) -> Iterator[Need]:
        yield Need(operation, "Group", request.group_id)
        for name in dict.fromkeys(names(request)):
            yield Need(on_topics, "Topic", name)

    return needs


def _end_transaction(request: transactions.EndTransactionRequest) -> Iterator[Need]:
    yield Need("Write", "TransactionalId", request.transactional_id)
    for topic in dict.fromkeys(each.topic for each in request.partitions):
        yield Need("Write", "Topic", topic)
    if request.group is not None:
        yield Need("Read", "Group", request.group.group_id)
        for topic in dict.fromkeys(each.at.topic for each in request.group.offsets):
            yield Need("Read", "Topic", topic)


def _of_offsets(request: Any) -> Iterable[str]:
    return (each.at.topic for each in request.offsets)


NEEDS: Final[Mapping[str, Callable[[Any], Needs]]] = {
    # What is described is narrowed, or refused topic by topic: see below.
    "metadata": _nothing,
    "list_groups": _nothing,
    "list_transactions": _nothing,
    "open_transactions": _nothing,
    "list_reassignments": _cluster("Describe"),
    "create_topic": _nothing,  # see `Authorization.require`: the cluster's Create is enough as well
    "delete_topic": _topic("Delete", lambda request: request.name),
    "create_partitions": _topic("Alter", lambda request: request.name),
    "add_columns": _topic("Alter", lambda request: request.name),
    "describe_config": _describe_config,
    "alter_config": _topic("AlterConfigs", lambda request: request.topic),
    "list_offsets": _topics("Describe", lambda request: (each.at.topic for each in request.queries)),
    "describe_lag": _topics("Describe", lambda request: (each.at.topic for each in request.queries)),
    "delete_records": _topics("Delete", lambda request: (each.at.topic for each in request.deletions)),
    "commit_offsets": _group_and_topics("Read", on_topics="Read", names=_of_offsets),
    # Which partitions there are shows in the answer about those that are named; of all, `NARROWED` leaves out.
    "fetch_offsets": _group_and_topics(
        "Describe", on_topics="Describe", names=lambda request: (each.topic for each in request.partitions or ())
    ),
    "find_coordinator": _group("Describe"),
    # What is assigned tells that a topic exists, and how many partitions it has.
    "group_heartbeat": _group_and_topics("Read", on_topics="Describe", names=lambda request: request.topics or ()),
    "describe_group": _group("Describe"),
    "alter_group_offsets": _group_and_topics("Alter", on_topics="Read", names=_of_offsets),
    "delete_group": _group("Delete"),
    "remove_group_members": _group("Delete"),
    "init_producer_id": _nothing,  # see `Authorization.require`: whoever may write to any topic, as in Kafka since 2.8
    "describe_log_dirs": _cluster("Describe"),
    "reassign_partitions": _cluster("Alter"),
    "describe_replicas": _topics("Describe", lambda request: (each.topic for each in request.partitions)),
    "elect_leaders": _cluster("Alter"),
    "decommission_broker": _cluster("Alter"),
    "report_broker": _of_brokers,
    "log_ends": _of_brokers,
    "finish_transactions": _of_brokers,
    "begin_transaction": _transaction("Write"),
    "end_transaction": _end_transaction,
    "abort_transactions": _transaction("Write"),
    "create_acls": _cluster("Alter"),
    "delete_acls": _cluster("Alter"),
    "describe_acls": _cluster("Describe"),
    "alter_users": _cluster("Alter"),
    "describe_users": _cluster("Describe"),
    "alter_quotas": _cluster("AlterConfigs"),
    "describe_quotas": _cluster("DescribeConfigs"),
    "create_token": _nothing,  # of the caller itself
}


class Authorization:
    """The table, applied. Thread-safe."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def require(self, caller: Caller, action: str, request: Any) -> None:
        """Raises an `AuthorizationError` unless ``caller`` may do the action with all that the request names."""
        if not self._authorizer.is_enforced:
            return
        needs = NEEDS.get(action)
        if needs is None:
            raise ClusterAuthorizationError(f"nobody may do {action!r:.80}")
        if action == "create_topic" and not self._authorizer.allows_creation(caller, request.name):
            self._authorizer.require(caller, "Create", "Topic", request.name)
        if action == "init_producer_id":
            self._authorizer.require_any(caller, "Write", "Topic")
        for need in needs(request):
            if isinstance(need, OfBrokers):
                self._authorizer.require_broker(caller)
            else:
                self._authorizer.require(caller, *need)

    def narrowed(self, caller: Caller, action: str, request: Any, response: Any) -> Any:
        """The answer, without what ``caller`` may not see."""
        narrow = NARROWED.get(action)
        return (
            response if narrow is None or not self._authorizer.is_enforced else narrow(self, caller, request, response)
        )

    def reduced(self, caller: Caller, action: str, request: Any) -> Any:
        """The request, without the topics that ``caller`` may not see: nobody looks at them, which would take time that
        tells whether they exist. `narrowed` refuses them by name."""
        if action != "metadata" or request.topics is None or not self._authorizer.is_enforced:
            return request
        seen = tuple(name for name in request.topics if self.sees(caller, "Topic", name))
        return request if len(seen) == len(request.topics) else msgspec.structs.replace(request, topics=seen)

    def sees(self, caller: Caller, resource_type: str, name: str) -> bool:
        """Whether ``caller`` may describe it."""
        return self._authorizer.allows(caller, "Describe", resource_type, name)

    def _metadata(
        self, caller: Caller, request: requests.MetadataRequest, response: requests.MetadataResponse
    ) -> requests.MetadataResponse:
        """All topics: those that may be seen. Named ones: the others are refused, whether they exist or not."""
        seen = tuple(topic for topic in response.topics if self.sees(caller, "Topic", topic.name))
        errors = {name: error for name, error in response.errors.items() if self.sees(caller, "Topic", name)}
        for name in dict.fromkeys(request.topics or ()):
            if not self.sees(caller, "Topic", name):
                text = f"User:{caller.principal} may not Describe topic {name!r:.260}: no ACL allows it"
                errors[name] = ErrorInfo.saying(TopicAuthorizationError, text)
        brokers = response.brokers
        if not self.sees(caller, "Cluster", CLUSTER_RESOURCE):  # paths of disks are not for everybody
            brokers = tuple(msgspec.structs.replace(each, disks={}, diverged=()) for each in brokers)
        return msgspec.structs.replace(response, topics=seen, errors=errors, brokers=brokers)

    def _groups(self, caller: Caller, request: Any, response: requests.ListGroupsResponse) -> Any:
        if self.sees(caller, "Cluster", CLUSTER_RESOURCE):
            return response
        seen = tuple(group for group in response.groups if self.sees(caller, "Group", group.group_id))
        return msgspec.structs.replace(response, groups=seen)

    def _offsets(self, caller: Caller, request: Any, response: requests.FetchOffsetsResponse) -> Any:
        seen = tuple(each for each in response.offsets if self.sees(caller, "Topic", each.at.topic))
        return msgspec.structs.replace(response, offsets=seen)

    def _transactions(self, caller: Caller, request: Any, response: transactions.ListTransactionsResponse) -> Any:
        seen = tuple(
            each for each in response.transactional_ids if self.sees(caller, "TransactionalId", each.transactional_id)
        )
        return msgspec.structs.replace(response, transactional_ids=seen)

    def _open_transactions(self, caller: Caller, request: Any, response: transactions.OpenTransactionsResponse) -> Any:
        seen = tuple(
            each
            for each in response.transactions
            if self.sees(caller, "TransactionalId", each.transactional_id) and self.sees(caller, "Topic", each.topic)
        )
        return msgspec.structs.replace(response, transactions=seen)

    def _group(self, caller: Caller, request: Any, response: requests.DescribeGroupResponse) -> Any:
        """The members, without topics that the caller may not see."""

        def without_hidden(member: requests.MemberInfo) -> requests.MemberInfo:
            return msgspec.structs.replace(
                member,
                topics=tuple(name for name in member.topics if self.sees(caller, "Topic", name)),
                assignment=tuple(each for each in member.assignment if self.sees(caller, "Topic", each.topic)),
            )

        return msgspec.structs.replace(response, members=tuple(map(without_hidden, response.members)))


NARROWED: Final[Mapping[str, Callable[[Authorization, Caller, Any, Any], Any]]] = {
    "metadata": Authorization._metadata,
    "list_groups": Authorization._groups,
    "fetch_offsets": Authorization._offsets,
    "describe_group": Authorization._group,
    "list_transactions": Authorization._transactions,
    "open_transactions": Authorization._open_transactions,
}
