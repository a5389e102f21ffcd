"""How far groups are behind: who speaks for which, what leaders say, and how much of it becomes series."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from broker_runtime.contract.errors import BrokerUnavailableError, NotLeaderOrFollowerError, ZooKeeperUnavailableError
from broker_runtime.contract.requests import (
    DescribeLagRequest,
    DescribeLagResponse,
    ErrorInfo,
    LagAnswer,
    LagQuery,
    PartitionKey,
)
from broker_runtime.contract.streams import ProduceRequest
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.groups.positions import GroupPositions
from broker_runtime.metrics.group_lag import EVERY_S, KEPT_S, GroupLag
from broker_runtime.services.lag import LagService
from broker_runtime.services.produce import ProduceService
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import (
    GroupOffsets,
    PartitionState,
    StoredOffset,
    TopicRecord,
    group_offsets_path,
)
from tests.callers import CLIENT
from tests.clocks import ReadClock
from tests.unit.groups.coordinating import ID, World
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame


def offset(at: int) -> StoredOffset:
    return StoredOffset(offset=at, leader_epoch=-1, committed_at_ms=0, metadata="")


# --- what a leader says -----------------------------------------------------------------------------------------------


def test_leader_says_records_and_how_long_the_first_of_them_has_waited() -> None:
    """By the time of its append, whatever timestamps producers give their records; 0 for who has read all."""
    hosted = Hosted()
    clock = [NOW_MS]
    produce = ProduceService(hosted.registry, now_ms=lambda: clock[0])
    for _ in range(3):
        request = ProduceRequest(request_id=1, topic="t", topic_id=TOPIC_ID.bytes)
        response = produce.complete(CLIENT, produce.append(CLIENT, request, [pa.py_buffer(frame(b"a", b"b"))]), 1)
        assert response is not None
        assert response.error is None
        clock[0] += 1_000
    service = LagService(hosted.registry, now_ms=lambda: clock[0])
    key = PartitionKey(topic="t", partition=0)
    queries = [LagQuery(at=key, offset=each) for each in (0, 1, 2, 5, 6, 99)]
    queries.append(LagQuery(at=PartitionKey(topic="t", partition=7), offset=0))
    answers = service.describe_lag(CLIENT, DescribeLagRequest(queries=tuple(queries))).answers
    assert [(each.records, each.waiting_ms) for each in answers[:-1]] == [
        (6, 3_000), (5, 3_000), (4, 2_000), (1, 1_000), (0, 0), (0, 0),
    ]  # fmt: skip
    assert answers[-1].error is not None
    assert answers[-1].error.code == "UNKNOWN_TOPIC_OR_PARTITION"
    hosted.only.log.delete_records(4)
    [answer] = service.describe_lag(CLIENT, DescribeLagRequest(queries=(LagQuery(at=key, offset=0),))).answers
    assert (answer.records, answer.waiting_ms) == (2, 1_000), "what was deleted is not waited for"


# --- for which groups a broker speaks ---------------------------------------------------------------------------------


def test_each_group_has_one_broker_that_speaks_for_it() -> None:
    """Its coordinator; the controller for a group whose coordinator is gone. Also without a member."""
    world = World()
    for topic in ("t", "u"):
        world.create_topic(topic)
    for number, name in ((1, "first"), (2, "second"), (2, "third")):
        world.brokers[number].claims.claim(name)
        store = OffsetStore(world.client)
        store.commit(name, "t", ID, {0: offset(3)})
    OffsetStore(world.client).commit("first", "u", ID, {1: offset(4)})
    world.client.set(group_offsets_path("first", "t"), b"damaged", version=-1)

    def spoken_for(broker_id: int, controller: int) -> dict[str, dict[str, dict[int, int]]]:
        broker = world.brokers[broker_id]
        cluster: Any = type("Cluster", (), {"controller": type("Claim", (), {"broker_id": controller})})
        positions = GroupPositions(
            broker.client, lambda: cluster, broker_id=broker_id, claims=broker.claims, store=OffsetStore(broker.client)
        ).read()
        return {
            group: {topic: {at: each.offset for at, each in found.offsets.items()} for topic, found in topics.items()}
            for group, topics in positions.items()
        }

    assert spoken_for(1, controller=1) == {"first": {"u": {1: 4}}}
    assert spoken_for(2, controller=1) == {"second": {"t": {0: 3}}, "third": {"t": {0: 3}}}
    world.brokers[2].client._client.expire()
    assert spoken_for(1, controller=2).keys() == {"first"}
    assert spoken_for(1, controller=1).keys() == {"first", "second", "third"}


# --- rounds -----------------------------------------------------------------------------------------------------------


class Asked:
    """Leaders that a `GroupLag` asks; those in ``away`` do not answer."""

    def __init__(self, *, most: int = 10) -> None:
        self.now_s = 100.0
        self.took_s = 0.0
        self.away: set[int] = set()
        self.is_readable = True
        self.requests: list[int] = []
        topic = TopicState(
            name="t",
            record=TopicRecord(topic_id=ID, assignment=((1,), (2,), (2,))),
            version=0,
            config={},
            config_version=0,
            partitions=tuple(
                None if leader is None else VersionedState(state=_led_by(leader), version=0) for leader in (1, 2, None)
            ),
        )
        self.lag = GroupLag(
            most=most,
            positions=self._positions,
            cluster=lambda: ClusterState(topics={"t": topic}),
            ask=self._ask,
            clock=ReadClock(lambda: self.now_s),
        )
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self.lag)  # type: ignore[arg-type]

    def _positions(self) -> dict[str, dict[str, GroupOffsets]]:
        self.now_s += self.took_s
        if not self.is_readable:
            raise ZooKeeperUnavailableError("away")
        committed = GroupOffsets(topic_id=ID, offsets={each: offset(10 + each) for each in range(4)})
        other = GroupOffsets(topic_id=b"\x09" * 16, offsets={0: offset(1)})
        return {"a": {"t": committed, "gone": committed}, "b": {"t": other}, "c": {}}

    def _ask(self, leader: int, request: DescribeLagRequest) -> DescribeLagResponse:
        self.requests.append(leader)
        if leader in self.away:
            raise BrokerUnavailableError("away")
        return DescribeLagResponse(
            answers=tuple(LagAnswer(records=each.offset * leader, waiting_ms=2_500) for each in request.queries)
        )

    def series(self, name: str) -> dict[str, float]:
        return {
            each.labels.get("partition", ""): each.value
            for family in self.registry.collect()
            for each in family.samples
            if each.name == f"pylog_{name}"
        }


def _led_by(leader: int) -> PartitionState:
    return PartitionState(leader=leader, leader_epoch=0, isr=(leader,), controller_epoch=0, leader_broker_epoch=1)


def test_lag_is_what_leaders_say_and_what_they_do_not_say_is_counted() -> None:
    """Partitions without a leader, or without an answer, are omitted, not 0. Offsets of a topic that is gone, or was
    recreated, are no lag."""
    asked = Asked()
    assert asked.lag.step() == EVERY_S
    assert asked.series("group_lag_records") == {"0": 10, "1": 22}
    assert asked.series("group_lag_seconds") == {"0": 2.5, "1": 2.5}
    assert asked.series("group_partitions_omitted") == {"": 2}, "one has no leader, one does not exist any more"
    assert asked.series("groups") == {"": 3}
    asked.away.add(2)
    asked.lag.step()
    assert asked.series("group_lag_records") == {"0": 10}
    assert asked.series("group_partitions_omitted") == {"": 3}


@pytest.mark.parametrize("answers", [(), (LagAnswer(error=ErrorInfo.of(NotLeaderOrFollowerError("no"))),)])
def test_leader_that_gives_no_lag_leaves_no_series(answers: tuple[LagAnswer, ...]) -> None:
    """It has moved, or is not what it should be."""
    asked = Asked()
    asked.lag._ask = lambda leader, request: DescribeLagResponse(answers=answers)
    asked.lag.step()
    assert asked.series("group_lag_records") == {}
    assert asked.series("group_partitions_omitted") == {"": 4}


def test_there_are_no_more_series_than_the_setting_says() -> None:
    """``metrics.max.group.partitions``; how many are left out is said."""
    asked = Asked(most=1)
    asked.lag.step()
    assert asked.series("group_lag_records") == {"0": 10}
    assert asked.series("group_partitions_omitted") == {"": 3}
    assert asked.requests == [1]


def test_lag_that_is_old_is_not_said() -> None:
    """While ZooKeeper is away the last one is said for a while, and then none: a wrong lag would look right."""
    asked = Asked()
    assert list(asked.lag.collect())  # nothing was asked for yet, and there are no groups so far
    asked.lag.step()
    asked.is_readable = False
    asked.now_s += KEPT_S - 1
    asked.lag.step()
    assert asked.series("group_lag_records") == {"0": 10, "1": 22}
    asked.now_s += 2
    assert asked.series("group_lag_records") == {}
    assert asked.series("groups") == {}


def test_a_broker_with_many_groups_looks_less_often() -> None:
    """A round takes no more than a twentieth of the time, and what it found is kept for longer."""
    asked = Asked()
    asked.took_s = 6.0
    assert asked.lag.step() == 120.0
    asked.now_s += 119.0
    assert asked.series("group_lag_records") == {"0": 10, "1": 22}
