"""What the controller decides in one look, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker_runtime.controller.decisions import Decisions, in_sync_with_others
from broker_runtime.controller.election import Electorate
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import PartitionState, TopicRecord


def topic(name: str, *in_sync: tuple[int, ...] | None) -> TopicState:
    """A topic with one partition for each in-sync set; None: no state was decided yet."""
    return TopicState(
        name=name,
        record=TopicRecord(topic_id=name.encode().ljust(16), assignment=tuple((1, 2, 3) for _ in in_sync)),
        version=0,
        partitions=tuple(
            None
            if isr is None
            else VersionedState(
                state=PartitionState(
                    leader=isr[0], leader_epoch=1, isr=isr, controller_epoch=1, leader_broker_epoch=10 + isr[0]
                ),
                version=0,
            )
            for isr in in_sync
        ),
    )


def cluster(*topics: TopicState, **given: Any) -> ClusterState:
    return ClusterState(brokers={}, topics={each.name: each for each in topics}, **given)


@pytest.mark.parametrize(
    ("topics", "found"),
    [
        ([], set()),
        ([topic("t", (1,), None)], set()),
        ([topic("t", (1, 2), (3,))], {1, 2}),
        ([topic("t", (1,)), topic("u", None, (2, 3)), topic("v", (3, 4))], {2, 3, 4}),
    ],
    ids=["no topic", "alone", "with one", "over topics"],
)
def test_broker_is_in_sync_with_others_when_a_set_has_two(topics: list[TopicState], found: set[int]) -> None:
    """A broker that is in sync alone cannot leave: nobody else has everything."""
    assert in_sync_with_others(cluster(*topics)) == found


class Trace:
    """Every call that decisions make, recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, dead: set[int] | None = None) -> None:
        self.calls: list[object] = []
        self.unproven_due: int | None = None
        self.preferred_due: int | None = None
        self._client = MemoryZooKeeper().connect() if hasattr(MemoryZooKeeper, "connect") else MemoryZooKeeper()
        self.suspicions = SimpleNamespace(dead=dead or set(), left_in_sync=lambda who: self.calls.append(("left", who)))
        self.controller = SimpleNamespace(
            elect_all=self._elect_all,
            require_claim=lambda: SimpleNamespace(epoch=7),
            carry_out=self._carry_out,
        )
        module = "broker_runtime.controller.decisions"
        monkeypatch.setattr(f"{module}.read_deleted_logs", lambda client: {"read": "again"})
        monkeypatch.setattr(f"{module}.read_topics", lambda client, names, known: [])
        monkeypatch.setattr(f"{module}.UnprovenReplicas", lambda *_: SimpleNamespace(decide=self._decide_unproven))
        monkeypatch.setattr(f"{module}.PreferredLeaders", lambda: SimpleNamespace(decide=self._decide_preferred))

    def _elect_all(self, state: ClusterState, brokers: Electorate) -> ClusterState:
        self.calls.append(("elect", state.deletions, state.deleted_logs))
        return state

    def _decide_unproven(self, state: ClusterState, brokers: Electorate, epoch: int, now_ms: int) -> object:
        self.calls.append(("unproven", epoch, now_ms))
        return "unproven", self.unproven_due

    def _decide_preferred(self, state: ClusterState, brokers: Electorate, epoch: int, now_ms: int) -> object:
        self.calls.append(("preferred", epoch, now_ms))
        return "preferred", self.preferred_due

    def _carry_out(self, state: ClusterState, decided: object) -> ClusterState:
        self.calls.append(("write", decided))
        return state

    def make(self, state: ClusterState, *, rebalances_leaders: bool = True) -> int | None:
        decisions: Any = Decisions(
            self._client,  # type: ignore[arg-type]
            self.controller,  # type: ignore[arg-type]
            SimpleNamespace(finish_deletion=lambda name: self.calls.append(("delete", name))),  # type: ignore[arg-type]
            SimpleNamespace(write=lambda topic, step: self.calls.append(("move", topic.name))),  # type: ignore[arg-type]
            self.suspicions,  # type: ignore[arg-type]
            ask_log_ends=lambda *_: None,
            run_all=lambda *_: None,
            rebalances_leaders=rebalances_leaders,
        )
        _, due_ms = decisions.make(state, Electorate({}), 50)
        return due_ms


def test_deletions_come_before_elections_and_elections_before_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic being deleted gets no leader; a preferred leader is elected among the leaders of that moment."""
    trace = Trace(monkeypatch)
    trace.make(cluster(topic("t", (1, 2)), deletions=frozenset({"z", "a"})))
    assert trace.calls == [
        ("delete", "a"),
        ("delete", "z"),
        ("elect", frozenset(), {"read": "again"}),
        ("unproven", 7, 50),
        ("write", "unproven"),
        ("preferred", 7, 50),
        ("write", "preferred"),
    ]


def test_suspect_is_reported_when_it_is_in_sync_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspicion ends when the sets agree with it; without one nobody looks."""
    trace = Trace(monkeypatch, dead={3})
    trace.make(cluster(topic("t", (1, 2), (3,))))
    assert trace.calls[1] == ("left", frozenset({1, 2}))


@pytest.mark.parametrize(
    ("unproven", "preferred", "due"),
    [(None, None, None), (90, None, 90), (None, 80, 80), (90, 80, 80), (70, 80, 70), (0, 80, 0)],
)
def test_next_look_is_at_the_earlier_of_two_times(
    monkeypatch: pytest.MonkeyPatch, unproven: int | None, preferred: int | None, due: int | None
) -> None:
    """At that time something may be decided although nothing changes."""
    trace = Trace(monkeypatch)
    trace.unproven_due, trace.preferred_due = unproven, preferred
    assert trace.make(cluster()) == due
    assert trace.make(cluster(), rebalances_leaders=False) == unproven


def test_leaderships_stay_without_rebalancing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto.leader.rebalance.enable=false`."""
    trace = Trace(monkeypatch)
    trace.make(cluster(), rebalances_leaders=False)
    assert [call[0] for call in trace.calls] == ["elect", "unproven", "write"]  # type: ignore[index]
