"""The loop that keeps a broker in its cluster, over a fake ZooKeeper."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_runtime.contract.errors import NotControllerError, SetupError, ZooKeeperUnavailableError
from broker_runtime.membership import cluster_member
from broker_runtime.zookeeper.znodes import (
    DELETED_LOGS,
    broker_path,
)
from tests.unit.membership.members import Broker


@pytest.fixture
def broker(server):
    broker = Broker(server)
    broker.member.join()
    return broker


def test_broker_that_joins_an_empty_cluster_is_its_controller(broker):
    assert broker.member.controller.is_active
    assert set(broker.member.state.brokers) == {1}
    assert broker.member.broker_epoch == 1


def test_topic_is_led_when_its_creation_returns(broker):
    topic = broker.create("t")
    assert topic.partitions[0].state.leader == 1
    assert broker.hosting.led == {"t"}
    assert set(broker.member.state.topics) == {"t"}


def test_restarted_broker_leads_its_topics_again(server, broker):
    broker.create("t")
    successor = Broker(server)
    successor.member.join()
    assert successor.hosting.epochs == {"t": 1}
    assert successor.member.controller.is_active


def test_lost_session_ends_the_roles_first_and_a_new_registration_follows(broker):
    """The broker registers again and serves only with fresh epochs."""
    broker.create("t")
    broker.client.expire()
    with pytest.raises(ZooKeeperUnavailableError):
        broker.create("u")
    broker.member.step(0)
    assert broker.member.broker_epoch == 2
    assert broker.hosting.epochs == {"t": 1}
    assert broker.create("u").partitions[0].state.leader == 1


def test_leader_stays_while_zookeeper_is_away_and_topic_changes_wait(broker):
    """W26: established leaders continue to serve."""
    broker.create("t")
    broker.client.suspend()
    broker.member.step(0)
    assert broker.hosting.led == {"t"}
    with pytest.raises(ZooKeeperUnavailableError, match="no connection to ZooKeeper"):
        broker.create("u")
    broker.client.resume()
    broker.member.step(0)
    assert broker.member.broker_epoch == 1, "the session continued"
    broker.create("u")


def test_other_broker_refuses_changes_and_takes_over_when_the_controller_is_gone(server, broker):
    other = Broker(server, broker_id=2)
    other.member.join()
    with pytest.raises(NotControllerError):
        other.create("t")
    broker.client.close()
    other.member.step(0)
    assert other.member.controller.is_active
    assert set(other.member.state.brokers) == {2}
    other.create("t")


def test_second_broker_of_the_same_id_cannot_join(server, broker):
    with pytest.raises(SetupError, match=r"broker\.id 1 is registered"):
        Broker(server, instance="elsewhere").member.join()


def test_broker_whose_id_was_taken_after_its_session_ended_reports_it_once_and_leaves(server, broker):
    """This is as at its start: two brokers with one id are one too many, and the registered one stays."""
    broker.create("t")
    broker.client.expire()
    Broker(server, instance="others-data").member.join()
    with pytest.raises(SetupError, match=r"broker\.id 1 is registered by h1:1 pid 1"):
        broker.member.step(0)
    assert broker.hosting.led == set()
    broker.member.wake()
    broker.member.step(0)
    broker.member.leave()
    assert server.client().find(broker_path(1)) is not None


def test_deletion_that_was_decided_is_finished_by_the_next_start(server, broker):
    topic = broker.create("t")
    broker.member.topics.mark_for_deletion(topic)
    successor = Broker(server)
    successor.member.join()
    assert successor.hosting.removed == ["t"]
    assert successor.member.state.topics == {}


def test_logs_that_could_not_be_removed_are_removed_later_and_the_name_is_free_at_once(broker):
    topic = broker.create("t")
    real, calls = broker.hosting.remove_logs, []

    def fails_once(name, topic_id):
        calls.append(name)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        real(name, topic_id)

    broker.hosting.remove_logs = fails_once
    with broker.member.changing():
        broker.member.topics.mark_for_deletion(topic)
        broker.member.finish_deletion("t")
    assert (calls, broker.hosting.removed) == (["t"], [])
    broker.create("t")
    broker.member.step(0)
    assert broker.hosting.removed == ["t"]
    assert broker.client.children(DELETED_LOGS) == []


def test_change_that_waits_too_long_for_another_blames_that_one(broker, monkeypatch):
    monkeypatch.setattr(cluster_member, "_CHANGE_LIMIT_S", 0.01)
    with (
        broker.member.changing(),
        ThreadPoolExecutor(1) as elsewhere,
        pytest.raises(ZooKeeperUnavailableError, match=r"another change of topics has not ended within 0\.01 s"),
    ):
        elsewhere.submit(broker.create, "t").result(30)
    assert broker.create("t").name == "t"


def test_leaving_gives_up_registration_and_claim(server, broker):
    broker.create("t")
    broker.member.leave()
    assert broker.hosting.led == set()
    watcher = server.client()
    assert watcher.children("/brokers/ids") == []
    assert watcher.find("/controller") is None


def test_step_after_leaving_does_not_register_again(server, broker):
    """The loop may still run once when the broker stops: it must not restore its roles."""
    broker.create("t")
    broker.member.leave()
    broker.member.wake()
    broker.member.step(0)
    assert broker.hosting.led == set()
    watcher = server.client()
    assert watcher.children("/brokers/ids") == []
    assert watcher.find("/controller") is None


def test_leaving_without_zookeeper_is_no_error(broker):
    broker.client.suspend()
    broker.member.leave()
    assert not broker.member.controller.is_active


def test_failed_hosting_is_retried_without_a_change(broker):
    """A disk was full for a while: nothing in ZooKeeper changes when it has room again."""
    broker.create("t")
    broker.member.step(0)
    before = len(broker.hosting.retries)
    broker.member.step(0)
    assert broker.hosting.retries[before:] == [(["t"], 1)]
    broker.client.suspend()
    broker.member.step(0)
    broker.member.leave()
    broker.member.step(0)
    assert len(broker.hosting.retries) == before + 1, "only as a member"
