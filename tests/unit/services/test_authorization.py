"""What each action needs: the table is complete, and is walked as nobody, as somebody else, and as whoever may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_runtime.contract import acls, quotas, requests, transactions
from broker_runtime.contract.acls import CLUSTER_RESOURCE, Acl
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from broker_runtime.contract.requests import CommittedOffset, ErrorInfo, OffsetQuery, PartitionKey, RecordDeletion
from broker_runtime.security.access_list import AccessList
from broker_runtime.security.authorizer import ALLOW_ALL, AclAuthorizer
from broker_runtime.services.authorization import NARROWED, NEEDS, Authorization, OfBrokers
from broker_runtime.services.caller import Caller
from tests.callers import client

NOBODY = client()
BOB = replace(client(), principal="bob")
EVE = replace(client(), principal="eve")
BROKER = replace(client(), is_broker=True)
ROOT = replace(client(), principal="root")

AT = PartitionKey(topic="t", partition=0)
COMMITTED = CommittedOffset(at=AT, offset=1)
PARTITION = transactions.TransactionPartition(topic="t", topic_id=b"0" * 16, partition=0)
TRANSACTION = {"transactional_id": "x", "run_id": "r"}
OPEN_TO_ALL = {
    "metadata", "list_groups", "list_transactions", "open_transactions", "init_producer_id", "create_token",
}  # fmt: skip
"""They tell nobody what is not allowed: see `NARROWED`. A producer id and one's own token are nobody else's."""
SAMPLES: dict[str, tuple[Any, list[tuple[str, str, str]]]] = {
    "create_topic": (requests.CreateTopicRequest(name="t"), [("Create", "Topic", "t")]),
    "delete_topic": (requests.DeleteTopicRequest(name="t"), [("Delete", "Topic", "t")]),
    "create_partitions": (requests.CreatePartitionsRequest(name="t", total=2), [("Alter", "Topic", "t")]),
    "add_columns": (requests.AddColumnsRequest(name="t", schema=b""), [("Alter", "Topic", "t")]),
    "describe_config": (requests.DescribeConfigRequest(topic="t"), [("DescribeConfigs", "Topic", "t")]),
    "alter_config": (requests.AlterConfigRequest(topic="t", changes={}), [("AlterConfigs", "Topic", "t")]),
    "list_offsets": (
        requests.ListOffsetsRequest(queries=(OffsetQuery(at=AT, timestamp=-1),)), [("Describe", "Topic", "t")],
    ),
    "describe_lag": (
        requests.DescribeLagRequest(queries=(requests.LagQuery(at=AT, offset=1),)), [("Describe", "Topic", "t")],
    ),
    "delete_records": (
        requests.DeleteRecordsRequest(deletions=(RecordDeletion(at=AT, offset=1),)), [("Delete", "Topic", "t")],
    ),
    "commit_offsets": (
        requests.CommitOffsetsRequest(group_id="g", offsets=(COMMITTED,)),
        [("Read", "Group", "g"), ("Read", "Topic", "t")],
    ),
    "fetch_offsets": (
        requests.FetchOffsetsRequest(group_id="g", partitions=(AT,)),
        [("Describe", "Group", "g"), ("Describe", "Topic", "t")],
    ),
    "find_coordinator": (requests.FindCoordinatorRequest(group_id="g"), [("Describe", "Group", "g")]),
    "group_heartbeat": (
        requests.GroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, topics=("t",)),
        [("Read", "Group", "g"), ("Describe", "Topic", "t")],
    ),
    "describe_group": (requests.DescribeGroupRequest(group_id="g"), [("Describe", "Group", "g")]),
    "alter_group_offsets": (
        requests.AlterGroupOffsetsRequest(group_id="g", offsets=(COMMITTED,)),
        [("Alter", "Group", "g"), ("Read", "Topic", "t")],
    ),
    "delete_group": (requests.DeleteGroupRequest(group_id="g"), [("Delete", "Group", "g")]),
    "remove_group_members": (
        requests.RemoveGroupMembersRequest(group_id="g", members=("m",)), [("Delete", "Group", "g")],
    ),
    "describe_log_dirs": (requests.DescribeLogDirsRequest(), [("Describe", "Cluster", CLUSTER_RESOURCE)]),
    "reassign_partitions": (requests.ReassignPartitionsRequest(moves=()), [("Alter", "Cluster", CLUSTER_RESOURCE)]),
    "list_reassignments": (requests.ListReassignmentsRequest(), [("Describe", "Cluster", CLUSTER_RESOURCE)]),
    "describe_replicas": (requests.DescribeReplicasRequest(partitions=(AT,)), [("Describe", "Topic", "t")]),
    "elect_leaders": (requests.ElectLeadersRequest(), [("Alter", "Cluster", CLUSTER_RESOURCE)]),
    "decommission_broker": (
        requests.DecommissionBrokerRequest(broker_id=1), [("Alter", "Cluster", CLUSTER_RESOURCE)],
    ),
    "begin_transaction": (transactions.BeginTransactionRequest(**TRANSACTION), [("Write", "TransactionalId", "x")]),
    "end_transaction": (
        transactions.EndTransactionRequest(
            **TRANSACTION,  # type: ignore[arg-type]
            epoch=0,
            batch_id=0,
            is_commit=True,
            partitions=(PARTITION,),
            group=transactions.GroupCommit(group_id="g", offsets=(COMMITTED,)),
        ),
        [("Write", "TransactionalId", "x"), ("Write", "Topic", "t"), ("Read", "Group", "g"), ("Read", "Topic", "t")],
    ),
    "abort_transactions": (
        transactions.AbortTransactionsRequest(transactional_id="x"), [("Write", "TransactionalId", "x")],
    ),
    "create_acls": (acls.CreateAclsRequest(acls=()), [("Alter", "Cluster", CLUSTER_RESOURCE)]),
    "delete_acls": (acls.DeleteAclsRequest(filters=()), [("Alter", "Cluster", CLUSTER_RESOURCE)]),
    "describe_acls": (acls.DescribeAclsRequest(), [("Describe", "Cluster", CLUSTER_RESOURCE)]),
    "alter_users": (acls.AlterUsersRequest(), [("Alter", "Cluster", CLUSTER_RESOURCE)]),
    "describe_users": (acls.DescribeUsersRequest(), [("Describe", "Cluster", CLUSTER_RESOURCE)]),
    "alter_quotas": (quotas.AlterQuotasRequest(changes=()), [("AlterConfigs", "Cluster", CLUSTER_RESOURCE)]),
    "describe_quotas": (quotas.DescribeQuotasRequest(), [("DescribeConfigs", "Cluster", CLUSTER_RESOURCE)]),
}  # fmt: skip
OF_BROKERS = {"report_broker", "log_ends", "finish_transactions"}
ERRORS = {
    "Topic": TopicAuthorizationError,
    "Group": GroupAuthorizationError,
    "TransactionalId": TransactionalIdAuthorizationError,
    "Cluster": ClusterAuthorizationError,
}


def authorization(*rules: tuple[str, str, str], principal: str = "bob") -> Authorization:
    listed = [
        Acl(principal=f"User:{principal}", operation=operation, resource_type=kind, name=name)  # type: ignore[arg-type]
        for operation, kind, name in rules
    ]
    access_list = AccessList(listed)
    return Authorization(AclAuthorizer(lambda: access_list, super_users=("root",)))


def test_each_action_of_the_protocol_is_in_the_table_and_in_this_walk() -> None:
    assert NEEDS.keys() == ACTIONS.keys()
    assert SAMPLES.keys() | OPEN_TO_ALL | OF_BROKERS == ACTIONS.keys()


def test_action_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ClusterAuthorizationError, match="nobody may do 'new_action'"):
        authorization().require(ROOT, "new_action", None)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("caller", [NOBODY, EVE])
def test_nobody_and_somebody_else_may_do_nothing(name: str, caller: Caller) -> None:
    """All ACLs that the action needs are there, for another user."""
    request, needs = SAMPLES[name]
    with pytest.raises(AuthorizationError):
        authorization(*needs).require(caller, name, request)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_whoever_has_all_that_it_needs_may_and_without_any_one_may_not(name: str) -> None:
    request, needs = SAMPLES[name]
    authorization(*needs).require(BOB, name, request)
    for missing in needs:
        rest = [need for need in needs if need != missing]
        with pytest.raises(ERRORS[missing[1]]):
            authorization(*rest).require(BOB, name, request)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("caller", [BROKER, ROOT])
def test_brokers_and_super_users_may_do_everything(name: str, caller: Caller) -> None:
    authorization().require(caller, name, SAMPLES[name][0])


@pytest.mark.parametrize("name", sorted(OF_BROKERS))
def test_what_brokers_do_among_themselves_is_theirs_alone(name: str) -> None:
    every = [("All", kind, CLUSTER_RESOURCE if kind == "Cluster" else "*") for kind in ERRORS]
    assert list(NEEDS[name](None)) == [OfBrokers()]
    for caller in (NOBODY, BOB):
        with pytest.raises(ClusterAuthorizationError, match="is no broker of this cluster"):
            authorization(*every).require(caller, name, None)
    authorization().require(BROKER, name, None)


def test_producer_id_needs_write_on_any_topic() -> None:
    authorization(("Write", "Topic", "t")).require(BOB, "init_producer_id", None)
    with pytest.raises(ClusterAuthorizationError):
        authorization(("Read", "Topic", "t")).require(BOB, "init_producer_id", None)


def test_topics_that_may_not_be_seen_are_not_looked_for() -> None:
    """How long it takes to answer must not tell whether they exist."""
    only = authorization(("Read", "Topic", "mine"))
    request = requests.MetadataRequest(topics=("theirs", "mine"), with_offsets=True)
    assert only.reduced(BOB, "metadata", request).topics == ("mine",)
    assert only.reduced(ROOT, "metadata", request) is request
    everything = requests.MetadataRequest()
    assert only.reduced(BOB, "metadata", everything) is everything


def test_members_of_a_group_tell_of_no_hidden_topic() -> None:
    def held(name: str) -> requests.AssignedPartitions:
        return requests.AssignedPartitions(topic=name, topic_id=b"0" * 16, partitions=(0,))

    member = requests.MemberInfo(
        member_id="m", instance_id=None, kind="consumer", client_id="c", client_host="h", state="stable",
        member_epoch=1, topics=("t", "theirs"), assignment=(held("t"), held("theirs")), session_timeout_ms=1,
        last_heartbeat_ms=1,
    )  # fmt: skip
    answer = requests.DescribeGroupResponse(group=group("g"), epoch=1, members=(member,))
    (seen,) = authorization(("Read", "Topic", "t")).narrowed(BOB, "describe_group", None, answer).members
    assert (seen.topics, [each.topic for each in seen.assignment]) == (("t",), ["t"])


def test_create_of_the_cluster_allows_any_topic() -> None:
    authorization(("Create", "Cluster", CLUSTER_RESOURCE)).require(BOB, "create_topic", SAMPLES["create_topic"][0])


def test_brokers_settings_need_the_cluster() -> None:
    request = requests.DescribeConfigRequest(broker_id=1)
    authorization(("DescribeConfigs", "Cluster", CLUSTER_RESOURCE)).require(BOB, "describe_config", request)
    with pytest.raises(ClusterAuthorizationError):
        authorization(("DescribeConfigs", "Topic", "*")).require(BOB, "describe_config", request)


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_without_an_authorizer_everything_is_allowed(name: str) -> None:
    Authorization(ALLOW_ALL).require(NOBODY, name, None)


def topic(name: str) -> requests.TopicInfo:
    return requests.TopicInfo(name=name, topic_id=b"0" * 16, partitions=())


def metadata(*topics: str, errors: dict[str, ErrorInfo] | None = None) -> requests.MetadataResponse:
    return requests.MetadataResponse(
        protocol_version=1,
        software_version="1",
        cluster_id="c",
        controller_id=1,
        brokers=(requests.BrokerInfo(broker_id=1, host="h", port=1, epoch=1, disks={"/secret": "full"}),),
        topics=tuple(map(topic, topics)),
        errors=errors or {},
    )


def test_all_topics_are_those_that_the_caller_may_describe() -> None:
    narrowed = authorization(("Read", "Topic", "mine")).narrowed(
        BOB, "metadata", requests.MetadataRequest(), metadata("mine", "theirs")
    )
    assert [each.name for each in narrowed.topics] == ["mine"]
    assert narrowed.errors == {}


def test_topic_that_may_not_be_described_looks_the_same_whether_it_exists_or_not() -> None:
    unknown = ErrorInfo(code="UNKNOWN_TOPIC_OR_PARTITION", message="no topic 'gone'")
    request = requests.MetadataRequest(topics=("theirs", "gone", "mine"))
    narrowed = authorization(("Read", "Topic", "mine")).narrowed(
        BOB, "metadata", request, metadata("mine", "theirs", errors={"gone": unknown})
    )
    assert [each.name for each in narrowed.topics] == ["mine"]
    assert {name: error.code for name, error in narrowed.errors.items()} == {
        "theirs": "TOPIC_AUTHORIZATION_FAILED", "gone": "TOPIC_AUTHORIZATION_FAILED",
    }  # fmt: skip
    assert narrowed.errors["theirs"].message.replace("theirs", "X") == narrowed.errors["gone"].message.replace(
        "gone", "X"
    )


def test_paths_of_disks_are_for_those_who_may_describe_the_cluster() -> None:
    request, answer = requests.MetadataRequest(), metadata()
    assert authorization().narrowed(BOB, "metadata", request, answer).brokers[0].disks == {}
    may = authorization(("Describe", "Cluster", CLUSTER_RESOURCE))
    assert may.narrowed(BOB, "metadata", request, answer).brokers[0].disks == {"/secret": "full"}


def group(name: str) -> requests.GroupInfo:
    return requests.GroupInfo(group_id=name, state="empty", kind="", members=0, coordinator=-1)


def listed(name: str) -> transactions.TransactionalIdInfo:
    return transactions.TransactionalIdInfo(transactional_id=name, epoch=0, run_id="r", batch_id=0)


def test_lists_have_what_the_caller_may_describe() -> None:
    only = authorization(("Describe", "Group", "g"), ("Describe", "TransactionalId", "x"), ("Read", "Topic", "t"))
    groups = requests.ListGroupsResponse(groups=(group("g"), group("h")))
    ids = transactions.ListTransactionsResponse(transactional_ids=(listed("x"), listed("y")))
    other = CommittedOffset(at=PartitionKey(topic="theirs", partition=0), offset=2)
    offsets = requests.FetchOffsetsResponse(offsets=(COMMITTED, other))
    assert [each.group_id for each in only.narrowed(BOB, "list_groups", None, groups).groups] == ["g"]
    seen = only.narrowed(BOB, "list_transactions", None, ids).transactional_ids
    assert [each.transactional_id for each in seen] == ["x"]
    assert only.narrowed(BOB, "fetch_offsets", None, offsets).offsets == (COMMITTED,)
    assert only.narrowed(EVE, "list_groups", None, groups).groups == ()


def test_each_action_that_is_open_to_all_and_tells_of_others_is_narrowed() -> None:
    assert OPEN_TO_ALL - NARROWED.keys() == {"init_producer_id", "create_token"}
