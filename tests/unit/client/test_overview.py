"""What `Admin.overview` makes of what brokers say, and of what they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError, InvalidRequestError
from broker_runtime.contract.requests import (
    ConfigEntry,
    DescribeConfigResponse,
    DescribeLogDirsResponse,
    LogDirInfo,
    MetadataResponse,
)
from broker_runtime.contract.transactions import OpenTransactionsResponse
from pyspark_log.client.admin import overview
from pyspark_log.client.admin.health import ClusterHealth, health_of
from pyspark_log.client.admin.overview import BrokerState, ClusterOverview, DirectoryRoom
from pyspark_log.client.admin.transactions import open_transactions
from tests.unit.client.test_health import cluster, topic

GIB = 1 << 30


class Answers:
    """Stands for a `Cluster`: what a broker answers to each action, or the error."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def call(self, action: str, request: Any, response: type, *, to: int, timeout_s: float) -> Any:
        answer = self._answers.get(action, InvalidRequestError(f"unknown action {action}"))
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, response)
        return answer


def metadata(zookeeper_connected: bool | None) -> MetadataResponse:
    return MetadataResponse(
        protocol_version=1, software_version="0.1.0", cluster_id="c", controller_id=1, brokers=(), topics=(),
        zookeeper_connected=zookeeper_connected,
    )  # fmt: skip


def state(**answers: Any) -> BrokerState:
    return overview._state_of(Answers(**answers), 1)  # type: ignore[arg-type]


def seen(health: ClusterHealth, *brokers: BrokerState) -> ClusterOverview:
    return ClusterOverview(
        health=health, brokers={each.broker_id: each for each in brokers}, moves={}, draining=(), groups=(),
        unread_groups=0,
    )  # fmt: skip


def test_what_an_older_broker_does_not_say_is_unknown() -> None:
    """It knows neither the field of ZooKeeper nor, were it older still, any other action; it is not silent."""
    found = state(metadata=metadata(None))
    assert (found.silent, found.software_version, found.reaches_zookeeper) == (None, "0.1.0", None)
    assert (found.directories, found.unreadable) == (None, None)


def test_broker_that_does_not_answer_is_silent() -> None:
    assert state(metadata=BrokerUnavailableError("nobody there")).silent == "[BROKER_UNAVAILABLE] nobody there"


def test_directories_have_their_room_beyond_what_must_stay_free() -> None:
    """One that cannot be looked into is named with the reason."""
    dirs = (
        LogDirInfo(path="/a", total_bytes=9 * GIB, usable_bytes=2 * GIB, partitions={}),
        LogDirInfo(path="/b", total_bytes=0, usable_bytes=0, partitions={}, error="Input/output error"),
    )
    free = ConfigEntry(value="1GiB", source="default")
    found = state(
        metadata=metadata(True),
        describe_log_dirs=DescribeLogDirsResponse(broker_id=1, log_dirs=dirs),
        describe_config=DescribeConfigResponse(entries={"log.dir.min.free.bytes": free}),
    )
    assert found.reaches_zookeeper is True
    assert found.directories is not None
    (room,) = found.directories
    assert (room.path, room.left_bytes) == ("/a", GIB)
    assert found.unreadable == {"/b": "Input/output error"}


@pytest.mark.parametrize(
    ("log_gib", "usable_gib", "min_free_gib", "is_nearly_full"),
    [(90, 12, 1, False), (90, 10, 1, True), (0, 100, 1, False), (0, 1, 1, False), (90, 9, None, True), (5, 1, 2, True)],
)
def test_directory_is_nearly_full_with_a_tenth_left(
    log_gib: int, usable_gib: int, min_free_gib: int | None, is_nearly_full: bool
) -> None:
    """Of what its logs may take: an empty directory is not nearly full of logs."""
    room = DirectoryRoom(
        path="/a",
        log_bytes=log_gib * GIB,
        usable_bytes=usable_gib * GIB,
        min_free_bytes=None if min_free_gib is None else min_free_gib * GIB,
    )
    assert room.is_nearly_full == is_nearly_full


def test_cluster_is_healthy_if_every_broker_answers_and_reaches_zookeeper() -> None:
    """An older broker that does not say is given the benefit of the doubt."""
    whole = health_of(cluster(1, 2), [topic(1, (1, 2), (1, 2))])
    well = BrokerState(broker_id=1, reaches_zookeeper=True)
    assert seen(whole, well, BrokerState(broker_id=2)).is_healthy
    assert not seen(whole, well, BrokerState(broker_id=2, silent="gone")).is_healthy
    assert not seen(whole, well, BrokerState(broker_id=2, reaches_zookeeper=False)).is_healthy
    assert not seen(whole, replace(well, unreadable={"/a": "Input/output error"})).is_healthy
    assert not seen(health_of(cluster(1, 2, controller_id=None), []), well).is_healthy


def test_broker_that_says_nothing_is_not_asked_again() -> None:
    """Each question to it would take seconds; what it may have open is unknown, as if it had been asked."""
    asked: list[int] = []

    class Brokers:
        def describe(self) -> Any:
            return cluster(1, 2)

        def call(self, action: str, request: Any, response: type, *, to: int, timeout_s: float | None) -> Any:
            asked.append(to)
            return OpenTransactionsResponse(transactions=(), now_ms=0)

    assert open_transactions(Brokers(), without={2}) == ([], [2])  # type: ignore[arg-type]
    assert asked == [1]
