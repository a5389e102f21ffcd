"""The caller: what its client id may be, and which broker a follower's session belongs to (`admit_replica`)."""

from __future__ import annotations

import logging

import pytest

from broker_runtime.contract.errors import InvalidTopicError, LeaderNotAvailableError, StaleBrokerEpochError
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.streams import FetchHello
from broker_runtime.services.caller import (
    MOST_CLIENT_ID_CHARS,
    BrokerCaller,
    Caller,
    admit_replica,
    is_broker,
    logged_change,
    some_of,
)
from broker_runtime.zookeeper.znodes import BrokerRegistration
from tests.callers import CLIENT

BROKERS = {
    2: BrokerRegistration(host="h", port=1, epoch=5, instance="i", pid=1, secret="s3cret"),
    4: BrokerRegistration(host="h", port=1, epoch=5, instance="i", pid=1),
}


def test_follower_is_admitted_in_its_registration() -> None:
    hello = FetchHello(replica_id=2, broker_epoch=5, secret="s3cret")
    assert admit_replica(CLIENT, hello, BROKERS) == BrokerCaller(
        client_id=CLIENT.client_id, address=CLIENT.address, is_broker=True, broker_id=2, broker_epoch=5
    )


@pytest.mark.parametrize(
    ("broker_id", "epoch", "message"),
    [(3, 5, "broker 3 is not registered here"), (2, 4, "registered with epoch 5"), (2, 6, "registered with epoch 5")],
)
def test_follower_is_refused_in_another_registration(broker_id: int, epoch: int, message: str) -> None:
    """These are an earlier registration, one that does not exist, and one that this broker does not know yet."""
    with pytest.raises(StaleBrokerEpochError, match=message):
        admit_replica(CLIENT, FetchHello(replica_id=broker_id, broker_epoch=epoch, secret="s3cret"), BROKERS)


@pytest.mark.parametrize(("broker_id", "secret"), [(2, ""), (2, "s3cre"), (2, "S3cret"), (2, "é"), (4, ""), (4, "no")])
def test_impostor_with_the_public_numbers_is_refused_and_logged(
    broker_id: int, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Id and epoch are in every answer about the cluster; a registration without a secret admits nobody either."""
    with pytest.raises(StaleBrokerEpochError, match="does not prove"):
        admit_replica(CLIENT, FetchHello(replica_id=broker_id, broker_epoch=5, secret=secret), BROKERS)
    (logged,) = caplog.records
    assert logged.levelno == logging.WARNING
    assert logged.getMessage().startswith(
        f"admit follower broker={broker_id} client_id=test address=127.0.0.1:4711 error="
    )


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("2:s3cret", True),
        ("2:", False),
        ("4:", False),
        ("2", False),
        ("x:s3cret", False),
        ("²:s3cret", False),
        ("", False),
    ],
)
def test_calls_of_brokers_are_known_by_their_header(value: str, is_one: bool) -> None:
    """Only the right secret counts, and nothing that an outsider sends raises."""
    assert is_broker({"pylog-broker": [value]}, BROKERS) is is_one
    assert is_broker({"pylog-broker": ["2:no", value]}, BROKERS) is is_one


@pytest.mark.parametrize("value", ["9" * 5_000 + ":secret", "2:\ud800"], ids=["number too long for int", "no text"])
def test_header_that_no_broker_sends_proves_nothing(value: str) -> None:
    """A caller can send anything; nothing is raised."""
    assert not is_broker({"pylog-broker": [value]}, BROKERS)
    assert not is_broker({}, BROKERS)


def test_secret_is_in_no_text() -> None:
    """Neither a log line nor a traceback shows it."""
    hello = FetchHello(replica_id=2, broker_epoch=5, secret="s3cret")
    assert "s3cret" not in f"{BROKERS[2]!r} {BROKERS} {hello!r}"


def test_long_client_id_is_cut_and_not_refused() -> None:
    """It is only a name, but an open stream keeps its caller, and a request may have a megabyte."""
    assert Caller(client_id="x" * 255, address="").client_id == "x" * 255
    cut = Caller(client_id="x" * 1_000_000, address="").client_id
    assert cut == "x" * 254 + "…"
    assert len(cut) == MOST_CLIENT_ID_CHARS
    assert BrokerCaller(client_id="x" * 256, address="", broker_id=1, broker_epoch=1).client_id == cut


def test_change_is_logged_with_its_caller_and_outcome(caplog: pytest.LogCaptureFixture) -> None:
    """The line is logged for done, refused and partly refused changes."""
    logger = logging.getLogger("broker_runtime.test_caller")
    with caplog.at_level(logging.INFO):
        with logged_change(logger, "create topic", CLIENT, topic="t"):
            pass
        with pytest.raises(InvalidTopicError), logged_change(logger, "create topic", CLIENT, topic="a\nb"):
            raise InvalidTopicError("no")
        with logged_change(logger, "delete records", CLIENT, before="t-0:3") as failed:
            failed += [ErrorInfo.of(LeaderNotAvailableError("none")), ErrorInfo.of(InvalidTopicError("no"))]
    assert [record.getMessage() for record in caplog.records] == [
        "create topic topic=t client_id=test address=127.0.0.1:4711",
        r'create topic topic="a\nb" client_id=test address=127.0.0.1:4711 error="[INVALID_TOPIC_EXCEPTION] no"',
        "delete records before=t-0:3 client_id=test address=127.0.0.1:4711 failed=2 "
        'error="[LEADER_NOT_AVAILABLE] none"',
    ]


def test_log_line_names_the_first_subjects_of_a_request():
    """A request may name a hundred thousand partitions; at most ten are ever formatted."""
    taken = []

    def names():
        for number in range(100_000):
            taken.append(number)
            yield f"t-{number}"

    assert some_of(names()) == ",".join(f"t-{number}" for number in range(10)) + "…"
    assert len(taken) == 11
    assert some_of(["a", "b"]) == "a,b"
    assert some_of([]) == ""
