"""A client belongs to the cluster that answered it first: a broker of another one is not believed beside it.

A broker's port may get into other hands while the broker is down: another cluster's, on a machine that several share.
"""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError, UnknownTopicOrPartitionError
from broker_runtime.contract.requests import (
    BrokerInfo,
    ErrorInfo,
    FindCoordinatorResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)
from broker_runtime.contract.settings import Address
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from tests.unit.client.channels import FakeNetwork, answer_by

ONE, TWO, THREE = (Address("host", port) for port in (1, 2, 3))
INFO = PartitionInfo(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
NO_TOPIC = ErrorInfo(code="UNKNOWN_TOPIC_OR_PARTITION", message="the cluster has no topic 't'")


class Machines:
    """Which cluster answers at each address, with its brokers; none: nobody does."""

    def __init__(self) -> None:
        self.cluster_at = dict.fromkeys((ONE, TWO, THREE), "ours")
        self.with_topic = {"ours"}
        self.asked: list[Address] = []
        self.advertised_host = "host"

    def answer(self, address: Address, name: str, request: Message, timeout_s: float) -> Message:
        self.asked.append(address)
        cluster = self.cluster_at.get(address)
        if cluster is None:
            raise BrokerUnavailableError(f"{address} refused")
        if isinstance(request, MetadataRequest):
            topics = request.topics or ()
            has_topic = cluster in self.with_topic
            ports = (1, 2, 3) if cluster == "ours" else [each.port for each, of in self.cluster_at.items() if of]
            return MetadataResponse(
                protocol_version=1,
                software_version="",
                cluster_id=cluster,
                controller_id=1,
                brokers=tuple(
                    BrokerInfo(broker_id=port, host=self.advertised_host, port=port, epoch=1) for port in ports
                ),
                topics=tuple(
                    TopicInfo(name=each, topic_id=cluster.ljust(16).encode(), partitions=(INFO,))
                    for each in topics
                    if has_topic
                ),
                errors={} if has_topic else dict.fromkeys(topics, NO_TOPIC),
            )
        return FindCoordinatorResponse(broker_id=1)


@pytest.fixture
def machines() -> Machines:
    return Machines()


@pytest.fixture
def network(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    return answer_by(machines.answer, monkeypatch)


@pytest.fixture
def cluster(network: FakeNetwork) -> Cluster:
    return Cluster([ONE, TWO, THREE])


def test_another_cluster_at_a_dead_brokers_address_is_not_believed(cluster: Cluster, machines: Machines) -> None:
    """It has no such topic, which says nothing of ours: a producer would have failed all its records."""
    cluster.fetch_topics(["t"])
    machines.cluster_at[TWO] = "theirs"
    for _ in range(9):
        assert [topic.name for topic in cluster.fetch_topics(["t"])] == ["t"]
    assert cluster.describe().cluster_id == "ours"
    assert set(cluster.describe().brokers) == {1, 2, 3}
    assert machines.asked.count(TWO) <= 2, "it is asked last from then on"


def test_refresh_does_not_believe_it_either(cluster: Cluster, machines: Machines) -> None:
    """Who leads and who is the controller is taken from our brokers alone."""
    cluster.describe()
    machines.cluster_at = {TWO: "theirs"}
    for _ in range(6):
        cluster.refresh()
    assert cluster.address_of(1) == ONE
    assert cluster.address_of(3) == THREE


def test_its_answer_is_an_error_that_names_both(cluster: Cluster, machines: Machines, network: FakeNetwork) -> None:
    """Within the time of the call: our brokers may be back soon."""
    cluster.describe()
    machines.cluster_at = {TWO: "theirs"}
    with pytest.raises(BrokerUnavailableError, match=r"host:2 .*cluster theirs.*cluster ours|host:\d refused"):
        cluster.fetch_topics(["t"], timeout_s=5)
    machines.cluster_at[ONE] = "ours"
    assert [topic.name for topic in cluster.fetch_topics(["t"], timeout_s=5)] == ["t"]


def test_cluster_that_was_made_anew_is_taken_when_the_old_one_stays_away(
    cluster: Cluster, machines: Machines, network: FakeNetwork
) -> None:
    """Its brokers came up on the same ports with empty disks; nothing of what was known holds there."""
    old = cluster.fetch_topics(["t"])[0]
    cluster.call("find_coordinator", _find(), FindCoordinatorResponse)
    machines.cluster_at = dict.fromkeys((ONE, TWO, THREE), "new")
    began = network.clock.now
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.fetch_topics(["t"], timeout_s=60)
    assert 5 <= network.clock.now - began <= 15
    machines.with_topic.add("new")
    assert cluster.topic("t").topic_id != old.topic_id
    assert cluster.describe().cluster_id == "new"


def test_only_broker_of_a_cluster_is_believed_at_once(network: FakeNetwork, machines: Machines) -> None:
    """Nobody else could say otherwise: ``pylog up`` was started anew."""
    machines.cluster_at = {ONE: "first"}
    machines.with_topic = {"first"}
    cluster = Cluster([ONE])
    cluster.fetch_topics(["t"])
    machines.cluster_at = {ONE: "second"}
    began = network.clock.now
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.fetch_topics(["t"])
    assert network.clock.now == began


@pytest.mark.parametrize("times", [1, 3])
def test_only_broker_under_two_names_is_one(network: FakeNetwork, machines: Machines, times: int) -> None:
    """The default: a client asks localhost, and the broker says that it is 127.0.0.1."""
    by_name = Address("localhost", 1)
    machines.advertised_host = "127.0.0.1"
    machines.cluster_at = {by_name: "first", Address("127.0.0.1", 1): "first"}
    cluster = Cluster([by_name])
    for _ in range(times):
        cluster.describe()
    machines.cluster_at = dict.fromkeys(machines.cluster_at, "new")
    began = network.clock.now
    assert cluster.describe().cluster_id == "new"
    assert network.clock.now == began


def test_outage_counts_from_its_beginning(cluster: Cluster, machines: Machines, network: FakeNetwork) -> None:
    """That another cluster has answered long before makes a short outage no longer."""
    cluster.describe()
    machines.cluster_at[TWO] = "theirs"
    for _ in range(6):
        cluster.refresh()  # asks once, and takes what it gets
    network.clock.now += 15
    machines.cluster_at = {TWO: "theirs"}
    with pytest.raises(BrokerUnavailableError):
        cluster.describe(timeout_s=8)
    machines.cluster_at = {ONE: "ours", TWO: "theirs", THREE: "ours"}
    assert cluster.describe().cluster_id == "ours"


def test_actions_tell_which_cluster_they_mean(cluster: Cluster, machines: Machines, network: FakeNetwork) -> None:
    """So a broker of another one refuses them (see the server's tests); metadata finds out, and so says nothing."""
    cluster.call("find_coordinator", _find(), FindCoordinatorResponse)
    assert network.told == ["", "ours"]
    machines.cluster_at = {ONE: "ours"}
    cluster.describe()
    assert set(network.told[2:]) == {""}


def test_refused_action_finds_the_new_cluster(network: FakeNetwork, machines: Machines) -> None:
    """Of one broker: the client asks what cluster it is, and asks again."""
    machines.cluster_at = {ONE: "first"}
    cluster = Cluster([ONE])
    cluster.describe()
    machines.cluster_at = {ONE: "second"}
    answer = machines.answer

    def refusing(address: Address, name: str, request: Message, timeout_s: float) -> Message:
        if network.told[-1] not in ("", "second"):
            raise BrokerUnavailableError("this is a broker of cluster second")
        return answer(address, name, request, timeout_s)

    network._answer = refusing
    cluster._channels.clear()
    cluster.call("find_coordinator", _find(), FindCoordinatorResponse, timeout_s=5)
    assert network.told[-3:] == ["first", "", "second"]


def test_time_counts_anew_when_ours_answered_between(
    cluster: Cluster, machines: Machines, network: FakeNetwork
) -> None:
    """Two short outages an hour apart are not one long one."""
    cluster.describe()
    for _ in range(3):
        machines.cluster_at = {TWO: "theirs"}
        with pytest.raises(BrokerUnavailableError):
            cluster.describe(timeout_s=4)
        machines.cluster_at = {ONE: "ours", TWO: "theirs", THREE: "ours"}
        cluster.describe()
        network.clock.now += 3600
    assert cluster.describe().cluster_id == "ours"


def test_failure_of_long_ago_says_nothing_of_now(cluster: Cluster, machines: Machines, network: FakeNetwork) -> None:
    """Ours were all away, an hour later they are back, and the other cluster's broker happens to be asked first."""
    cluster.describe()
    asked_first = set()
    for turn in range(9):
        for _ in range(turn % 3):
            cluster.refresh()  # so that another one's turn comes
        machines.cluster_at = {TWO: "theirs"}
        with pytest.raises(BrokerUnavailableError):
            cluster.describe(timeout_s=4)
        machines.cluster_at = {ONE: "ours", TWO: "theirs", THREE: "ours"}
        network.clock.now += 3600
        before = len(machines.asked)
        assert cluster.describe().cluster_id == "ours"
        asked_first.add(machines.asked[before])
    assert TWO in asked_first


def _find() -> Message:
    from broker_runtime.contract.requests import FindCoordinatorRequest

    return FindCoordinatorRequest(group_id=Coordinator("g").group_id)
