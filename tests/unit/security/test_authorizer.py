"""What services ask before they do something: remembered, refused by the right error, logged sparingly."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from broker_runtime.contract.acls import Acl
from broker_runtime.contract.errors import ClusterAuthorizationError, GroupAuthorizationError, TopicAuthorizationError
from broker_runtime.security import audit, authorizer
from broker_runtime.security.access_list import AccessList
from broker_runtime.security.authorizer import AclAuthorizer
from tests.callers import client

BOB = replace(client(), principal="bob", address="10.0.0.1:1")
READ = Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t")


class World:
    def __init__(self, *acls: Acl) -> None:
        self.access_list = AccessList(acls)
        self.authorizer = AclAuthorizer(lambda: self.access_list, super_users=("root",))

    def allows(self, caller: object = BOB, operation: str = "Read", name: str = "t") -> bool:
        return self.authorizer.allows(caller, operation, "Topic", name)  # type: ignore[arg-type]


def test_answer_is_for_one_principal_from_one_host_one_operation_and_one_resource() -> None:
    """Each is asked about after another one that was allowed and is remembered."""
    world = World(Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t", host="10.0.0.1"))
    assert world.allows()
    assert world.allows()
    assert not world.allows(replace(BOB, address="10.0.0.2:1"))
    assert not world.allows(replace(BOB, principal="eve"))
    assert not world.allows(operation="Write")
    assert not world.allows(name="u")
    assert not world.authorizer.allows(BOB, "Read", "Group", "t")
    assert world.allows(replace(BOB, address="10.0.0.1:2"))


def test_another_access_list_counts_at_once() -> None:
    world = World(READ)
    assert world.allows()
    world.access_list = AccessList()
    assert not world.allows()
    world.access_list = AccessList([READ])
    assert world.allows()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by size: names that nothing can have are refused without a thought, whatever ACLs say."""
    monkeypatch.setattr(authorizer, "_MOST_REMEMBERED", 10)
    world = World(Acl(principal="User:bob", operation="Read", resource_type="Topic", name="*"))
    for number in range(100):
        assert world.allows(name=f"t{number}")
    assert len(world.authorizer._remembered[1]) <= 11
    assert not world.allows(name="x" * 256)
    assert not any(len(key[4]) > 255 for key in world.authorizer._remembered[1])


def test_refusal_is_the_error_of_its_resource_and_names_who_and_what() -> None:
    world = World()
    for kind, error in (("Topic", TopicAuthorizationError), ("Group", GroupAuthorizationError)):
        with pytest.raises(error, match=rf"User:bob may not Read {kind.lower()} 'x': no ACL allows it"):
            world.authorizer.require(BOB, "Read", kind, "x")
    with pytest.raises(ClusterAuthorizationError, match="User:bob may not Alter the cluster"):
        world.authorizer.require(BOB, "Alter", "Cluster")


def test_any_topic_will_do_for_a_producer_id() -> None:
    write = Acl(principal="User:bob", operation="Write", resource_type="Topic", name="raw-", pattern="Prefixed")
    for allowing in ([write], [Acl(principal="User:*", operation="All", resource_type="Topic", name="t")]):
        World(*allowing).authorizer.require_any(BOB, "Write", "Topic")
    denied = Acl(principal="User:bob", operation="Write", resource_type="Topic", name="t", permission="Deny")
    for refusing in ([], [READ], [denied]):
        with pytest.raises(ClusterAuthorizationError, match="may not Write any topic"):
            World(*refusing).authorizer.require_any(BOB, "Write", "Topic")
    World().authorizer.require_any(replace(BOB, principal="root"), "Write", "Topic")


def test_denials_are_logged_and_a_flood_of_them_fills_no_disk(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand some are logged, and the next line says how many were left out; others' are not among them."""
    now = [100.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: now[0])
    world = World()

    def denied(caller: object, name: str) -> None:
        with pytest.raises(TopicAuthorizationError):
            world.authorizer.require(caller, "Read", "Topic", name)  # type: ignore[arg-type]

    for number in range(1_000):
        denied(BOB, f"t{number}")
    assert len(caplog.records) == 20
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert caplog.records[0].getMessage() == (
        'deny request principal=bob address=10.0.0.1:1 operation=Read resource="Topic t0"'
    )
    denied(replace(BOB, principal="eve"), "t")
    assert "principal=eve" in caplog.records[-1].getMessage()
    now[0] += 10
    denied(BOB, "t")
    assert caplog.records[-1].getMessage().endswith("omitted=980")
    now[0] += 10
    denied(BOB, "t")
    assert "omitted" not in caplog.records[-1].getMessage()
