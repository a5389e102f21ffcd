"""Calls of `Admin` whose first answer was lost, or said only "not finished": the outcome of the second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_runtime.contract.errors import (
    InvalidPartitionsError,
    InvalidSchemaError,
    LeaderNotAvailableError,
    NetworkError,
    NotControllerError,
    PylogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.requests import CreateTopicRequest, DeleteTopicRequest, Message
from broker_runtime.contract.settings import resolve
from broker_runtime.replication import PartitionRegistry
from broker_runtime.services.caller import Caller
from broker_runtime.services.metadata import MetadataService
from broker_runtime.services.movement import MovementService
from broker_runtime.services.topics import TopicService
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from pyspark_log import Admin, TopicPartition
from tests.callers import CLIENT
from tests.unit.client.channels import answer_by
from tests.unit.membership.members import Broker


class Controller:
    """One broker's services; ``lost``: raised instead of its next answer to a change, whether the change was made or
    not.
    """

    def __init__(self) -> None:
        self._server = MemoryZooKeeper()
        self.member: Any = Broker(self._server, 1).member
        self.member.join()
        registry = PartitionRegistry()
        topics = TopicService(self.member, resolve("broker", {"broker.id": "1", "log.dirs": "unused"}))
        movements = MovementService(self.member, registry, now_ms=lambda: 0)
        metadata = MetadataService(
            registry,
            lambda: self.member.state,
            cluster_id="c",
            broker_id=1,
            directories=(),
            is_zookeeper_connected=lambda: True,
        )
        self._does: dict[str, Callable[[Caller, Any], Message]] = {
            "metadata": metadata.metadata,
            "create_topic": topics.create_topic,
            "delete_topic": topics.delete_topic,
            "create_partitions": topics.create_partitions,
            "add_columns": topics.add_columns,
            "alter_config": topics.alter_config,
            "reassign_partitions": movements.reassign_partitions,
        }
        self.lost: PylogError | None = None
        self.is_done = True
        self.meanwhile: Callable[[], object] = lambda: None

    def second_broker(self) -> None:
        """A second broker that registers and does nothing."""
        second: Any = Broker(self._server, 2)
        second.member.join()
        self.member.step(0)

    def answer(self, name: str, request: Message) -> Message:
        lost = self.lost
        if name == "metadata" or lost is None:
            return self._does[name](CLIENT, request)
        self.lost = None
        if self.is_done:
            self._does[name](CLIENT, request)
        self.meanwhile()
        raise lost


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    made = Controller()
    answer_by(lambda address, name, request, timeout_s: made.answer(name, request), monkeypatch)
    return made


@pytest.fixture
def admin(controller: Controller) -> Iterator[Admin]:
    with Admin("h1:1") as made:
        made.create_topic("t", schema="a int32")
        yield made


LOST = [
    NetworkError("the connection was lost"),
    ZooKeeperUnavailableError("whether it was written cannot be read"),
    LeaderNotAvailableError("t exists, but has no leader yet"),
]


@pytest.fixture(params=LOST, ids=lambda error: type(error).__name__)
def lost(controller: Controller, request: pytest.FixtureRequest) -> Controller:
    """The next change is made, and its answer is lost."""
    controller.lost = request.param
    return controller


def test_columns_added_by_the_last_attempt_are_no_error(admin: Admin, lost: Controller) -> None:
    assert admin.add_columns("t", "b int32, c string") == 1
    described = admin.describe_topics()[0].schema
    assert described is not None
    assert described.names == ["a", "b", "c"]


def test_columns_added_by_the_last_attempt_may_be_followed_by_others(admin: Admin, controller: Controller) -> None:
    controller.lost = LOST[0]
    controller.meanwhile = lambda: admin.add_columns("t", "c int32")
    assert admin.add_columns("t", "b int32") == 1


def test_columns_added_by_another_client_are_an_error_even_after_a_lost_answer(
    admin: Admin, controller: Controller
) -> None:
    """Nothing proves that these are the requested columns."""
    controller.lost, controller.is_done = LOST[0], False
    controller.meanwhile = lambda: admin.add_columns("t", "b string")
    with pytest.raises(InvalidSchemaError, match="b"):
        admin.add_columns("t", "b int32")


def test_existing_columns_are_an_error_when_no_answer_was_lost(admin: Admin) -> None:
    admin.add_columns("t", "b int32")
    with pytest.raises(InvalidSchemaError, match="b"):
        admin.add_columns("t", "b int32")


def test_topic_created_by_the_last_attempt_is_no_error(admin: Admin, lost: Controller) -> None:
    made = admin.create_topic("u", partitions=2, schema="a int32", key="a", config={"retention.ms": "1d"})
    assert (made.name, len(made.partitions), made.key) == ("u", 2, "a")


def test_different_topic_of_another_client_is_an_error_even_after_a_lost_answer(
    admin: Admin, controller: Controller
) -> None:
    controller.lost, controller.is_done = LOST[0], False
    controller.meanwhile = lambda: admin.create_topic("u", partitions=3)
    with pytest.raises(TopicAlreadyExistsError, match="already exists"):
        admin.create_topic("u", partitions=2)


def test_topic_that_is_only_validated_exists_after_a_lost_answer_too(admin: Admin, controller: Controller) -> None:
    controller.lost, controller.is_done = LOST[0], False
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic("t", schema="a int32", validate_only=True)


def test_topic_deleted_by_the_last_attempt_is_no_error(admin: Admin, lost: Controller) -> None:
    admin.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topic("t")


def test_partitions_added_by_the_last_attempt_are_no_error(admin: Admin, lost: Controller) -> None:
    admin.create_partitions("t", 3)
    assert len(admin.describe_topics()[0].partitions) == 3
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions("t", 3)


def test_settings_changed_by_the_last_attempt_are_no_error(admin: Admin, lost: Controller) -> None:
    admin.alter_config("t", {"retention.ms": "1d", "flush.mode": None})
    assert dict(admin.describe_topics()[0].config) == {"retention.ms": "1d"}


def test_move_ended_by_the_last_attempt_is_no_error(admin: Admin, controller: Controller) -> None:
    at = TopicPartition("t", 0)
    controller.second_broker()
    admin.reassign_partitions({at: (2,)})
    controller.lost = LOST[0]
    admin.reassign_partitions({at: None})
    with pytest.raises(PylogError):
        admin.reassign_partitions({at: None})


def test_changes_that_lost_the_controllership_after_the_write_are_in_doubt(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`NOT_CONTROLLER` means that nothing was changed: a client that then asks the next controller must not get
    "exists".
    """

    def refuse(*_: Any) -> None:
        raise NotControllerError("another controller was elected; nothing was changed")

    with Admin("h1:1") as admin:
        admin.create_topic("t")
    with monkeypatch.context() as patched:
        patched.setattr(controller.member, "refresh_topic", refuse)
        with pytest.raises(LeaderNotAvailableError, match=r"u was changed.*another controller"):
            controller.answer("create_topic", CreateTopicRequest(name="u"))
    with monkeypatch.context() as patched:
        patched.setattr(controller.member, "finish_deletion", refuse)
        with pytest.raises(ZooKeeperUnavailableError, match=r"t is being deleted.*another controller"):
            controller.answer("delete_topic", DeleteTopicRequest(name="t"))
