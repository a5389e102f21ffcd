"""Which replica leads after a power loss, as far as the running ones can tell."""

from __future__ import annotations

import msgspec
import pytest

from broker_runtime.contract import requests
from broker_runtime.contract.requests import LogEnd, LogEndsResponse
from broker_runtime.controller.election import Electorate
from broker_runtime.controller.unproven import PATIENCE_MS, RETRY_MS, UnprovenReplicas, in_line
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState
from broker_runtime.zookeeper.znodes import BrokerRegistration, PartitionState, TopicRecord


class Cluster:
    """Topic t with one partition on 1, 2 and 3, and the brokers' answers: broker → (last epoch, log end, perhaps log
    start)."""

    def __init__(self, *, live, unproven=(1, 2, 3), leader=None, in_sync=(1, 2, 3), last_known=()):
        self.live = {broker_id: 10 + broker_id for broker_id in live}
        self.state = PartitionState(
            leader=leader, leader_epoch=5, isr=in_sync, controller_epoch=1,
            leader_broker_epoch=-1 if leader is None else 10 + leader, unproven=unproven,
            last_known_eligible=last_known,
        )  # fmt: skip
        self.answers = {}
        self.asked = []
        self.suspects = frozenset()
        self.silent = set()  # those that answer only after the time limit for all
        self.late = []
        self.rounds = 0
        self.unproven = UnprovenReplicas(self._ask, self._run_all)

    def _run_all(self, calls):
        self.rounds += 1
        for name, call in calls.items():
            if int(name.rpartition("-")[2]) in self.silent:
                self.late.append(call)
            else:
                call()

    def _ask(self, broker_id, request):
        self.asked.append(broker_id)
        if broker_id not in self.answers:
            return None
        (key,) = request.partitions
        assert (key.topic, key.partition, key.topic_id) == ("t", 0, b"t" * 16)
        end = self.answers[broker_id]
        fields = ("leader_epoch", "log_end", "log_start")
        ends = [] if end is None else [LogEnd(topic="t", partition=0, **dict(zip(fields, end, strict=False)))]
        return LogEndsResponse(broker_epoch=10 + broker_id, partitions=tuple(ends))

    def decide(self, now_ms=0):
        """Returns (leader, in-sync set, unproven) as decided, or None; and when to look again."""
        brokers = {
            broker_id: BrokerRegistration(host="h", port=broker_id, epoch=epoch, instance="i", pid=1)
            for broker_id, epoch in self.live.items()
        }
        topic = TopicState(
            name="t",
            record=TopicRecord(topic_id=b"t" * 16, assignment=((1, 2, 3),)),
            version=0,
            partitions=(VersionedState(state=self.state, version=4),),
        )
        decided, due_ms = self.unproven.decide(
            ClusterState(brokers=brokers, topics={"t": topic}), Electorate(self.live, suspects=self.suspects), 7, now_ms
        )
        self.asked, asked = [], self.asked
        if not decided:
            return None, due_ms, asked
        (decision,) = decided
        found = decision.state
        assert decision.present.version == 4
        return (found.leader, found.isr, found.unproven), due_ms, asked


def test_partition_without_unproven_members_is_ignored():
    cluster = Cluster(live=(1, 2), unproven=())
    assert cluster.decide() == (None, None, [])


def test_complete_in_sync_set_is_asked_at_once_and_the_longest_log_leads():
    cluster = Cluster(live=(1, 2, 3))
    cluster.answers = {1: (4, 10), 2: (4, 12), 3: (4, 11)}
    assert cluster.decide() == ((2, (2,), ()), None, [1, 2, 3])


def test_log_that_ends_below_what_another_has_deleted_does_not_lead():
    cluster = Cluster(live=(1, 2, 3))
    cluster.answers = {1: (4, 10), 2: (-1, 12, 12), 3: (4, 11)}
    assert cluster.decide()[0] == (2, (2,), ())


@pytest.mark.parametrize("answer", ["silent", "not open"])
def test_silent_member_is_asked_again_and_counts_as_empty_after_the_time_limit(answer):
    cluster = Cluster(live=(1, 2, 3))
    cluster.answers = {1: (4, 10), 3: (4, 11)} | ({2: None} if answer == "not open" else {})
    assert cluster.decide() == (None, RETRY_MS, [1, 2, 3])
    assert cluster.decide(PATIENCE_MS - 1)[0] is None
    assert cluster.decide(PATIENCE_MS)[0] == (3, (3,), ())


def test_all_are_asked_concurrently_and_late_answers_do_not_count_in_the_next_round():
    """The member's lock is held meanwhile: any number of silent brokers costs no more than one time limit."""
    cluster = Cluster(live=(1, 2, 3))
    cluster.answers = {1: (4, 10), 2: (4, 12), 3: (4, 11)}
    cluster.silent = {1, 2}
    assert cluster.decide() == (None, RETRY_MS, [3])
    assert cluster.rounds == 1
    cluster.silent = {2}
    for call in cluster.late:
        call()
    cluster.asked.clear()
    assert cluster.decide(RETRY_MS) == (None, 2 * RETRY_MS, [1, 3])
    cluster.silent.clear()
    assert cluster.decide(2 * RETRY_MS) == ((2, (2,), ()), None, [1, 2, 3])


def test_present_members_wait_a_while_for_the_others_and_ask_nobody():
    cluster = Cluster(live=(1, 3), unproven=(1, 3))
    cluster.answers = {1: (4, 10), 3: (4, 11)}
    assert cluster.decide() == (None, RETRY_MS, [])
    assert cluster.decide(PATIENCE_MS - 1)[2] == []
    assert cluster.decide(PATIENCE_MS) == ((3, (3,), ()), None, [1, 3])


def test_last_known_eligible_replica_is_asked_with_the_unproven_members():
    """Nobody is proven, so its log counts as much as theirs."""
    cluster = Cluster(live=(1, 2), in_sync=(1,), unproven=(1,), last_known=(2,))
    cluster.answers = {1: (4, 10), 2: (4, 12)}
    assert cluster.decide() == ((2, (2,), ()), None, [1, 2])
    cluster.answers = {1: (4, 12), 2: (4, 10)}
    assert cluster.decide()[0] == (1, (1,), ())


def test_unproven_member_waits_a_while_for_the_last_known_eligible():
    cluster = Cluster(live=(1,), in_sync=(1,), unproven=(1,), last_known=(2,))
    cluster.answers = {1: (4, 10)}
    assert cluster.decide() == (None, RETRY_MS, [])
    assert cluster.decide(PATIENCE_MS)[0] == (1, (1,), ())


def test_last_known_eligible_replica_is_asked_when_the_time_for_a_proven_member_is_over():
    cluster = Cluster(live=(1, 2), in_sync=(1, 3), unproven=(1,), last_known=(2,))
    cluster.answers = {1: (4, 10), 2: (4, 12)}
    assert cluster.decide() == (None, RETRY_MS, [])
    assert cluster.decide(PATIENCE_MS)[0] == (2, (2,), ())


def test_last_known_eligible_replica_alone_does_not_lead():
    """Whoever is in sync may have more."""
    cluster = Cluster(live=(2,), in_sync=(1,), unproven=(1,), last_known=(2,))
    cluster.answers = {2: (4, 12)}
    assert cluster.decide()[0] is None
    assert cluster.decide(10 * PATIENCE_MS)[0] is None


def test_last_known_eligible_replica_leads_when_the_log_of_the_only_one_in_sync_does_not_open():
    """It is damaged, say. Nobody else is to be waited for."""
    cluster = Cluster(live=(1, 2), in_sync=(1,), unproven=(1,), last_known=(2,))
    cluster.answers = {1: None, 2: (4, 12)}
    assert cluster.decide() == (None, RETRY_MS, [1, 2])
    assert cluster.decide(PATIENCE_MS)[0] == (2, (2,), ())


def test_log_outside_the_in_sync_set_leads_if_it_goes_furthest():
    """Those in sync may have lost what was committed before the third one left them."""
    cluster = Cluster(live=(1, 2, 3), in_sync=(2, 3), unproven=(2, 3))
    cluster.answers = {1: (4, 12), 2: (-1, 0), 3: (4, 11)}
    assert cluster.decide() == ((1, (1,), ()), None, [1, 2, 3])
    cluster.answers = {1: (3, 12), 2: (-1, 0), 3: (4, 11)}
    assert cluster.decide()[0] == (3, (3,), ())
    cluster.answers = {1: (4, 11), 2: (-1, 0), 3: (4, 11)}
    assert cluster.decide()[0] == (3, (3,), ()), "of equals a member leads"


def test_nobody_waits_for_a_replica_outside_the_in_sync_set():
    cluster = Cluster(live=(1, 2, 3), in_sync=(2, 3), unproven=(2, 3))
    cluster.answers = {2: (-1, 0), 3: (4, 11)}
    assert cluster.decide() == ((3, (3,), ()), None, [1, 2, 3])
    del cluster.live[1]
    assert cluster.decide() == ((3, (3,), ()), None, [2, 3])


def test_replica_outside_the_in_sync_set_alone_does_not_lead():
    cluster = Cluster(live=(1, 2, 3), in_sync=(2, 3), unproven=(2, 3))
    cluster.answers = {1: (4, 12), 2: None, 3: None}
    assert cluster.decide()[0] is None
    assert cluster.decide(10 * PATIENCE_MS)[0] is None, "logs that do not open may be repaired"
    cluster.answers[2] = (4, 3)
    assert cluster.decide(10 * PATIENCE_MS + RETRY_MS)[0] == (1, (1,), ())


def test_replica_that_lost_its_log_is_not_asked():
    cluster = Cluster(live=(1, 2, 3), in_sync=(2, 3), unproven=(2, 3))
    cluster.state = msgspec.structs.replace(cluster.state, lost=(1,))
    cluster.answers = {1: (4, 12), 2: (4, 3), 3: (4, 11)}
    assert cluster.decide() == ((3, (3,), ()), None, [2, 3])


def test_member_whose_port_refuses_counts_as_absent():
    cluster = Cluster(live=(1, 2, 3))
    cluster.suspects = frozenset({2})
    cluster.answers = {1: (4, 10), 3: (4, 11)}
    assert cluster.decide() == (None, RETRY_MS, [])
    assert cluster.decide(PATIENCE_MS)[0] == (3, (3,), ())


def test_nobody_is_chosen_while_nobody_answers():
    """A broker that does not answer cannot lead either."""
    cluster = Cluster(live=(1, 2, 3))
    assert cluster.decide()[0] is None
    assert cluster.decide(10 * PATIENCE_MS)[:2] == (None, 10 * PATIENCE_MS + RETRY_MS)
    cluster.answers = {1: None, 2: None}
    assert cluster.decide(10 * PATIENCE_MS + RETRY_MS)[0] is None, "their logs do not open"
    cluster.answers = {2: (4, 10)}
    assert cluster.decide(10 * PATIENCE_MS + 2 * RETRY_MS)[0] == (2, (2,), ())


def test_answer_of_another_registration_does_not_count():
    cluster = Cluster(live=(1, 2, 3))
    cluster.answers = {1: (4, 10), 2: (4, 12), 3: (4, 11)}
    cluster.live[2] = 99
    assert cluster.decide()[0] is None


def test_members_that_lost_power_leave_the_set_when_a_leader_that_kept_it_answers():
    cluster = Cluster(live=(1, 2, 3), leader=1, unproven=(2,))
    cluster.answers = {1: (4, 10)}
    assert cluster.decide() == ((1, (1, 3), ()), None, [1])


def test_members_that_lost_power_stay_while_the_leader_does_not_answer():
    """Its registration may be from before the power loss: then it has no more than they have."""
    cluster = Cluster(live=(1, 2, 3), leader=1, unproven=(2,))
    assert cluster.decide() == (None, RETRY_MS, [1])
    assert cluster.decide(PATIENCE_MS)[0] is None
    cluster.state = PartitionState(leader=None, leader_epoch=6, isr=(1, 2, 3), controller_epoch=1, unproven=(2,))
    del cluster.live[1]
    cluster.answers = {2: (4, 12)}
    cluster.live.pop(3)
    assert cluster.decide(PATIENCE_MS + 1)[0] is None, "the time runs from the end of the leadership"
    assert cluster.decide(2 * PATIENCE_MS)[0] == (2, (2,), ())


def test_members_that_lost_power_stay_while_the_leaders_log_is_not_open():
    """It may be damaged, still be loading, or not be hosted yet: then they have what is left of the partition."""
    cluster = Cluster(live=(1, 2, 3), leader=1, unproven=(2,))
    cluster.answers = {1: None}
    assert cluster.decide() == (None, RETRY_MS, [1])
    assert cluster.decide(10 * PATIENCE_MS)[0] is None
    cluster.answers = {1: (4, 10)}
    assert cluster.decide(10 * PATIENCE_MS + RETRY_MS)[0] == (1, (1, 3), ())


def test_broker_is_asked_for_many_partitions_in_several_requests(monkeypatch):
    """A broker accepts no longer list; partitions that it does not answer are left undecided, and nothing else is."""
    monkeypatch.setattr(requests, "MOST_ENTRIES", 2)
    asked = []

    def ask(broker_id, request):
        asked.append([key.partition for key in request.partitions])
        if len(asked) > 2:
            return None
        ends = [LogEnd(topic="t", partition=key.partition, leader_epoch=4, log_end=1) for key in request.partitions]
        return LogEndsResponse(broker_epoch=11, partitions=tuple(ends))

    state = PartitionState(leader=None, leader_epoch=5, isr=(1,), controller_epoch=1, unproven=(1,))
    topic = TopicState(
        name="t",
        record=TopicRecord(topic_id=b"t" * 16, assignment=((1,),) * 5),
        version=0,
        partitions=(VersionedState(state=state, version=4),) * 5,
    )
    brokers = {1: BrokerRegistration(host="h", port=1, epoch=11, instance="i", pid=1)}
    cluster = ClusterState(brokers=brokers, topics={"t": topic})
    decided, _ = UnprovenReplicas(ask, in_line).decide(cluster, Electorate({1: 11}), 7, 0)
    assert asked == [[0, 1], [2, 3], [4]]
    assert [each.partition for each in decided] == [0, 1, 2, 3]
