"""Streams ask for themselves whether their caller may: a right that is withdrawn is missed at the next request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from broker_runtime.contract.acls import Acl
from broker_runtime.contract.errors import TopicAuthorizationError
from broker_runtime.contract.streams import FetchPartition, FetchRequest, PlainTicket, ProduceRequest, ReadRequest
from broker_runtime.contract.transactions import TransactionIdentity
from broker_runtime.security.access_list import AccessList
from broker_runtime.security.authorizer import AclAuthorizer
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.plain import PlainService
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.read import ReadService
from tests.callers import client
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame

BOB = replace(client(), principal="bob")


class World:
    """One partition with three frames, and services that ask an access list."""

    def __init__(self) -> None:
        self.access_list = AccessList()
        authorizer = AclAuthorizer(lambda: self.access_list, super_users=())
        self.hosted = Hosted()
        for number in range(3):
            self.hosted.append(b"%d" % number)
        registry, self.budget = self.hosted.registry, ByteBudget(1 << 20)
        self.produce = ProduceService(registry, now_ms=lambda: NOW_MS, authorizer=authorizer)
        self.read = ReadService(registry, budget=self.budget, authorizer=authorizer)
        self.fetch = FetchService(registry, max_bytes=1 << 20, budget=self.budget, authorizer=authorizer)
        self.plain = PlainService(
            registry, produce=self.produce, read=self.read, now_ms=lambda: NOW_MS, authorizer=authorizer
        )

    def allow(self, *rights: tuple[str, str, str]) -> None:
        """These, and no others."""
        self.access_list = AccessList(
            Acl(principal="User:bob", operation=operation, resource_type=kind, name=name)  # type: ignore[arg-type]
            for operation, kind, name in rights
        )

    def appended(self, **more: object) -> str | None:
        """The code of the error with which a frame is refused; None: it is in the log."""
        request = ProduceRequest(request_id=1, topic="t", topic_id=TOPIC_ID.bytes, leader_epoch=1, **more)  # type: ignore[arg-type]
        end = self.hosted.only.log.log_end_offset
        pending = self.produce.append(BOB, request, [pa.py_buffer(frame(b"x"))])
        assert (self.hosted.only.log.log_end_offset > end) is (pending.error is None)
        return None if pending.error is None else pending.error.code


@pytest.fixture
def world() -> World:
    return World()


def test_produce_needs_write_for_each_frame(world: World) -> None:
    for rights in ((), [("Read", "Topic", "t")], [("Write", "Topic", "u")]):
        world.allow(*rights)
        assert world.appended() == "TOPIC_AUTHORIZATION_FAILED"
    world.allow(("Write", "Topic", "t"))
    assert world.appended() is None
    world.allow()
    assert world.appended() == "TOPIC_AUTHORIZATION_FAILED"


def test_frame_that_begins_a_transaction_needs_write_on_its_id_as_well(world: World) -> None:
    """Or somebody who may write to the topic could put rows into another's transaction, and fence it."""
    transaction = TransactionIdentity(transactional_id="sink", epoch=0, batch_id=0, run_id="r")
    world.allow(("Write", "Topic", "t"))
    assert world.appended(transaction=transaction) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    world.allow(("Write", "Topic", "t"), ("Write", "TransactionalId", "sink"))
    assert world.appended(transaction=transaction) == "INVALID_REQUEST"  # the frame is no transactional one


def test_fetch_needs_read_of_each_partition(world: World) -> None:
    wanted = FetchPartition(topic="t", partition=0, topic_id=TOPIC_ID.bytes, offset=0)
    unknown = FetchPartition(topic="u", partition=0, topic_id=TOPIC_ID.bytes, offset=0)

    def codes() -> list[str | None]:
        request = FetchRequest(request_id=1, partitions=(wanted, unknown), max_wait_ms=0)
        answer = world.fetch.fetch(BOB, request)
        answer.close()
        assert bool(answer.cells) is any(each.error is None for each in answer.response.partitions)
        return [None if each.error is None else each.error.code for each in answer.response.partitions]

    assert codes() == ["TOPIC_AUTHORIZATION_FAILED"] * 2
    world.allow(("Write", "Topic", "t"))
    assert codes() == ["TOPIC_AUTHORIZATION_FAILED"] * 2
    world.allow(("Read", "Topic", "t"))
    assert codes() == [None, "TOPIC_AUTHORIZATION_FAILED"]


def test_read_ends_where_the_right_is_withdrawn(world: World) -> None:
    """In the middle of the range; what it held is given back."""
    request = ReadRequest(topic="t", partition=0, start=-2, batch_bytes=1)
    with pytest.raises(TopicAuthorizationError):
        world.read.plan(BOB, request)
    world.allow(("Read", "Topic", "t"))
    pieces = world.read.pieces(BOB, world.read.plan(BOB, request))
    next(pieces)
    world.allow()
    with pytest.raises(TopicAuthorizationError):
        next(pieces)
    assert world.budget.used_bytes == 0


PLAIN: dict[str, tuple[str, Callable[[World], object]]] = {
    "schema": ("Describe", lambda world: world.plain.schema(BOB, "t")),
    "partitions": ("Describe", lambda world: world.plain.partitions(BOB, "t")),
    "read": ("Read", lambda world: list(world.plain.read(BOB, PlainTicket(topic="t", partition=0))[1])),
    "put": ("Write", lambda world: world.plain.put(BOB, "t", 0, pa.record_batch({"value": [b"x"]}))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_dialect_asks_the_same(world: World, name: str) -> None:
    operation, call = PLAIN[name]
    world.allow(*[(other, "Topic", "u") for other in ("Read", "Write", "Describe")])
    with pytest.raises(TopicAuthorizationError):
        call(world)
    with pytest.raises(TopicAuthorizationError, match="no ACL allows it"):
        world.plain.schema(BOB, "no such topic")
    world.allow((operation, "Topic", "t"))
    call(world)


def test_topics_are_those_that_may_be_seen(world: World) -> None:
    assert world.plain.topic_names(BOB) == []
    world.allow(("Read", "Topic", "t"))
    assert world.plain.topic_names(BOB) == ["t"]
