"""Which broker a client asks: `Cluster.call` over channels that only record who was asked."""

from __future__ import annotations

import itertools

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    NetworkError,
    NotAPylogBrokerError,
    NotControllerError,
    NotCoordinatorError,
    PylogError,
    RequestTimedOutError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.requests import (
    BrokerInfo,
    CreatePartitionsRequest,
    Empty,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
)
from broker_runtime.contract.settings import Address
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.connection.strangers import LIMIT_S, Peer
from tests.unit.client.channels import FakeClock, FakeNetwork, answer_by

DEAD, ONE, TWO = Address("dead", 1), Address("one", 1), Address("two", 1)


class Brokers:
    """Two brokers that answer, and an address where nobody does."""

    def __init__(self) -> None:
        self.asked: list[tuple[Address, str]] = []
        self.given_s: list[float] = []
        self.dead = {DEAD}
        self.controller = 1
        self.believed_controller = 1
        self.coordinator = 1
        self.failures: list[PylogError] = []  # raised instead of the next answers about a group's offsets

    def answer_within(self, address: Address, name: str, request: Message, timeout_s: float) -> Message:
        self.given_s.append(timeout_s)
        return self.answer(address, name)

    def answer(self, address: Address, name: str) -> Message:
        self.asked.append((address, name))
        if address in self.dead:
            raise BrokerUnavailableError(f"{address} refuses")
        if name == "metadata":
            return MetadataResponse(
                protocol_version=1,
                software_version="",
                cluster_id="c",
                controller_id=self.believed_controller,
                brokers=(
                    BrokerInfo(broker_id=1, host="one", port=1, epoch=1),
                    BrokerInfo(broker_id=2, host="two", port=1, epoch=1),
                ),
                topics=(),
            )
        if name == "create_partitions" and address != {1: ONE, 2: TWO}[self.controller]:
            self.believed_controller = self.controller
            raise NotControllerError("another broker is")
        if name == "find_coordinator":
            return FindCoordinatorResponse(broker_id=self.coordinator)
        if name == "fetch_offsets":
            if self.failures:
                raise self.failures.pop(0)
            if address != {1: ONE, 2: TWO}[self.coordinator]:
                raise NotCoordinatorError("another broker is")
            return FetchOffsetsResponse(offsets=())
        return ListOffsetsResponse(answers=()) if name == "list_offsets" else Empty()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture(autouse=True)
def network(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    """The network over which all clients reach those brokers."""
    return answer_by(brokers.answer_within, monkeypatch)


@pytest.fixture
def clock(network: FakeNetwork) -> FakeClock:
    """The clock of all clients."""
    return network.clock


def ask_for_metadata(cluster: Cluster, times: int) -> None:
    for _ in range(times):
        cluster.call("metadata", MetadataRequest(topics=()), MetadataResponse)


def test_address_that_does_not_answer_is_tried_last(brokers: Brokers) -> None:
    """After a failure other addresses are asked, round robin."""
    cluster = Cluster([DEAD, ONE])
    ask_for_metadata(cluster, 21)
    asked = [address for address, _ in brokers.asked]
    assert asked.count(DEAD) == 1
    assert abs(asked.count(ONE) - asked.count(TWO)) <= 1
    cluster.close()


def test_broker_that_died_is_not_asked_again_for_a_while(brokers: Brokers) -> None:
    """It is not asked although the others still believe that it is alive."""
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 4)
    brokers.dead.add(TWO)
    brokers.asked.clear()
    ask_for_metadata(cluster, 20)
    assert [address for address, _ in brokers.asked].count(TWO) == 1
    cluster.close()


def test_bootstrap_address_is_asked_when_all_known_brokers_are_gone(brokers: Brokers) -> None:
    """The client's bootstrap address may lead to brokers that it does not know yet."""
    cluster = Cluster([DEAD, ONE])
    ask_for_metadata(cluster, 1)
    brokers.dead = {ONE, TWO}
    ask_for_metadata(cluster, 1)
    assert brokers.asked[-1][0] == DEAD
    cluster.close()


def test_new_controller_is_found_when_the_old_one_refuses(brokers: Brokers) -> None:
    """A broker that is not the controller any more says so, and the client looks it up again."""
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    brokers.controller = 2
    request = CreatePartitionsRequest(name="t", total=2)
    assert cluster.call("create_partitions", request, Empty, to="controller") == Empty()
    assert [address for address, name in brokers.asked if name == "create_partitions"] == [ONE, TWO]
    cluster.close()


def test_refusal_of_a_named_broker_is_raised_at_once(brokers: Brokers) -> None:
    """A client that asks a leader looks for the new one instead of waiting for the old."""
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    brokers.dead.add(TWO)
    with pytest.raises(BrokerUnavailableError):
        cluster.call("list_offsets", ListOffsetsRequest(queries=()), ListOffsetsResponse, to=2)
    assert [address for address, name in brokers.asked if name == "list_offsets"] == [TWO]
    cluster.close()


def test_silent_addresses_do_not_hide_one_that_answers(
    brokers: Brokers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that accept connections and never answer (frozen ones) only cost time."""
    silent = [Address(f"silent-{number}", 1) for number in range(4)]
    answer = brokers.answer

    def slow_answer(address: Address, name: str) -> Message:
        if address in silent:
            clock.now += 5.0
            raise RequestTimedOutError(f"{address} is silent")
        return answer(address, name)

    monkeypatch.setattr(brokers, "answer", slow_answer)
    cluster = Cluster([*silent, ONE], request_timeout_ms=60_000)
    ask_for_metadata(cluster, 1)
    assert brokers.asked[-1][0] == ONE
    cluster.close()


def test_long_first_call_is_waited_for(brokers: Brokers) -> None:
    """A topic of many partitions takes its time; that is no sign of an absent broker."""
    cluster = Cluster([ONE])
    cluster.call("create_partitions", CreatePartitionsRequest(name="t", total=9), Empty, to="controller")
    assert [name for _, name in brokers.asked].count("create_partitions") == 1
    assert brokers.asked[-1][1] == "create_partitions"
    assert brokers.given_s[-1] > 10
    cluster.close()


def test_address_that_is_silent_elsewhere_is_asked_last(brokers: Brokers) -> None:
    """W12: a client that waits for a frozen leader does not ask the same broker for the new leader."""
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    brokers.asked.clear()
    cluster.distrust(ONE)
    ask_for_metadata(cluster, 10)
    assert {address for address, _ in brokers.asked} == {TWO}
    cluster.close()


def test_metadata_is_waited_for_longer_at_the_second_try(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen broker costs little, and many topics may still take their time."""
    answer = brokers.answer

    def silent_twice(address: Address, name: str) -> Message:
        if 1 < len(brokers.given_s) < 4:
            raise RequestTimedOutError(f"{address} is silent")
        return answer(address, name)

    monkeypatch.setattr(brokers, "answer", silent_twice)
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 2)
    assert brokers.given_s[1:] == [2.0, 5.0, 5.0]
    cluster.close()


def ask_coordinator(cluster: Cluster, timeout_s: float | None = None) -> FetchOffsetsResponse:
    request = FetchOffsetsRequest(group_id="g")
    return cluster.call("fetch_offsets", request, FetchOffsetsResponse, to=Coordinator("g"), timeout_s=timeout_s)


def test_coordinator_is_found_once(brokers: Brokers) -> None:
    """W18: a group's commits cost no lookup while its coordinator stays."""
    cluster = Cluster([ONE])
    ask_coordinator(cluster)
    ask_coordinator(cluster)
    assert [name for _, name in brokers.asked] == ["metadata", "find_coordinator", "fetch_offsets", "fetch_offsets"]
    assert {address for address, name in brokers.asked if name == "fetch_offsets"} == {ONE}
    cluster.close()


@pytest.mark.parametrize(
    "failure",
    [
        NotCoordinatorError("another broker is"),
        CoordinatorNotAvailableError("not verified"),
        BrokerUnavailableError("refused"),
        NetworkError("broke"),
        RequestTimedOutError("silent"),
    ],
    ids=lambda error: error.code,
)
def test_coordinator_is_looked_up_again_when_in_doubt(brokers: Brokers, failure: PylogError) -> None:
    """W19: the group moved to another broker because its own died or lost ZooKeeper."""
    cluster = Cluster([ONE])
    ask_coordinator(cluster)
    brokers.coordinator = 2
    brokers.failures = [failure]
    brokers.asked.clear()
    ask_coordinator(cluster)
    answered = [(address, name) for address, name in brokers.asked if name == "fetch_offsets"]
    assert answered == [(ONE, "fetch_offsets"), (TWO, "fetch_offsets")]
    assert [name for _, name in brokers.asked].count("find_coordinator") == 1
    cluster.close()


def test_coordinator_is_looked_for_until_time_is_over(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last error is raised unchanged, and no attempt outlasts the call's deadline."""
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    answer = brokers.answer

    def nobody(address: Address, name: str) -> Message:
        if name == "fetch_offsets":
            raise CoordinatorNotAvailableError("nobody")
        return answer(address, name)

    monkeypatch.setattr(brokers, "answer", nobody)
    brokers.given_s.clear()
    with pytest.raises(CoordinatorNotAvailableError):
        ask_coordinator(cluster, timeout_s=0.02)
    assert max(brokers.given_s) <= 0.02
    cluster.close()


def test_error_that_casts_no_doubt_on_the_coordinator_is_raised_at_once(brokers: Brokers) -> None:
    """The coordinator stays known."""
    cluster = Cluster([ONE])
    ask_coordinator(cluster)
    brokers.failures = [InvalidGroupIdError("no")]
    with pytest.raises(InvalidGroupIdError):
        ask_coordinator(cluster)
    ask_coordinator(cluster)
    assert [name for _, name in brokers.asked].count("find_coordinator") == 1
    cluster.close()


@pytest.mark.parametrize("looks", range(5, 30))
def test_last_answer_of_a_broker_is_raised_instead_of_a_timeout(
    brokers: Brokers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """No request is made without time left, wherever in an attempt the time ends (at the n-th reading of the clock)."""
    answer = brokers.answer

    def without_zookeeper(address: Address, name: str) -> Message:
        if name == "create_partitions":
            raise ZooKeeperUnavailableError("changes of topics wait")
        return answer(address, name)

    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    monkeypatch.setattr(brokers, "answer", without_zookeeper)
    ticks = itertools.count()
    monkeypatch.setattr(clock, "now_s", lambda: float(next(ticks)))
    with pytest.raises(ZooKeeperUnavailableError):
        cluster.call(
            "create_partitions", CreatePartitionsRequest(name="t", total=9), Empty, to="controller", timeout_s=looks
        )
    assert min(brokers.given_s) > 0
    cluster.close()


@pytest.mark.parametrize(
    ("limit_s", "error"),
    [(5.0, ZooKeeperUnavailableError), (9.0, RequestTimedOutError)],
    ids=["the last try was short", "the last try was long enough"],
)
def test_last_attempt_that_was_too_short_for_an_answer_is_ignored(
    brokers: Brokers, clock: FakeClock, limit_s: float, error: type[PylogError]
) -> None:
    """An earlier answer of a broker is raised; a broker that had time to answer and did not is reported as silent."""
    answer = brokers.answer

    def then_silent(address: Address, name: str) -> Message:
        if name != "create_partitions":
            return answer(address, name)
        given_s.append(brokers.given_s[-1])
        if clock.now < 4.5:
            clock.now += 4.5  # the broker waited for its session, in vain
            raise ZooKeeperUnavailableError("changes of topics wait")
        clock.now += given_s[-1]
        raise RequestTimedOutError(f"{address} is silent")

    given_s: list[float] = []
    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    brokers.answer = then_silent  # type: ignore[method-assign]
    with pytest.raises(error):
        cluster.call(
            "create_partitions", CreatePartitionsRequest(name="t", total=9), Empty, to="controller", timeout_s=limit_s
        )
    assert [each < 1 for each in given_s] == [False, error is ZooKeeperUnavailableError]
    cluster.close()


@pytest.mark.parametrize("name", ["find_coordinator", "fetch_offsets"])
def test_last_attempt_that_may_have_been_carried_out_is_raised_as_such(
    brokers: Brokers, clock: FakeClock, name: str
) -> None:
    """ "No coordinator" is raised only if the request itself was never sent."""
    answer = brokers.answer

    def then_silent(address: Address, action: str) -> Message:
        if action == "find_coordinator" and clock.now < 1.5:
            clock.now += 1.5
            raise CoordinatorNotAvailableError("nobody")
        if action == name:
            clock.now += brokers.given_s[-1]
            raise RequestTimedOutError(f"{address} is silent")
        return answer(address, action)

    cluster = Cluster([ONE])
    ask_for_metadata(cluster, 1)
    brokers.answer = then_silent  # type: ignore[method-assign]
    with pytest.raises(CoordinatorNotAvailableError if name == "find_coordinator" else RequestTimedOutError):
        ask_coordinator(cluster, timeout_s=2)
    cluster.close()


@pytest.mark.parametrize(
    ("peer", "error", "message"),
    [
        (Peer.UNKNOWN_NAME, BrokerUnavailableError, "host name not found: dead"),
        (
            Peer.ZOOKEEPER,
            NotAPylogBrokerError,
            "dead:1 is ZooKeeper. Clients talk to brokers, which listen on port 9192",
        ),
        (Peer.KAFKA, NotAPylogBrokerError, "dead:1 is Kafka"),
        (Peer.HTTP, NotAPylogBrokerError, "dead:1 is a web server"),
        (Peer.SSH, NotAPylogBrokerError, "dead:1 is an SSH server"),
        (Peer.TLS, NotAPylogBrokerError, "dead:1 expects TLS"),
        (Peer.MYSQL, NotAPylogBrokerError, "dead:1 is MySQL or MariaDB"),
        (Peer.POSTGRESQL, NotAPylogBrokerError, "dead:1 is PostgreSQL"),
        (Peer.REDIS, NotAPylogBrokerError, "dead:1 is Redis"),
        (Peer.MAIL, NotAPylogBrokerError, "dead:1 is a mail or FTP server"),
        (Peer.OTHER, NotAPylogBrokerError, "dead:1 is another service, not a pylog broker"),
        (Peer.CLOSED_TO_HTTP2, NotAPylogBrokerError, "dead:1 is another service, not a pylog broker"),
    ],
)
def test_foreign_service_is_named_at_once(
    brokers: Brokers, network: FakeNetwork, clock: FakeClock, peer: Peer, error: type[PylogError], message: str
) -> None:
    """A retry would change nothing."""
    network.peers = {DEAD: peer}
    cluster = Cluster([DEAD])
    with pytest.raises(error) as raised:
        ask_for_metadata(cluster, 1)
    assert raised.value.message.startswith(message)
    assert (clock.now, len(brokers.asked)) == (0.0, 1)
    brokers.dead.clear()
    ask_for_metadata(cluster, 1)  # the name was entered meanwhile, or a broker started
    cluster.close()


@pytest.mark.parametrize(
    ("peer", "error", "message"),
    [
        (Peer.REFUSED, BrokerUnavailableError, "dead:1 refused for 10 s. Start one: pylog up"),
        (Peer.CLOSED, BrokerUnavailableError, "dead:1 closed each connection for 10 s: a proxy without a broker, or"),
        (Peer.SILENT, BrokerUnavailableError, "dead:1 takes connections but said nothing for 10 s"),
        (Peer.GRPC, BrokerUnavailableError, "dead:1 is there, but did not answer within 10 s"),
        (Peer.UNREACHABLE, BrokerUnavailableError, "no answer from dead:1 within 10 s"),
    ],
)
def test_possible_broker_is_tried_for_ten_seconds(
    brokers: Brokers, network: FakeNetwork, clock: FakeClock, peer: Peer, error: type[PylogError], message: str
) -> None:
    """A broker that starts, hangs or has no time is never called another service."""
    network.peers = {DEAD: peer}
    cluster = Cluster([DEAD])
    with pytest.raises(error) as raised:
        ask_for_metadata(cluster, 1)
    assert raised.value.message.startswith(message)
    assert 10 <= clock.now < 12
    cluster.close()


def test_foreign_service_among_brokers_is_a_warning(
    brokers: Brokers, network: FakeNetwork, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One wrong address of two does no harm, and is reported once."""
    network.peers = {DEAD: Peer.UNKNOWN_NAME}
    cluster = Cluster([DEAD, ONE])
    ask_for_metadata(cluster, 5)
    said = 'skip bootstrap server address=dead:1 error="[BROKER_UNAVAILABLE] host name not found: dead"'
    assert [record.getMessage() for record in caplog.records] == [said]
    cluster.close()


def test_foreign_services_at_all_addresses_are_all_named(
    brokers: Brokers, network: FakeNetwork, clock: FakeClock
) -> None:
    """Each address is named with the service at it."""
    brokers.dead = {ONE, TWO}
    network.peers = {ONE: Peer.UNKNOWN_NAME, TWO: Peer.HTTP}
    cluster = Cluster([ONE, TWO])
    with pytest.raises(BrokerUnavailableError, match=r"host name not found: one; two:1 is a web server"):
        ask_for_metadata(cluster, 1)
    cluster.close()


def test_brokers_that_were_reached_once_are_not_examined(
    brokers: Brokers, network: FakeNetwork, clock: FakeClock
) -> None:
    """Only clients that have found no broker examine what is at their addresses."""
    cluster = Cluster([ONE], request_timeout_ms=5_000)
    ask_for_metadata(cluster, 1)
    brokers.dead = {ONE, TWO}
    network.peers = {ONE: Peer.HTTP}
    with pytest.raises(BrokerUnavailableError, match="refuses"):
        ask_for_metadata(cluster, 1)
    cluster.close()


def test_first_broker_is_looked_for_no_longer_than_a_request_may_take(brokers: Brokers, clock: FakeClock) -> None:
    """S4: `request.timeout.ms=2s` bounds the search even if the call itself may take longer, as a Spark query's may."""
    cluster = Cluster([DEAD], request_timeout_ms=2_000)
    with pytest.raises(BrokerUnavailableError, match="refused for 2 s"):
        cluster.call("metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=30)
    assert 2 <= clock.now < 3.5
    cluster.close()


@pytest.mark.parametrize("late_s", [0.0, -0.02, 0.3])
@pytest.mark.parametrize(
    ("peer", "message"),
    [(Peer.SILENT, "takes connections but said nothing for"), (Peer.GRPC, "is there, but did not answer within")],
)
@pytest.mark.parametrize("limit_s", [10, 3, 1])
def test_reported_time_is_the_time_it_took(
    brokers: Brokers,
    network: FakeNetwork,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float,
    peer: Peer,
    message: str,
    late_s: float,
) -> None:
    """The attempts at a silent port, and the examination of its service, are all included."""

    def silent(address: Address, name: str) -> Message:
        clock.now += max(0.001, brokers.given_s[-1] + late_s)  # timers end a little early or late
        raise RequestTimedOutError(f"{address} is silent")

    def look(address: Address, *, limit_s: float = LIMIT_S) -> Peer:
        clock.now += limit_s if peer is Peer.SILENT else 0.01
        return peer

    monkeypatch.setattr(brokers, "answer", silent)
    monkeypatch.setattr(network, "who_is_at", look)
    cluster = Cluster([ONE])
    with pytest.raises(BrokerUnavailableError, match=f"{message} {limit_s} s"):
        cluster.call(
            "metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=None if limit_s == 10 else limit_s
        )
    assert limit_s - 0.1 <= clock.now <= limit_s + 0.1 + 4 * max(0.0, late_s)
    cluster.close()
