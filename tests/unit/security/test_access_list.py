"""Whether an ACL allows something: Kafka's rules, as its AclAuthorizer has them."""

from __future__ import annotations

import pytest

from broker_runtime.contract.acls import CLUSTER_RESOURCE, Acl, AclFilter, check_acl
from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.security.access_list import AccessList

HOST = "10.0.0.1"


def rule(operation: str = "Read", name: str = "flights", **more: str) -> Acl:
    given = {"principal": "User:bob", "resource_type": "Topic", **more}
    return Acl(operation=operation, name=name, **given)  # type: ignore[arg-type]


def allows(*acls: Acl, who: str = "bob", operation: str = "Read", kind: str = "Topic", name: str = "flights") -> bool:
    return AccessList(acls).allows(who, HOST, operation, kind, name)


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not allows()
    assert not allows(rule(), who="eve")
    assert not allows(rule(), name="flight")
    assert not allows(rule(), name="flights2")
    assert not allows(rule(), operation="Write")
    assert not allows(rule(), kind="Group")


@pytest.mark.parametrize(
    "acl",
    [
        rule(),
        rule("All"),
        rule(principal="User:*"),
        rule(name="*"),
        rule(name="fli", pattern="Prefixed"),
        rule(host=HOST),
    ],
)
def test_acl_allows_what_it_names(acl: Acl) -> None:
    assert allows(acl)


def test_acl_for_another_host_does_not_count() -> None:
    assert not allows(rule(host="10.0.0.2"))
    assert allows(rule(host="10.0.0.2"), rule(host=HOST))
    assert allows(rule(), rule(host="10.0.0.2", permission="Deny"))


@pytest.mark.parametrize(
    "denied",
    [
        rule(permission="Deny"),
        rule("All", permission="Deny"),
        rule(principal="User:*", permission="Deny"),
        rule(name="*", permission="Deny"),
        rule(name="f", pattern="Prefixed", permission="Deny"),
    ],
)
def test_denial_counts_before_everything_that_allows(denied: Acl) -> None:
    assert not allows(denied, rule(), rule("All", name="*", principal="User:*"))


@pytest.mark.parametrize("operation", ["Read", "Write", "Delete", "Alter"])
def test_describe_is_implied_where_it_is_allowed_and_never_where_it_is_denied(operation: str) -> None:
    assert allows(rule(operation), operation="Describe")
    assert allows(rule(operation, permission="Deny"), rule("Describe"), operation="Describe")
    assert not allows(rule("Describe", permission="Deny"), rule(operation), operation="Describe")


def test_describe_implies_nothing() -> None:
    for operation in ("Read", "Write", "Delete", "Alter", "Create"):
        assert not allows(rule("Describe"), operation=operation)


def test_alter_configs_implies_describe_configs_and_not_describe() -> None:
    assert allows(rule("AlterConfigs"), operation="DescribeConfigs")
    assert not allows(rule("AlterConfigs"), operation="Describe")
    assert not allows(rule("Create"), operation="Describe")


def test_prefix_is_no_pattern_and_star_is_only_literal() -> None:
    assert not allows(rule(name="flight*"))
    assert not allows(rule(name="*", pattern="Prefixed"))
    assert allows(rule(name="*", pattern="Prefixed"), name="*starred")


def test_cluster_is_one_resource() -> None:
    acl = rule("Alter", name=CLUSTER_RESOURCE, resource_type="Cluster")
    assert allows(acl, operation="Alter", kind="Cluster", name=CLUSTER_RESOURCE)
    assert allows(acl, operation="Describe", kind="Cluster", name=CLUSTER_RESOURCE)
    assert not allows(acl, operation="Create", kind="Cluster", name=CLUSTER_RESOURCE)


def test_names_of_principals_are_compared_whole() -> None:
    """A user may be called as another one's ACL begins, or contain ``User:``."""
    assert not allows(rule(principal="User:bob"), who="User:bob")
    assert not allows(rule(principal="User:bobby"), who="bob")
    assert not allows(rule(principal="User:*"), who="bob", operation="Write")
    assert allows(rule(principal="User:User:bob"), who="User:bob")


@pytest.mark.parametrize(
    ("acl", "says"),
    [
        (rule(principal="bob"), "principal='bob': must be User:name"),
        (rule(principal="User:"), "must be User:name"),
        (rule("Create", resource_type="Group"), "operation='Create' on Group: must be All or one of Read"),
        (rule("Read", resource_type="Cluster", name=CLUSTER_RESOURCE), "operation='Read' on Cluster"),
        (rule("Alter", resource_type="Cluster", name="other"), "the cluster's is 'pylog-cluster'"),
        (rule("Alter", resource_type="Cluster", name=CLUSTER_RESOURCE, pattern="Prefixed"), "the cluster's is"),
        (rule(name="a\nb"), "not printable"),
    ],
)
def test_acl_that_could_mean_nothing_is_refused(acl: Acl, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says.replace("(", r"\(")):
        check_acl(acl)


def test_filter_matches_what_is_given_exactly() -> None:
    acl = rule(name="fli", pattern="Prefixed")
    assert AclFilter().matches(acl)
    assert AclFilter(name="fli", principal="User:bob", resource_type="Topic").matches(acl)
    assert not AclFilter(name="fl").matches(acl)
    assert not AclFilter(pattern="Literal").matches(acl)
    assert not AclFilter(permission="Deny").matches(acl)
